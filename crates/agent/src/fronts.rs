//! The fronts of a process: which one answers a call, and what they do together.

use std::sync::Arc;

use axum::Router;
use berth_cni::wire::{Answer, Request};
use berth_cni::{CniError, Code, NetConf};
use berth_front::{Front, Host, Readiness, Serving};
use futures::future::join_all;

use crate::serve::AgentError;

/// Fronts that serve, in the order in which they were registered.
#[derive(Debug, Default)]
pub(crate) struct Fronts(Vec<Registered>);

#[derive(Debug)]
struct Registered {
    name: &'static str,
    plugins: &'static [&'static str],
    serving: Arc<dyn Serving>,
}

impl Fronts {
    /// Starts a front and adds it.
    pub(crate) async fn start(
        &mut self,
        front: Box<dyn Front>,
        host: Host<'_>,
    ) -> Result<(), AgentError> {
        let (name, plugins) = (front.name(), front.plugins());
        if let Some(plugin) = plugins.iter().find(|plugin| self.of(plugin).is_some()) {
            return Err(AgentError::SamePlugin { plugin });
        }
        let started = front.start(host).await;
        let serving = started.map_err(|source| AgentError::Front {
            front: name,
            source,
        })?;
        self.0.push(Registered {
            name,
            plugins,
            serving,
        });
        Ok(())
    }

    fn of(&self, plugin: &str) -> Option<&Registered> {
        self.0.iter().find(|front| front.plugins.contains(&plugin))
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|front| front.name).collect()
    }

    /// Has the front answer that the plugin's name belongs to.
    pub(crate) async fn call(&self, request: &Request) -> Answer {
        match self.of(&request.plugin) {
            Some(front) => front.serving.call(request).await,
            None => unknown(request, self.0.iter().flat_map(|front| front.plugins)),
        }
    }

    /// What all of them serve on the socket.
    pub(crate) fn routes(&self) -> Router {
        let routes = self.0.iter().map(|front| front.serving.routes());
        routes.fold(Router::new(), Router::merge)
    }

    /// What all of them together can serve: not ready if one is not.
    pub(crate) async fn ready(&self) -> Readiness {
        let asked = join_all(self.0.iter().map(|front| front.serving.ready())).await;
        let (mut waiting, mut failing) = (Vec::new(), Vec::new());
        for readiness in asked {
            match readiness {
                Readiness::Ready => {}
                Readiness::Degraded(why) => waiting.push(why),
                Readiness::NotReady(why) => failing.push(why),
            }
        }
        match (waiting.is_empty(), failing.is_empty()) {
            (true, true) => Readiness::Ready,
            (false, true) => Readiness::Degraded(waiting.join("; ")),
            (_, false) => Readiness::NotReady(failing.join("; ")),
        }
    }

    pub(crate) async fn finish(&self) {
        join_all(self.0.iter().map(|front| front.serving.finish())).await;
    }
}

/// The refusal of a call under a name that no front answers to. A DEL is refused, too: a success that freed nothing would
/// leak the address.
pub(crate) fn unknown<'a>(
    request: &Request,
    plugins: impl Iterator<Item = &'a &'static str>,
) -> Answer {
    let known: Vec<&str> = plugins.copied().collect();
    let plugin = berth_cni::ids::shown(&request.plugin);
    let error = CniError::new(
        Code::Config,
        format!("no front answers to the plugin name {plugin}"),
    )
    .details(format!(
        "install the plugin under a name that one does, and set ipam.type to it: {}",
        known.join(", ")
    ));
    Answer::failure(error.render(NetConf::version_of(&request.stdin)))
}
