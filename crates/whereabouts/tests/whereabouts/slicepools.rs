//! How a table of assignments is written: a few rows as single steps, and the whole of it where those are refused.

use std::collections::BTreeSet;

use berth_core::dialect::WHEREABOUTS;
use berth_core::slice::assigned::Assignments;
use berth_core::slice::{Cut, NodeName};
use berth_core::{RangeSpec, Space};
use berth_testkit::{Fate, FaultProxy};
use berth_whereabouts::slicepools::{Marks, SlicePool, SlicePools};

use super::*;

const RANGE: &str = "10.0.0.0/20";
const STEPS: &str = "application/json-patch+json";
const WHOLE: &str = "application/merge-patch+json";

/// A table of 256 slices, of which these nodes have one each.
fn mk_table(nodes: &[&str]) -> SlicePool {
    let mut table = Assignments::new(Cut::new(RANGE.parse().unwrap(), 28).unwrap());
    let spec = RangeSpec::parse(RANGE).unwrap();
    let space = Space::build(&spec, WHEREABOUTS).unwrap().0;
    let nodes: BTreeSet<NodeName> = nodes.iter().map(|name| NodeName::new(*name)).collect();
    table.assign(&nodes, &[&space]);
    let marks = Marks {
        networks: vec!["ns/net".into()],
        ..Marks::default()
    };
    SlicePool {
        table,
        size_text: "/28".into(),
        marks,
    }
}

struct Tables {
    relay: FaultProxy,
    /// By way of the relay, and straight.
    here: SlicePools,
    there: SlicePools,
}

impl Tables {
    async fn new(name: &str) -> Self {
        let cluster = cluster().await;
        let namespace = cluster.namespace(name).await.unwrap();
        let relay = FaultProxy::new(cluster).await.unwrap();
        let straight = mk_connect(cluster, &namespace);
        let relayed = Connect {
            kubeconfig: Some(relay.kubeconfig()),
            ..straight.clone()
        };
        Self {
            relay,
            here: SlicePools::new(&relayed.open().await.unwrap()),
            there: SlicePools::new(&straight.open().await.unwrap()),
        }
    }

    /// Format and answer of every patch so far.
    fn patches(&self) -> Vec<(String, u16)> {
        let seen = self.relay.seen().into_iter();
        let patches = seen.filter(|(asked, _)| asked.method == "PATCH");
        patches
            .map(|(asked, code)| (asked.format, code.unwrap_or_default()))
            .collect()
    }

    fn refuse_steps(&self, code: u16) {
        self.relay.rule(move |asked| match asked.format.as_str() {
            STEPS => Fate::Refuse {
                code,
                retry_after: None,
            },
            _ => Fate::Pass,
        });
    }
}

fn told(patches: &[(&str, u16)]) -> Vec<(String, u16)> {
    let one = |(format, code): &(&str, u16)| ((*format).to_owned(), *code);
    patches.iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_more_is_written_in_steps_and_as_a_whole_where_those_are_refused() {
    let tables = Tables::new("steps").await;
    let first = mk_table(&["a"]);
    let mut stored = tables.here.write("net", None, &first).await.unwrap();
    assert_eq!(tables.patches(), []);
    let mut expected = Vec::new();
    // Each goes onto what the one before has left; what was refused has left nothing.
    for (count, refused) in [(2, None), (3, Some(422)), (4, Some(413)), (5, None)] {
        match refused {
            Some(code) => {
                tables.refuse_steps(code);
                expected.extend(told(&[(STEPS, code), (WHOLE, 200)]));
            }
            None => {
                tables.relay.rule(|_| Fate::Pass);
                expected.extend(told(&[(STEPS, 200)]));
            }
        }
        let pool = mk_table(&["a", "b", "c", "d", "e"][..count]);
        let written = tables.here.write("net", Some(&stored), &pool).await;
        stored = written.unwrap();
        assert_eq!(tables.patches(), expected, "{count} nodes");
        let now = tables.there.load("net").await.unwrap().unwrap();
        assert_eq!(now.pool, pool);
        assert_eq!(
            now.versions(),
            stored.versions(),
            "the next one goes onto it"
        );
    }
}

/// Whoever planned on an older table writes nothing, in either way.
#[tokio::test(flavor = "multi_thread")]
async fn steps_onto_another_version_are_a_conflict() {
    let tables = Tables::new("stale").await;
    let first = tables.there.write("net", None, &mk_table(&["a"])).await;
    let first = first.unwrap();
    let theirs = mk_table(&["a", "z"]);
    tables
        .there
        .write("net", Some(&first), &theirs)
        .await
        .unwrap();
    let ours = mk_table(&["a", "b"]);
    let refused = tables.here.write("net", Some(&first), &ours).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, LedgerError::Conflict { .. }), "{refused}");
    assert_eq!(tables.patches(), told(&[(STEPS, 422), (WHOLE, 409)]));
    let now = tables.there.load("net").await.unwrap().unwrap();
    assert_eq!(now.pool, theirs);
}

/// Another refusal is no reason to send a table of thousands.
#[tokio::test(flavor = "multi_thread")]
async fn steps_that_a_busy_server_refuses_are_not_sent_as_a_whole() {
    let tables = Tables::new("refused").await;
    let first = tables.here.write("net", None, &mk_table(&["a"])).await;
    tables.refuse_steps(429);
    let more = mk_table(&["a", "b"]);
    let refused = tables.here.write("net", Some(&first.unwrap()), &more).await;
    assert!(refused.unwrap_err().is_passing());
    assert_eq!(tables.patches(), told(&[(STEPS, 429)]));
}

/// A range that grows downwards gives its slices other places, on other pages. Whoever is stopped in between has lost none.
#[tokio::test(flavor = "multi_thread")]
async fn what_moves_to_another_page_is_there_before_it_leaves_its_own() {
    let tables = Tables::new("moves").await;
    let cut = |range: &str| Cut::new(range.parse().unwrap(), 24).unwrap();
    let mut table = Assignments::new(cut("10.128.0.0/10"));
    for (slice, node) in [("10.128.0.0/24", "a"), ("10.160.0.0/24", "b")] {
        let slice = slice.parse().unwrap();
        table.restore(slice, NodeName::new(node)).unwrap();
    }
    let first = SlicePool {
        table,
        size_text: "/24".into(),
        ..mk_table(&[])
    };
    let more = SlicePool {
        table: first.table.recut(cut("10.0.0.0/8")).table,
        ..first.clone()
    };
    let stored = tables.there.write("net", None, &first).await.unwrap();
    for refused in ["net--p5", "net--p4"] {
        tables.relay.rule(move |asked| {
            let made = asked.body["metadata"]["name"].as_str();
            match asked.method == "POST" && made == Some(refused) {
                true => Fate::Refuse {
                    code: 503,
                    retry_after: None,
                },
                false => Fate::Pass,
            }
        });
        let written = tables.here.write("net", Some(&stored), &more).await;
        assert!(written.is_err(), "{refused}");
        let now = tables.there.load("net").await.unwrap().unwrap();
        assert_eq!(now.pool, first, "{refused}");
    }
    let now = tables.there.load("net").await.unwrap();
    let written = tables.there.write("net", now.as_ref(), &more).await;
    assert_eq!(written.unwrap().pool, more);
    let now = tables.there.load("net").await.unwrap().unwrap();
    assert_eq!(now.pool, more);
    let pages: Vec<u128> = now.versions().into_keys().collect();
    assert_eq!(pages, [0, 4, 5]);
}
