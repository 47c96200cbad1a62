//! The policy on other nodes: how many apply it now, how many may, and whether one has failed.

use kube::api::ListParams;
use serde_json::Value;

use super::enact;
use super::execute::HandlerError;
use super::phase::Phase;
use super::plan::{Peers, TRIES};
use super::run::Handler;
use crate::objects::{self, NODE_LABEL, POLICY_LABEL};

/// Another node, and how far it is with this generation.
struct Peer {
    node: String,
    phase: Phase,
    tries: u32,
}

impl Handler {
    /// The other nodes' enactments of one generation, by a quorum read.
    async fn peers_of(&self, policy: &str, generation: i64) -> Result<Vec<Peer>, HandlerError> {
        let params = ListParams::default().labels(&format!("{POLICY_LABEL}={policy}"));
        let list = self.ask(self.enactments.list(&params)).await?;
        let peers = list.items.iter().filter_map(|item| {
            let object = objects::value(item);
            let node = objects::label(&object, NODE_LABEL)?.to_owned();
            let status = object.get("status").unwrap_or(&Value::Null);
            let same = status["policyGeneration"].as_i64() == Some(generation);
            (same && node != self.config.node).then(|| Peer {
                node,
                phase: enact::phase(status),
                tries: enact::read(&object).tries,
            })
        });
        Ok(peers.collect())
    }

    pub(super) async fn peers(&self, policy: &Value) -> Result<Peers, HandlerError> {
        let generation = objects::generation(policy);
        let peers = self.peers_of(objects::name(policy), generation).await?;
        let applying = peers.iter().filter(|peer| peer.phase == Phase::Progressing);
        // One that has no free address did not fail to apply: the others are not held up by it.
        let failed = |peer: &&Peer| peer.phase == Phase::Failing && peer.tries >= TRIES;
        Ok(Peers {
            unavailable: applying.count(),
            max_unavailable: self.max_unavailable(policy, peers.len() + 1),
            failed: peers.iter().find(failed).map(|peer| peer.node.clone()),
        })
    }

    /// Upstream's rule: a number or a percentage of the nodes that have the policy, rounded up, at least one.
    fn max_unavailable(&self, policy: &Value, nodes: usize) -> usize {
        max_unavailable(policy.pointer("/spec/maxUnavailable"), nodes)
    }

    /// Whether this node may apply, after its enactment says Progressing. Of the nodes that find too many applying, the one whose name comes
    /// first waits and the others withdraw, so that no two wait for each other.
    pub(super) async fn may_apply(&self, policy: &Value) -> Result<Turn, HandlerError> {
        if is_unlimited(policy) {
            return Ok(Turn::Granted);
        }
        let generation = objects::generation(policy);
        let peers = self.peers_of(objects::name(policy), generation).await?;
        let max = self.max_unavailable(policy, peers.len() + 1);
        let mut applying = peers.iter().filter(|peer| peer.phase == Phase::Progressing);
        if applying.clone().count() < max {
            return Ok(Turn::Granted);
        }
        match applying.any(|peer| peer.node < self.config.node) {
            true => Ok(Turn::GiveWay),
            false => Ok(Turn::Wait),
        }
    }
}

/// Whether this node applies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Granted,
    /// Others will give way.
    Wait,
    GiveWay,
}

/// All nodes may be unavailable at the same time: none waits, and so none is aborted.
pub(super) fn is_unlimited(policy: &Value) -> bool {
    let value = policy.pointer("/spec/maxUnavailable");
    let percent = value
        .and_then(Value::as_str)
        .and_then(|text| text.strip_suffix('%'));
    percent.is_some_and(|number| number.parse().is_ok_and(|percent: usize| percent >= 100))
}

fn max_unavailable(value: Option<&Value>, nodes: usize) -> usize {
    let percent = |percent: usize| (nodes * percent).div_ceil(100);
    let most = match value {
        Some(Value::Number(number)) => number.as_u64().and_then(|n| usize::try_from(n).ok()),
        Some(Value::String(text)) => match text.strip_suffix('%') {
            Some(number) => number.parse().ok().map(percent),
            None => text.parse().ok(),
        },
        _ => None,
    };
    most.unwrap_or_else(|| percent(50)).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn max_unavailable_is_upstreams() {
        for (value, nodes, most) in [
            (None, 3, 2),
            (None, 1, 1),
            (Some(json!(2)), 10, 2),
            (Some(json!("30%")), 10, 3),
            (Some(json!("1%")), 10, 1),
            (Some(json!(0)), 10, 1),
            (Some(json!("x")), 10, 5),
        ] {
            assert_eq!(max_unavailable(value.as_ref(), nodes), most, "{value:?}");
        }
    }
}
