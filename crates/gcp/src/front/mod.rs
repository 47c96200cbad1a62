//! gcp-ipam: CNI calls in, addresses of an IPPool out, each attached to the VM as an alias.
//!
//! ```text
//!  ADD ─► pod ─► allocate in the IPPool ─► note the holder ─► attach (group commit) ─► answer
//!  DEL ─► note the detach ─► answer        ... alias gone ─► release, cool down
//! ```
//! One engine serves the agent and the process that runs without one; the second serves one call at a time under the lock
//! file and carries its detaches out before it answers.

mod add;
mod check;
mod cluster;
mod config;
mod del;
mod engine;
mod events;
mod flags;
mod journal;
mod leader;
mod metrics;
mod moved_in;
mod moves;
mod node;
mod pages;
mod pools;
mod settings;
mod site;
mod statics;
mod sweep;
mod warm;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use berth_cni::call::Call;
use berth_cni::conf::{self, NetConf, Unread};
use berth_cni::ids::shown;
use berth_cni::version::version_answer;
use berth_cni::wire::{Answer, Request};
use berth_cni::{CniError, Code, Version};
use berth_node::KeyedLock;
use serde_json::Value;
use tokio::time::Instant;

pub use add::LABEL;
pub use config::{PLUGIN, PREDECESSOR};
pub use engine::{Daemon, Duty, Engine, Setup};
pub use flags::{GcpArgs, GcpLeaderArgs, InvalidFlag};
pub use leader::GcpTask;
pub use metrics::GcpMetrics;
pub use node::{GcpFront, IP_POOL_KIND, PLUGINS};
pub use settings::{LOCK, Select, Settings};

use add::Added;
use check::Checked;
use config::{IpamConf, predecessor};
use del::Deleted;
use engine::unlocked;
use metrics::Ended;

/// Shorter than what the plugin waits for, so that the reason reaches the user.
const ADD_LIMIT: Duration = Duration::from_secs(105);
const DEL_LIMIT: Duration = Duration::from_secs(50);

/// The front of one node.
#[derive(Debug)]
pub struct Front {
    engine: Arc<Engine>,
    containers: KeyedLock<String>,
}

/// How a call was served.
enum Outcome {
    Stdout(String),
    Delegated,
}

impl Front {
    pub fn new(setup: Setup) -> Front {
        Front {
            engine: Engine::new(setup),
            containers: KeyedLock::default(),
        }
    }

    /// Resumes what an earlier process left, if it left anything.
    pub fn start(&self) {
        let engine = Arc::clone(&self.engine);
        self.engine.spawn(async move { engine.resume().await });
    }

    /// Serves a call. There is always an answer.
    pub async fn answer(&self, request: &Request) -> Answer {
        let document = conf::document(&request.stdin);
        let version = document.as_ref().ok().and_then(NetConf::version_in);
        let legacy = document.as_ref().ok().and_then(predecessor);
        let begun = Instant::now();
        let served = self.serve(request, document).await;
        let ended = match &served {
            Ok(Outcome::Stdout(_)) => Ended::Done,
            Ok(Outcome::Delegated) => Ended::Delegated,
            Err(error) => Ended::Failed(error),
        };
        let verb = known(&request.environment.command);
        self.engine.metrics.called(verb, &ended, begun.elapsed());
        match served {
            Ok(Outcome::Stdout(stdout)) => Answer::success(stdout),
            Ok(Outcome::Delegated) => delegated(request, legacy, version),
            Err(error) => {
                tracing::warn!(
                    verb = %shown(&request.environment.command),
                    container = %shown(&request.environment.container_id),
                    code = error.code.number(),
                    "{error}"
                );
                Answer::failure(error.render(version))
            }
        }
    }

    async fn serve(
        &self,
        request: &Request,
        document: Result<Value, Unread>,
    ) -> Result<Outcome, CniError> {
        if request.environment.is_malformed_del() {
            return Ok(Outcome::Stdout(String::new()));
        }
        let call = request.environment.call()?;
        if call == Call::Version {
            return Ok(Outcome::Stdout(version_answer()));
        }
        let conf = NetConf::of(&document?)?;
        allow(&call, &conf)?;
        let ipam = IpamConf::read(&conf)?;
        let limit = match call {
            Call::Del(_) => DEL_LIMIT,
            _ => ADD_LIMIT,
        };
        let deadline = Instant::now() + limit;
        let _turn = match &call {
            Call::Add(target) | Call::Del(target) => {
                Some(self.containers.hold(target.container_id.to_string()).await)
            }
            _ => None,
        };
        // Without an agent: one call at a time.
        let _held = match self.engine.daemon {
            None => Some(self.engine.lock().hold().await.map_err(unlocked)?),
            Some(_) => None,
        };
        self.dispatch(&call, &conf, &ipam, deadline).await
    }

    async fn dispatch(
        &self,
        call: &Call,
        conf: &NetConf,
        ipam: &IpamConf,
        deadline: Instant,
    ) -> Result<Outcome, CniError> {
        let engine = &self.engine;
        let nothing = || Outcome::Stdout(String::new());
        Ok(match call {
            Call::Add(target) => match engine.add(target, ipam, deadline).await? {
                Added::Address(result) => Outcome::Stdout(result.render(conf.version)?),
                Added::Delegated => Outcome::Delegated,
            },
            Call::Del(target) => match engine.del(target, ipam, deadline).await? {
                Deleted::Done => nothing(),
                Deleted::Unknown => Outcome::Delegated,
            },
            Call::Check(target) => {
                let previous = conf.prev_result.as_ref();
                match engine.check(target, ipam, previous).await? {
                    Checked::Good => nothing(),
                    Checked::Unknown => Outcome::Delegated,
                }
            }
            Call::Gc => {
                let Some(valid) = &conf.valid_attachments else {
                    return Err(config::invalid(
                        "GC without cni.dev/valid-attachments",
                        "without it every address would be released",
                    ));
                };
                let gone = engine.gc(valid, deadline).await?;
                tracing::info!(valid = valid.len(), gone, "GC");
                nothing()
            }
            Call::Status => {
                engine.status(ipam).await?;
                nothing()
            }
            Call::Version => Outcome::Stdout(version_answer()),
        })
    }
}

/// The verb as a label: not whatever a caller says.
fn known(verb: &str) -> &'static str {
    let verbs = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    verbs
        .into_iter()
        .find(|known| *known == verb)
        .unwrap_or("other")
}

/// The call goes to the IPAM plugin that stood there before. Without its keys there was none: a DEL of what is unknown
/// succeeds, everything else is refused.
fn delegated(request: &Request, legacy: Option<String>, version: Option<Version>) -> Answer {
    let verb = request.environment.command.as_str();
    match legacy {
        Some(stdin) => {
            let refusal = CniError::new(
                Code::Config,
                format!("this {PLUGIN} is older than its agent and can't run {PREDECESSOR}"),
            )
            .details("install the plugin of the agent's version: `berth gcp install`");
            Answer::delegated(PREDECESSOR, stdin, refusal.render(version))
        }
        None if verb == "DEL" => Answer::success(String::new()),
        None if verb == "CHECK" => {
            let error = CniError::new(
                Code::UnknownContainer,
                format!(
                    "container {} has no address of a pool",
                    shown(&request.environment.container_id)
                ),
            )
            .details("the container has to be started again");
            Answer::failure(error.render(version))
        }
        None => {
            let error = config::invalid(
                format!(
                    "the pod does not carry {LABEL}: \"true\", nor does its namespace, and ipam has no keys of {PREDECESSOR} to serve it with"
                ),
                format!("keep {PREDECESSOR}'s ranges in ipam, or set ipam.pods to all"),
            );
            Answer::failure(error.render(version))
        }
    }
}

/// Whether the configuration's version has the verb; the form of a result before 0.3.1 has no place for the pool's routes.
fn allow(call: &Call, conf: &NetConf) -> Result<(), CniError> {
    let allowed = match call {
        Call::Del(_) => true,
        Call::Check(_) => conf.version.allows_check(),
        Call::Gc | Call::Status => conf.version.allows_gc_and_status(),
        _ => conf.version >= Version::V0_3_1,
    };
    if allowed {
        return Ok(());
    }
    Err(CniError::new(
        Code::IncompatibleVersion,
        format!("cniVersion {} does not have {}", conf.version, call.verb()),
    )
    .details("use 0.3.1 or later; CHECK needs 0.4.0, GC and STATUS 1.1.0"))
}
