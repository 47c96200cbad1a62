//! Which namespaces may use which ranges: the administrator's RangePolicy. Without one, every namespace may use every
//! range.
//!
//! A daemon follows the object by a watch, so that an ADD needs no read. What no rule allows gets no address; a release
//! is never refused. Until the object was read for the first time, an ADD waits for it for a second and is then served:
//! a node whose API server is away keeps working.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::berth::{RANGE_POLICY, RangePolicy, RangePolicySpec};
use berth_cni::{CniError, Code};
use berth_core::Prefix;
use berth_kube::Connection;
use futures::StreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use rand::RngExt;
use tokio::sync::watch;

use crate::config::PodNetwork;

/// How long an ADD waits for the first read.
const FIRST_READ: Duration = Duration::from_secs(1);
/// How often a cluster without the kind, or without the right to read it, is checked for the object.
const AGAIN: Duration = Duration::from_secs(60);

/// The rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `None`: everything is allowed.
    rules: Option<Vec<Rule>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    namespaces: Vec<String>,
    ranges: Vec<Prefix>,
    node_slices: bool,
}

impl Policy {
    /// A range that can't be read allows nothing.
    pub fn of(spec: &RangePolicySpec) -> Policy {
        let prefix = |text: &String| {
            let read = text.parse().ok();
            if read.is_none() {
                tracing::error!(
                    range = text,
                    "RangePolicy {RANGE_POLICY}: not a CIDR, so it allows nothing; correct it"
                );
            }
            read
        };
        let rule = |rule: &berth_api::berth::RangeRule| Rule {
            namespaces: rule.namespaces.clone(),
            ranges: rule.ranges.iter().filter_map(prefix).collect(),
            node_slices: rule.node_slices,
        };
        Policy {
            rules: Some(spec.rules.iter().map(rule).collect()),
        }
    }

    /// Whether pods or definitions of `namespace` may use the network; else why not.
    pub fn allow(&self, namespace: &str, network: &PodNetwork) -> Result<(), String> {
        let Some(rules) = &self.rules else {
            return Ok(());
        };
        let sliced = network.is_sliced();
        let is_of = |rule: &&Rule| {
            let mut namespaces = rule.namespaces.iter();
            namespaces.any(|one| one == "*" || one == namespace) && (rule.node_slices || !sliced)
        };
        let allowed: Vec<Prefix> = rules
            .iter()
            .filter(is_of)
            .flat_map(|rule| rule.ranges.iter().copied())
            .collect();
        let ranges = network.ranges.iter().map(|range| range.spec.prefix);
        let statics = network
            .addresses
            .iter()
            .filter_map(|one| Prefix::containing(one.address, one.address.family().bits()));
        let mut used = ranges.chain(statics);
        match used.find(|used| !allowed.iter().any(|allowed| allowed.covers(*used))) {
            None => Ok(()),
            Some(refused) => {
                let how = if sliced { " with node slices" } else { "" };
                Err(format!(
                    "namespace {namespace:?} may not use {refused}{how}: no rule of RangePolicy {RANGE_POLICY} allows it"
                ))
            }
        }
    }
}

/// The policy of one cluster.
pub struct Policies {
    api: Api<RangePolicy>,
    timeout: Duration,
    /// `None` until it was read for the first time.
    known: watch::Sender<Option<Arc<Policy>>>,
    /// Whether an ADD has waited for the first read without a result.
    waited: AtomicBool,
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies")
            .field("known", &*self.known.borrow())
            .finish_non_exhaustive()
    }
}

impl Policies {
    pub fn new(connection: &Connection) -> Policies {
        Policies {
            api: Api::namespaced(connection.client.clone(), &connection.namespace),
            timeout: connection.timeout,
            known: watch::Sender::new(None),
            waited: AtomicBool::new(false),
        }
    }

    /// Refuses an ADD that the policy does not allow.
    pub async fn check(&self, namespace: &str, network: &PodNetwork) -> Result<(), CniError> {
        let mut known = self.known.subscribe();
        let limit = match self.waited.load(Ordering::Acquire) {
            true => Duration::ZERO,
            false => FIRST_READ,
        };
        let first = known.wait_for(Option::is_some);
        let policy = match tokio::time::timeout(limit, first).await {
            Ok(Ok(known)) => known.clone().unwrap_or_default(),
            _ => {
                self.waited.store(true, Ordering::Release);
                return Ok(());
            }
        };
        let allowed = policy.allow(namespace, network);
        allowed.map_err(|why| CniError::new(Code::Config, why))
    }

    /// The policy as it was read last; everything is allowed before that.
    pub fn last(&self) -> Arc<Policy> {
        self.known.borrow().clone().unwrap_or_default()
    }

    /// Receives every change.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<Policy>>> {
        self.known.subscribe()
    }

    /// Reads it once, for a process that serves one call. Without the kind or the right to read it, everything is
    /// allowed.
    pub async fn read(&self) -> Result<Arc<Policy>, String> {
        let read = match tokio::time::timeout(self.timeout, self.api.get_opt(RANGE_POLICY)).await {
            Ok(Ok(found)) => found.map(|found| Policy::of(&found.spec)),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => None,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("no answer".to_owned()),
        };
        let policy = Arc::new(read.unwrap_or_default());
        self.known.send_replace(Some(Arc::clone(&policy)));
        Ok(policy)
    }

    /// Follows the object, forever.
    pub async fn follow(&self) {
        loop {
            match self.read_list().await {
                Ok(true) => self.watch().await,
                Ok(false) => {
                    self.known.send_replace(Some(Arc::default()));
                    tokio::time::sleep(self.jittered(AGAIN)).await;
                }
                Err(_) => tokio::time::sleep(self.jittered(Duration::from_secs(5))).await,
            }
        }
    }

    fn jittered(&self, pause: Duration) -> Duration {
        pause.mul_f64(rand::rng().random_range(0.5..1.5))
    }

    /// Whether the kind exists and may be listed: a watch that is not allowed would fail again and again, with log
    /// lines.
    async fn read_list(&self) -> Result<bool, ()> {
        let named = kube::api::ListParams::default().fields(&named()).limit(1);
        match tokio::time::timeout(self.timeout, self.api.list(&named)).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => Ok(false),
            _ => Err(()),
        }
    }

    async fn watch(&self) {
        let config = watcher::Config::default().fields(&named());
        let mut events = watcher(self.api.clone(), config).default_backoff().boxed();
        let mut listed = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed = None,
                Ok(watcher::Event::InitApply(found)) => listed = Some(Policy::of(&found.spec)),
                Ok(watcher::Event::InitDone) => self.learn(listed.take().unwrap_or_default()),
                Ok(watcher::Event::Apply(found)) => self.learn(Policy::of(&found.spec)),
                Ok(watcher::Event::Delete(_)) => self.learn(Policy::default()),
                Err(error) => {
                    // The kind may be gone, or the right: what was read last stays until that is known.
                    tracing::debug!(%error, "the watch of the RangePolicy broke; it is started again");
                    if matches!(self.read_list().await, Ok(false)) {
                        return;
                    }
                }
            }
        }
    }

    fn learn(&self, policy: Policy) {
        self.known.send_replace(Some(Arc::new(policy)));
    }
}

fn named() -> String {
    format!("metadata.name={RANGE_POLICY}")
}

#[cfg(test)]
mod tests {
    use berth_api::berth::RangeRule;
    use berth_cni::{Args, NetConf};
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Found;

    fn mk_network(ipam: Value) -> PodNetwork {
        let mut ipam = ipam;
        ipam["type"] = json!("berth");
        let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam});
        let conf = NetConf::parse(&conf.to_string()).unwrap();
        PodNetwork::read(&conf, &Args::default(), "berth", Found::default()).unwrap()
    }

    fn mk_rule(namespaces: &[&str], ranges: &[&str], node_slices: bool) -> RangeRule {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        RangeRule {
            namespaces: owned(namespaces),
            ranges: owned(ranges),
            node_slices,
        }
    }

    #[test]
    fn a_namespace_uses_what_a_rule_allows_and_nothing_else() {
        let rules = vec![
            mk_rule(&["blue"], &["10.0.0.0/16", "fd00::/48"], false),
            mk_rule(&["green"], &["10.0.0.0/16", "broken/99"], true),
            mk_rule(&["*"], &["192.168.0.0/16"], false),
        ];
        let policy = Policy::of(&RangePolicySpec { rules });
        for (namespace, ipam, allowed) in [
            ("blue", json!({"range": "10.0.3.0/24"}), true),
            ("blue", json!({"range": "10.0.0.0/15"}), false),
            (
                "blue",
                json!({"range": "10.0.3.0/24", "fast_ipam": true}),
                false,
            ),
            (
                "blue",
                json!({"range": "10.0.3.0/24", "node_slice_size": "/26"}),
                false,
            ),
            (
                "green",
                json!({"range": "10.0.3.0/24", "node_slice_size": "/26"}),
                true,
            ),
            ("red", json!({"range": "10.0.3.0/24"}), false),
            ("red", json!({"range": "192.168.3.0/24"}), true),
            (
                "blue",
                json!({"range": "10.0.3.0/24", "ipRanges": [{"range": "fd00:0:0:1::/64"}]}),
                true,
            ),
            (
                "blue",
                json!({"range": "10.0.3.0/24", "ipRanges": [{"range": "fd01::/64"}]}),
                false,
            ),
            (
                "red",
                json!({"addresses": [{"address": "10.0.0.7/24"}]}),
                false,
            ),
            (
                "blue",
                json!({"addresses": [{"address": "10.0.0.7/8"}]}),
                true,
            ),
        ] {
            let network = mk_network(ipam.clone());
            let answer = policy.allow(namespace, &network);
            assert_eq!(answer.is_ok(), allowed, "{namespace} {ipam}: {answer:?}");
            assert!(Policy::default().allow(namespace, &network).is_ok());
        }
        let none = Policy::of(&RangePolicySpec::default());
        assert!(
            none.allow("blue", &mk_network(json!({"range": "10.0.0.0/24"})))
                .is_err()
        );
    }
}
