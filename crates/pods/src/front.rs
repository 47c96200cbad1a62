//! A CNI call comes in, what the plugin prints goes out.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::call::{Call, Target};
use berth_cni::conf::{self, Unread};
use berth_cni::ids::{NETWORK_NAME_MAX, shown};
use berth_cni::result::IpamResult;
use berth_cni::version::version_answer;
use berth_cni::wire::{Answer, Request};
use berth_cni::{Args, CniError, Code, NetConf};
use berth_core::{Handle, Owner};
use berth_node::{KeyedLock, boot};
use parking_lot::Mutex;
use serde_json::Value;

use crate::attachment::{Attachment, HostContext};
use crate::config::{ConfigError, Found, NamedPaths, NodeFiles, PodNetwork, flat};
use crate::error::PodError;
use crate::named_reads::NamedReads;
use crate::sticky;
use crate::store::{Store, Stores};
use crate::{add, check, del, gc, status};

/// Shorter than what the plugin waits for, so that the reason reaches the user.
const ADD_LIMIT: Duration = Duration::from_secs(110);
const DEL_LIMIT: Duration = Duration::from_secs(55);

/// Warnings of one network that are logged, their length, and how many of all networks are remembered: definitions may have
/// any number, and change at any time.
const MOST_WARNINGS: usize = 16;
const LONGEST_WARNING: usize = 500;
const MOST_REMEMBERED: usize = 1000;

/// The pods front of one node.
#[derive(Debug)]
pub struct Front {
    stores: Arc<dyn Stores>,
    host: HostContext,
    files: Arc<NodeFiles>,
    named_reads: NamedReads,
    owners: KeyedLock<Owner>,
    /// By container and interface.
    attachments: KeyedLock<(Handle, String)>,
    /// Warnings that were logged already: a configuration is read for every call.
    warned: Mutex<HashSet<String>>,
}

impl Front {
    /// A front of the node `node`.
    pub fn new(stores: Arc<dyn Stores>, node: impl Into<String>) -> Front {
        Front {
            stores,
            host: HostContext {
                node: node.into(),
                boot: boot::current(),
            },
            files: Arc::new(NodeFiles::of_known_cluster(
                flat::PLACES.iter().map(PathBuf::from).collect(),
            )),
            named_reads: NamedReads::default(),
            owners: KeyedLock::default(),
            attachments: KeyedLock::default(),
            warned: Mutex::default(),
        }
    }

    /// In another boot than the machine's.
    #[must_use]
    pub fn with_boot(mut self, boot: impl Into<String>) -> Front {
        self.host.boot = boot.into();
        self
    }

    /// Searches the flat file elsewhere than whereabouts does. No definition names a file.
    #[must_use]
    pub fn with_flat_places(self, places: Vec<PathBuf>) -> Front {
        self.with_files(NodeFiles::of_known_cluster(places))
    }

    /// Completes the networks' configurations by these files.
    #[must_use]
    pub fn with_files(mut self, files: NodeFiles) -> Front {
        self.files = Arc::new(files);
        self
    }

    /// Serves a call. There is always an answer.
    pub async fn answer(&self, request: &Request) -> Answer {
        let document = conf::document(&request.stdin);
        let version = document.as_ref().ok().and_then(NetConf::version_in);
        match self.serve(request, document).await {
            Ok(stdout) => Answer::success(stdout),
            Err(error) => {
                tracing::warn!(
                    verb = %shown(&request.environment.command),
                    container = %shown(&request.environment.container_id),
                    ifname = %shown(&request.environment.ifname),
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
    ) -> Result<String, CniError> {
        if let Some(why) = nothing_to_release(request, &document) {
            let handle = shown(&request.environment.container_id);
            tracing::warn!(%handle, "DEL of {why}: nothing was allocated");
            return Ok(String::new());
        }
        let call = request.environment.call()?;
        if call == Call::Version {
            return Ok(version_answer());
        }
        let conf = NetConf::of(&document?)?;
        allow(&call, &conf)?;
        let args = match &call {
            Call::Add(target) | Call::Del(target) | Call::Check(target) => target.args.clone(),
            _ => Args::default(),
        };
        let releases = matches!(call, Call::Del(_) | Call::Gc);
        let found = self.find(&conf, releases).await?;
        let read = match releases {
            true => PodNetwork::read_to_release(&conf, &args, &request.plugin, found),
            false => PodNetwork::read(&conf, &args, &request.plugin, found),
        };
        let mut network = match read {
            Err(why @ ConfigError::LongNetworkName { .. }) if matches!(call, Call::Del(_)) => {
                tracing::warn!("DEL: {why}: nothing was allocated");
                return Ok(String::new());
            }
            read => read?,
        };
        self.warn(&network);
        if let Some(fault) = network.faults.first().filter(|_| !releases) {
            let mut fault = fault.clone();
            if call == Call::Status {
                fault.code = Code::NotAvailable;
            }
            return Err(fault);
        }
        let limit = if matches!(call, Call::Del(_)) {
            DEL_LIMIT
        } else {
            ADD_LIMIT
        };
        let served = async {
            // Before anything that takes time: calls for one container are served as they came. A DEL whose time is up
            // before the ADD's is comes again.
            let _turn = match &call {
                Call::Add(target) | Call::Del(target) => {
                    let handle = Handle::new(target.container_id.as_str());
                    let key = (handle, target.ifname.as_str().to_owned());
                    Some(self.attachments.hold(key).await)
                }
                _ => None,
            };
            let store = self.stores.of(&network).await?;
            if !store.in_cluster {
                network.unsliced();
            }
            self.dispatch(&store, &call, &conf, &network).await
        };
        let done = match tokio::time::timeout(limit, served).await {
            Ok(done) => done,
            Err(_) => Err(CniError::new(
                Code::TryLater,
                format!("{} was not done within {} s", call.verb(), limit.as_secs()),
            )),
        };
        match done {
            // A store that can't be found is to STATUS what one that can't be read is.
            Err(mut error)
                if call == Call::Status
                    && matches!(error.code, Code::TryLater | Code::Internal) =>
            {
                error.code = Code::NotAvailable;
                Err(error)
            }
            done => done,
        }
    }

    /// Reads the node's files, and those that the network names, on a blocking thread: a filesystem that hangs delays this
    /// call alone. A call that releases goes on without what can't be read.
    async fn find(&self, conf: &NetConf, releases: bool) -> Result<Found, CniError> {
        let named = match NamedPaths::of(conf) {
            Err(_) if releases => NamedPaths::default(),
            named => named?,
        };
        if !named.is_empty() {
            let files = Arc::clone(&self.files);
            match self.named_reads.run(move || files.find(&named)).await {
                Err(error) if releases => tracing::warn!(%error, "released without them"),
                read => return Ok(read??),
            }
        }
        let files = Arc::clone(&self.files);
        let read = tokio::task::spawn_blocking(move || files.find(&NamedPaths::default()));
        let read = read.await.map_err(|error| {
            CniError::new(
                Code::Internal,
                format!("the node's files were not read: {error}"),
            )
        })?;
        Ok(read?)
    }

    async fn dispatch(
        &self,
        store: &Store,
        call: &Call,
        conf: &NetConf,
        network: &PodNetwork,
    ) -> Result<String, CniError> {
        match call {
            Call::Add(target) => self.add(store, target, conf, network).await,
            Call::Del(target) => {
                let handle = Handle::new(target.container_id.as_str());
                let freed = del::del(store, network, &handle, target.ifname.as_str()).await?;
                tracing::info!(%handle, ifname = %target.ifname, network = %network.name, ?freed, "DEL");
                Ok(String::new())
            }
            Call::Check(target) => {
                let who = Attachment::of(target, store.in_cluster)?;
                check::check(store, network, &who, conf.prev_result.as_ref()).await?;
                Ok(String::new())
            }
            Call::Gc => {
                let Some(valid) = &conf.valid_attachments else {
                    return Err(CniError::new(
                        Code::Config,
                        "GC needs cni.dev/valid-attachments: without it every address would be freed",
                    ));
                };
                let freed = gc::gc(store, network, valid).await?;
                tracing::info!(network = %network.name, valid = valid.len(), ?freed, "GC");
                Ok(String::new())
            }
            Call::Status => status::status(store, network).await.map(|()| String::new()),
            Call::Version => Ok(version_answer()),
        }
    }

    async fn add(
        &self,
        store: &Store,
        target: &Target,
        conf: &NetConf,
        network: &PodNetwork,
    ) -> Result<String, CniError> {
        let who = Attachment::of(target, store.in_cluster)?;
        refuse_typing_error(network)?;
        if let Some(policies) = &store.policies {
            policies.check(&target.args.pod_namespace, network).await?;
        }
        let _turn = self.owners.hold(who.owner.clone()).await;
        let result = self.allocate(store, &who, network.clone()).await?;
        let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        tracing::info!(owner = %who.owner, handle = %who.handle, network = %network.name, ?addresses, "ADD");
        result.render(conf.version)
    }

    /// Allocates addresses: those of the IPAMClaim that the pod refers to, if it refers to one.
    async fn allocate(
        &self,
        store: &Store,
        who: &Attachment,
        mut network: PodNetwork,
    ) -> Result<IpamResult, PodError> {
        let sticky = store.sticky.as_ref();
        let Some(sticky) = sticky.filter(|_| network.settings.persistent_ips) else {
            return add::add(store, &network, who, &self.host).await;
        };
        let record = who.record(&network.name, &self.host);
        let adoption = sticky::adopt(store, sticky, &mut network, who, &record).await?;
        let result = add::add(store, &network, who, &self.host).await?;
        let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        if let Some(adoption) = adoption
            && let Err(error) = sticky::settle(sticky, &adoption, &addresses).await
        {
            // What a claim does not record is not kept by it: nothing is left behind.
            del::del(store, &network, &who.handle, &who.owner.part).await?;
            return Err(error);
        }
        Ok(result)
    }

    fn warn(&self, network: &PodNetwork) {
        let warnings = network.warnings.iter().chain(&network.unknown_keys);
        for warning in warnings.take(MOST_WARNINGS) {
            let text = format!("network {}: {warning}", network.name);
            let text: String = text.chars().take(LONGEST_WARNING).collect();
            let mut warned = self.warned.lock();
            if warned.len() >= MOST_REMEMBERED {
                warned.clear();
            }
            if warned.insert(text.clone()) {
                tracing::warn!("{text}");
            }
        }
    }
}

/// Why a DEL has nothing to release: no ADD that is like it was ever served. It succeeds, for a runtime would repeat it for
/// ever.
fn nothing_to_release(request: &Request, document: &Result<Value, Unread>) -> Option<&'static str> {
    let environment = &request.environment;
    if environment.is_malformed_del() {
        return Some("a container or an interface whose name is malformed");
    }
    if !matches!(environment.call(), Ok(Call::Del(_))) {
        return None;
    }
    match document {
        Err(why) if why.is_beyond_limits() => {
            Some("a network configuration that is too long or nested too deeply")
        }
        Ok(document) => {
            let name = document["name"].as_str().unwrap_or_default();
            (name.len() > NETWORK_NAME_MAX).then_some("a network whose name is too long")
        }
        Err(_) => None,
    }
}

/// A network without a range allocates no address, as in whereabouts; where a key is unknown, that is the likely cause.
fn refuse_typing_error(network: &PodNetwork) -> Result<(), CniError> {
    let empty = network.ranges.is_empty() && network.addresses.is_empty();
    let Some(unknown) = network.unknown_keys.first().filter(|_| empty) else {
        return Ok(());
    };
    let message = format!("the network has no range and no addresses, and {unknown}");
    Err(CniError::new(Code::Config, message)
        .details("set ipam.range, ipam.ipRanges or ipam.addresses"))
}

/// Whether the configuration's version has the verb.
fn allow(call: &Call, conf: &NetConf) -> Result<(), CniError> {
    let allowed = match call {
        Call::Check(_) => conf.version.allows_check(),
        Call::Gc | Call::Status => conf.version.allows_gc_and_status(),
        _ => true,
    };
    if allowed {
        return Ok(());
    }
    Err(CniError::new(
        Code::IncompatibleVersion,
        format!("cniVersion {} does not have {}", conf.version, call.verb()),
    ))
}
