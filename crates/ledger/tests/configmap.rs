//! The ConfigMap ledger on a real API server: what is written, what is refused, what survives a
//! server that goes away.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::{Address, Change, Handle, Owner, Pool, Record};
use berth_ledger::configmap::{ConfigMapLedger, Document, STATE_KEY, attribute};
use berth_ledger::{Ledger, LedgerError, PoolKey, SharedLedger};
use berth_testkit::{Cluster, Part, TestConfigMap};
use futures::StreamExt;
use kube::api::{DeleteParams, Patch, PatchParams};

const NAME: &str = "byom-ip-pool-state";

struct Bench {
    sheet: TestConfigMap,
    ledger: ConfigMapLedger,
    key: PoolKey,
}

impl Bench {
    async fn new() -> Self {
        Self::on(Cluster::shared().await).await
    }

    async fn on(cluster: &Cluster) -> Self {
        let sheet = TestConfigMap::new(cluster, "vms", NAME).await.unwrap();
        Self {
            ledger: ConfigMapLedger::new(
                sheet.client.clone(),
                &sheet.namespace,
                Duration::from_secs(10),
            ),
            sheet,
            key: PoolKey::named(NAME),
        }
    }

    fn members(&self, ips: &[&str]) {
        let ips: Vec<Address> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.ledger.set_members(&self.key, &ips);
    }

    /// A state as another program would have written it.
    async fn write(&self, text: &str) {
        let notes = ("notes", "of another program");
        self.sheet.write(&[(STATE_KEY, text), notes]).await.unwrap();
    }

    async fn data(&self) -> BTreeMap<String, String> {
        self.sheet.data().await.unwrap()
    }

    async fn document(&self) -> Document {
        Document::decode(&self.data().await[STATE_KEY]).unwrap()
    }

    async fn pool(&self) -> Pool {
        self.ledger.load(&self.key).await.unwrap().pool
    }

    async fn commit(&self, changes: &[Change]) -> Result<(), LedgerError> {
        let base = self.ledger.load(&self.key).await?.version;
        self.ledger
            .commit(&self.key, &base, changes, None)
            .await
            .map(|_| ())
    }
}

fn record(id: &str) -> Record {
    Record::new(Owner::new(id, ""), Handle::new(id)).with(attribute::NODE, "worker")
}

fn claim(id: &str, ip: &str) -> Change {
    Change::Allocate {
        address: ip.parse().unwrap(),
        record: record(id),
    }
}

fn release(id: &str, ip: &str) -> Change {
    Change::Release {
        address: ip.parse().unwrap(),
        expected: record(id),
        cooldown: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let bench = Bench::new().await;
    let client = Cluster::shared().await.client().await.unwrap();
    let other = ConfigMapLedger::new(client, &bench.sheet.namespace, Duration::from_secs(10));
    let pool = PoolKey::of_network("conforming", "10.0.0.0/16".parse().unwrap());
    let ledgers: Vec<SharedLedger> = vec![Arc::new(bench.ledger), Arc::new(other)];
    berth_conformance::suite(berth_conformance::Subject {
        cooldowns: false,
        ..berth_conformance::Subject::new(pool, ledgers)
    })
    .await;
}

#[tokio::test]
async fn the_first_write_creates_the_state_with_its_labels() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2"]);
    let snapshot = bench.ledger.load(&bench.key).await.unwrap();
    assert_eq!(snapshot.pool.listing().unwrap().len(), 2);
    assert!(
        bench.sheet.api.get_opt(NAME).await.unwrap().is_none(),
        "a read writes nothing"
    );

    bench.commit(&[claim("a", "10.0.0.2")]).await.unwrap();
    let object = bench.sheet.api.get(NAME).await.unwrap();
    let labels = object.metadata.labels.unwrap();
    assert_eq!(labels["app.kubernetes.io/name"], "cloud-api-adaptor");
    assert_eq!(labels["app.kubernetes.io/component"], "byom-ip-pool-state");
    let document = bench.document().await;
    assert_eq!(document.available, ["10.0.0.1"]);
    assert_eq!(document.version, 1);
    assert!(document.last_updated.is_some());
    let pools = bench.ledger.pools().await.unwrap();
    assert_eq!(pools, std::slice::from_ref(&bench.key));
}

#[tokio::test]
async fn two_that_create_at_once_both_succeed() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2"]);
    let client = Cluster::shared().await.client().await.unwrap();
    let other = ConfigMapLedger::new(client, &bench.sheet.namespace, Duration::from_secs(10));
    // Both read that there is nothing yet.
    let base = bench.ledger.load(&bench.key).await.unwrap().version;
    let base_too = other.load(&bench.key).await.unwrap().version;
    other
        .commit(&bench.key, &base_too, &[claim("b", "10.0.0.2")], None)
        .await
        .unwrap();
    bench
        .ledger
        .commit(&bench.key, &base, &[claim("a", "10.0.0.1")], None)
        .await
        .unwrap();
    let document = bench.document().await;
    assert_eq!(document.allocated.len(), 2);
    assert_eq!(document.version, 2);
}

#[tokio::test]
async fn a_stale_writer_never_erases_another() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    let client = Cluster::shared().await.client().await.unwrap();
    let other = ConfigMapLedger::new(client, &bench.sheet.namespace, Duration::from_secs(10));
    bench.commit(&[claim("a", "10.0.0.1")]).await.unwrap();
    let stale = bench.ledger.load(&bench.key).await.unwrap().version;
    let fresh = other.load(&bench.key).await.unwrap().version;
    other
        .commit(&bench.key, &fresh, &[claim("b", "10.0.0.2")], None)
        .await
        .unwrap();

    // Another address: both succeed, without planning again.
    let change = [claim("c", "10.0.0.3")];
    let rebased = bench
        .ledger
        .commit(&bench.key, &stale, &change, None)
        .await
        .unwrap();
    let pool = bench.pool().await;
    assert_eq!(pool.len(), 3);
    // A copy that never saw the other's change does not count as fresh.
    let (fresh, stale_still) = (
        bench.ledger.load(&bench.key).await.unwrap().version,
        rebased,
    );
    let newer = bench
        .ledger
        .refresh(&bench.key, &stale_still)
        .await
        .unwrap();
    assert_eq!(newer.map(|newer| newer.version), Some(fresh.clone()));
    assert!(
        bench
            .ledger
            .refresh(&bench.key, &fresh)
            .await
            .unwrap()
            .is_none()
    );
    // The same address: the second is told.
    let conflict = bench
        .ledger
        .commit(&bench.key, &stale, &[claim("d", "10.0.0.2")], None)
        .await;
    assert!(
        matches!(&conflict, Err(LedgerError::Conflict { held, .. })
        if held == &["10.0.0.2".parse().unwrap()]),
        "{conflict:?}"
    );
    // Another's allocation is not freed (I6), and of several changes none is made.
    let both = [release("a", "10.0.0.1"), release("a", "10.0.0.2")];
    let refused = bench.ledger.commit(&bench.key, &stale, &both, None).await;
    assert!(
        matches!(refused, Err(LedgerError::Conflict { .. })),
        "{refused:?}"
    );
    assert_eq!(bench.pool().await.len(), 3);
}

#[tokio::test]
async fn what_others_wrote_is_kept() {
    let bench = Bench::new().await;
    bench.members(&["172.18.0.4", "172.18.0.5"]);
    bench
        .write(
            r#"{"allocatedIPs": null, "availableIPs": ["172.18.0.5", "9.9.9.9"], "version": 41,
                "lastUpdated": "2026-04-23T09:56:00Z", "owner": {"team": "a<b"}}"#,
        )
        .await;
    bench
        .commit(&[claim("nginx-1", "172.18.0.5")])
        .await
        .unwrap();
    let data = bench.data().await;
    assert_eq!(data["notes"], "of another program");
    let document = bench.document().await;
    assert_eq!(document.version, 42);
    assert_eq!(document.available, ["9.9.9.9", "172.18.0.4"]);
    assert_eq!(document.others["owner"]["team"], "a<b");
    assert!(
        data[STATE_KEY].contains("\"a\\u003cb\""),
        "{}",
        data[STATE_KEY]
    );
}

#[tokio::test]
async fn a_state_that_can_not_be_read_is_left_until_it_is_set_aside() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    let broken = r#"{"allocatedIPs":{"a":{"allocationID":"a","ip":"10.0.0.1"}},"availableIPs":["10.0.0.2"],"version":oops}"#;
    bench.write(broken).await;
    let refused = bench.ledger.load(&bench.key).await;
    assert!(
        matches!(&refused, Err(LedgerError::Unreadable { .. })),
        "{refused:?}"
    );
    assert!(bench.ledger.repair(&bench.key).await.is_err());
    assert_eq!(
        bench.data().await[STATE_KEY],
        broken,
        "nothing was written (I5)"
    );

    let salvage = bench.ledger.set_aside(&bench.key).await.unwrap().unwrap();
    assert_eq!(salvage.allocations, 1);
    let data = bench.data().await;
    let aside: Vec<_> = data
        .iter()
        .filter(|(key, _)| key.contains("unreadable"))
        .collect();
    assert_eq!(aside.len(), 1);
    assert_eq!(aside[0].1, broken, "never destroyed");
    let document = bench.document().await;
    assert_eq!(document.available, ["10.0.0.2"]);
    assert_eq!(document.allocated["a"].ip, "10.0.0.1");
    assert_eq!(document.allocated["unreadable-10.0.0.3"].ip, "10.0.0.3");
    assert!(bench.ledger.set_aside(&bench.key).await.unwrap().is_none());
}

#[tokio::test]
async fn a_state_that_vanishes_is_not_an_empty_pool() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2"]);
    bench.commit(&[claim("a", "10.0.0.1")]).await.unwrap();
    bench
        .sheet
        .api
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
    let gone = bench.ledger.load(&bench.key).await;
    assert!(
        matches!(&gone, Err(LedgerError::Unreadable { .. })),
        "{gone:?}"
    );
    assert!(
        gone.unwrap_err()
            .to_string()
            .contains("1 allocations were in it")
    );
    assert!(bench.ledger.repair(&bench.key).await.is_err());
    assert!(bench.sheet.api.get_opt(NAME).await.unwrap().is_none());
}

#[tokio::test]
async fn a_state_over_one_mebibyte_is_refused_before_it_is_sent() {
    let bench = Bench::new().await;
    let ips: Vec<String> = (0..4096)
        .map(|n| format!("10.1.{}.{}", n / 256, n % 256))
        .collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    bench.members(&ips);
    let changes = |ips: &[&str]| -> Vec<Change> {
        let named = ips.iter().map(|ip| {
            let id = format!(
                "a-pod-with-a-name-of-usual-length-{ip}-{}",
                "0123456789abcdef".repeat(4)
            );
            claim(&id, ip)
        });
        named.collect()
    };
    bench.commit(&changes(&ips[..1500])).await.unwrap();
    let before = bench.data().await;
    let refused = bench.commit(&changes(&ips[1500..])).await.unwrap_err();
    assert!(
        matches!(
            refused,
            LedgerError::Full {
                limit: 1_048_576,
                ..
            }
        ),
        "{refused}"
    );
    assert!(refused.to_string().contains("several pools"), "{refused}");
    assert_eq!(bench.data().await, before);

    // The server's own limit is the same: what Berth lets through, it takes.
    let room = 1_048_576 - before.values().map(String::len).sum::<usize>();
    let fill = serde_json::json!({ "data": { "fill": "x".repeat(room - 2000) } });
    let params = PatchParams::default();
    bench
        .sheet
        .api
        .patch(NAME, &params, &Patch::Merge(&fill))
        .await
        .unwrap();
    // A claim leaves room for the quarantine of all entries, which then has it.
    let refused = bench.commit(&changes(&ips[2000..2001])).await.unwrap_err();
    assert!(matches!(refused, LedgerError::Full { .. }), "{refused}");
    let id = changes(&ips[..1])[0].clone();
    let Change::Allocate { address, record } = id else {
        panic!("{id:?}");
    };
    let quarantined = Change::Update {
        address,
        expected: record.clone(),
        record: record.with("cleanupError", "x".repeat(1900)),
    };
    bench.commit(&[quarantined]).await.unwrap();
}

#[tokio::test]
async fn a_watch_shows_what_others_do() {
    let bench = Bench::new().await;
    bench.members(&["10.0.0.1", "10.0.0.2"]);
    bench.commit(&[claim("a", "10.0.0.1")]).await.unwrap();
    let first = bench.ledger.load(&bench.key).await.unwrap().version;
    let mut versions = bench.ledger.watch_versions(&bench.key).await.unwrap();
    assert_eq!(versions.next().await.unwrap().unwrap(), first);
    bench.commit(&[claim("b", "10.0.0.2")]).await.unwrap();
    let second = versions.next().await.unwrap().unwrap();
    assert_eq!(second.order(&first), Some(std::cmp::Ordering::Greater));
}

#[tokio::test]
async fn a_server_that_goes_away_resets_nothing() {
    let cluster = Cluster::start().await.unwrap();
    let bench = Bench::on(&cluster).await;
    bench.members(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    bench.commit(&[claim("a", "10.0.0.1")]).await.unwrap();
    let base = bench.ledger.load(&bench.key).await.unwrap().version;

    cluster.kill(Part::ApiServer).unwrap();
    let away = bench.ledger.load(&bench.key).await.unwrap_err();
    assert!(matches!(away, LedgerError::Unavailable { .. }), "{away:?}");
    assert!(bench.ledger.repair(&bench.key).await.is_err());
    let unknown = bench
        .ledger
        .commit(&bench.key, &base, &[claim("b", "10.0.0.2")], None)
        .await;
    let unknown = unknown.unwrap_err();
    assert!(
        unknown.is_passing() || unknown.needs_reload(),
        "{unknown:?}"
    );

    cluster.restart(Part::ApiServer).await.unwrap();
    let pool = bench.pool().await;
    assert_eq!(pool.len(), 1);
    bench.commit(&[claim("b", "10.0.0.2")]).await.unwrap();

    // The server takes the write and its answer is lost: not known is not failed.
    let base = bench.ledger.load(&bench.key).await.unwrap().version;
    let client = cluster.client().await.unwrap();
    let hasty = ConfigMapLedger::new(client, &bench.sheet.namespace, Duration::from_millis(300));
    hasty.load(&bench.key).await.unwrap();
    cluster.pause(Part::Etcd).unwrap();
    let unknown = hasty
        .commit(&bench.key, &base, &[claim("c", "10.0.0.3")], None)
        .await;
    cluster.resume(Part::Etcd).unwrap();
    assert!(
        matches!(unknown, Err(LedgerError::Uncertain { .. })),
        "{unknown:?}"
    );
}
