//! The custom resource ledger on a real API server: the promises of all ledgers, and its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;
use std::time::Duration;

use berth_api::whereabouts::IPPool;
use berth_conformance::{claim, held, mk_address, mk_record, release, write};
use berth_core::{Change, Handle, Owner, Record};
use berth_kube::Connect;
use berth_ledger::{Ledger, LedgerError, PoolKey, Records, SharedRecordLedger, Version};
use berth_testkit::Cluster;
use berth_whereabouts::KubeLedger;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

mod faults;
mod foreign;
mod limits;
mod marks;
mod nodes;
mod refusals;
mod slicepools;
mod slices;
mod turns;
mod whole;

/// The shared cluster with all definitions in it.
async fn cluster() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    READY.get_or_init(|| install(cluster)).await;
    cluster
}

async fn install(cluster: &Cluster) {
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    // The lists of a new kind are refused with 429 until the server's cache has begun.
    let ledger = open(cluster, "default").await;
    for _ in 0..200 {
        match ledger.pools().await {
            Err(error) if error.is_passing() => {
                tokio::time::sleep(Duration::from_millis(100)).await
            }
            listed => {
                listed.unwrap();
                return;
            }
        }
    }
    panic!("the API server does not list the pools after 20 s");
}

fn mk_connect(cluster: &Cluster, namespace: &str) -> Connect {
    Connect {
        kubeconfig: Some(cluster.kubeconfig()),
        namespace: Some(namespace.to_owned()),
        timeout: Duration::from_secs(30),
    }
}

async fn open(cluster: &Cluster, namespace: &str) -> KubeLedger {
    let connect = mk_connect(cluster, namespace);
    KubeLedger::new(connect.open().await.unwrap())
}

fn mk_pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap())
}

/// One pool in a namespace of its own.
struct Bed {
    namespace: String,
    ledger: KubeLedger,
    /// The objects as they are, untyped.
    pools: Api<DynamicObject>,
}

impl Bed {
    async fn new(name: &str) -> Self {
        Self::on(cluster().await, name).await
    }

    async fn on(cluster: &Cluster, name: &str) -> Self {
        let namespace = cluster.namespace(name).await.unwrap();
        let ledger = open(cluster, &namespace).await;
        let kind = kube::core::ApiResource::erase::<IPPool>(&());
        let client = cluster.client().await.unwrap();
        let pools = Api::namespaced_with(client, &namespace, &kind);
        Self {
            namespace,
            ledger,
            pools,
        }
    }

    /// Puts an object there as another program would have.
    async fn plant(&self, name: &str, metadata: Value, spec: Value) {
        let mut object = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
            "kind": "IPPool",
            "metadata": metadata,
            "spec": spec,
        });
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let params = PostParams::default();
        self.pools.create(&params, &object).await.unwrap();
    }

    async fn raw(&self) -> Value {
        let object = self.pools.get(&mk_pool().name).await.unwrap();
        serde_json::to_value(object).unwrap()
    }

    async fn merge(&self, patch: Value) {
        let params = PatchParams::default();
        let name = mk_pool().name;
        let patch = Patch::Merge(patch);
        self.pools.patch(&name, &params, &patch).await.unwrap();
    }

    async fn write(&self, changes: &[Change]) -> Result<Version, LedgerError> {
        write(&self.ledger, &mk_pool(), changes).await
    }

    async fn commit(&self, base: &Version, changes: &[Change]) -> Result<Version, LedgerError> {
        self.ledger.commit(&mk_pool(), base, changes, None).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    all_conform("conforms", |ledger| ledger).await;
}

/// The suite, for ledgers of one namespace that are made with `turned`.
async fn all_conform(name: &str, turned: fn(KubeLedger) -> KubeLedger) {
    let cluster = cluster().await;
    let namespace = cluster.namespace(name).await.unwrap();
    let mut ledgers: Vec<SharedRecordLedger> = Vec::new();
    for _ in 0..4 {
        ledgers.push(Arc::new(turned(open(cluster, &namespace).await)));
    }
    berth_conformance::suite(berth_conformance::Subject::with_records(
        mk_pool(),
        &ledgers,
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_object_is_what_whereabouts_would_have_written() {
    let bed = Bed::new("shape").await;
    bed.write(&[claim(5, "a")]).await.unwrap();
    let typed: IPPool = serde_json::from_value(bed.raw().await).unwrap();
    assert_eq!(typed.spec.range, "10.0.0.0/16");
    let entry = &typed.spec.allocations["5"];
    assert_eq!(
        (
            entry.id.as_str(),
            entry.podref.as_str(),
            entry.ifname.as_str()
        ),
        ("id-a", "default/a", "net1")
    );
    // A holder without an interface has no such field, as whereabouts has it.
    let record = Record::new(Owner::new("default/b", ""), Handle::new("id-b"));
    let bare = Change::Allocate {
        address: mk_address(6),
        record: record.clone(),
    };
    bed.write(&[bare]).await.unwrap();
    assert_eq!(
        bed.raw().await["spec"]["allocations"]["6"],
        json!({ "id": "id-b", "podref": "default/b" })
    );
    let gone = Change::Release {
        address: mk_address(6),
        expected: record,
        cooldown: None,
    };
    bed.write(&[gone, release(5, "a")]).await.unwrap();
    // An empty map stays: without it the next claim would have no place to go.
    assert_eq!(bed.raw().await["spec"]["allocations"], json!({}));
    bed.write(&[claim(5, "again")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_is_created_once_whoever_comes_first() {
    let bed = Bed::new("first").await;
    let absent = bed.ledger.load(&mk_pool()).await.unwrap().version;
    let commit = |n: u32, name: &'static str| {
        let (ledger, absent) = (&bed.ledger, absent.clone());
        async move {
            ledger
                .commit(&mk_pool(), &absent, &[claim(n, name)], None)
                .await
        }
    };
    let (first, second) = tokio::join!(commit(1, "a"), commit(2, "b"));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let refused = first.and(second).unwrap_err();
    assert!(matches!(refused, LedgerError::Conflict { .. }), "{refused}");
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_different_addresses_do_not_disturb_each_other() {
    let bed = Bed::new("apart").await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    let base = bed.ledger.load(&mk_pool()).await.unwrap().version;
    // All of them on the same, older and older, base.
    for n in 2..6 {
        let name = format!("p{n}");
        let version = bed.commit(&base, &[claim(n, &name)]).await.unwrap();
        let stale = n > 2;
        assert_eq!(
            version.is_merged(),
            stale,
            "a commit on a newer state says so"
        );
        let refreshed = bed.ledger.refresh(&mk_pool(), &version).await.unwrap();
        assert_eq!(refreshed.is_some(), stale, "what the caller lacks is shown");
    }
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 5);
    let theft = bed.commit(&base, &[claim(3, "thief")]).await;
    let error = theft.unwrap_err();
    assert!(
        matches!(&error, LedgerError::Conflict { held, .. } if *held == [mk_address(3)]),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_past_the_first_65_bits_are_kept() {
    let bed = Bed::new("wide").await;
    let network = "fd00:1::/32".parse().unwrap();
    let pool = PoolKey::of_network("fd00-1---32", network);
    let changes: Vec<Change> = [
        "fd00:1::1",
        "fd00:1:8000::",
        "fd00:1:ffff:ffff:ffff:ffff:ffff:fffe",
    ]
    .iter()
    .map(|text| Change::Allocate {
        address: text.parse().unwrap(),
        record: mk_record(text),
    })
    .collect();
    write(&bed.ledger, &pool, &changes).await.unwrap();
    let kept = held(&bed.ledger, &pool).await;
    for change in &changes {
        let Change::Allocate { address, record } = change else {
            unreachable!()
        };
        assert!(kept[address].same_holder(record));
    }
    let low = PoolKey::of_network("fd00-1---32", network);
    let release = Change::Release {
        address: "fd00:1:8000::".parse().unwrap(),
        expected: mk_record("fd00:1:8000::"),
        cooldown: None,
    };
    write(&bed.ledger, &low, &[release]).await.unwrap();
    assert_eq!(held(&bed.ledger, &pool).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn field_tracking_ends_with_the_first_patch() {
    let bed = Bed::new("tracking").await;
    let name = "10.1.0.0-16";
    let spec = json!({ "range": "10.1.0.0/16", "allocations": {} });
    bed.plant(name, json!({}), spec).await;
    let tracked = |object: &DynamicObject| object.metadata.managed_fields.is_some();
    assert!(tracked(&bed.pools.get(name).await.unwrap()));
    let pool = PoolKey::of_network(name, "10.1.0.0/16".parse().unwrap());
    for n in 1..3 {
        let change = Change::Allocate {
            address: pool.network.unwrap().network().plus(n).unwrap(),
            record: mk_record(&format!("p{n}")),
        };
        write(&bed.ledger, &pool, &[change]).await.unwrap();
        assert!(!tracked(&bed.pools.get(name).await.unwrap()));
    }
    // An object that Berth makes is tracked until its second commit: a CREATE can't say otherwise.
    for (n, expected) in [(1, true), (2, false), (3, false)] {
        bed.write(&[claim(n, &format!("p{n}"))]).await.unwrap();
        let now = bed.pools.get(&mk_pool().name).await.unwrap();
        assert_eq!(tracked(&now), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_an_address_that_was_put_to_rest_meanwhile() {
    let bed = Bed::new("resting").await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    let base = bed.ledger.load(&mk_pool()).await.unwrap().version;
    let to_rest = put_to_rest(2, "b");
    bed.write(&[claim(2, "b"), to_rest]).await.unwrap();
    // The base knows nothing of it: 2 was free and fresh.
    let early = bed.commit(&base, &[claim(2, "c")]).await;
    assert!(
        matches!(&early, Err(LedgerError::Conflict { held, .. }) if *held == [mk_address(2)]),
        "{early:?} (I10)"
    );
    // Its last owner may have it, and other addresses are no concern of it.
    let version = bed.commit(&base, &[claim(3, "d")]).await;
    assert!(version.unwrap().is_merged());
    bed.commit(&base, &[claim(2, "b")]).await.unwrap();
    let annotations = &bed.raw().await["metadata"]["annotations"];
    assert_eq!(annotations.get("berth.dev/resting"), None, "{annotations}");
}

/// A release after which the address cools down for ten minutes.
fn put_to_rest(n: u32, name: &str) -> Change {
    let now = jiff_now();
    let cooldown = berth_core::Cooldown {
        since: now,
        until: now.plus(Duration::from_secs(600)),
        owner: mk_record(name).owner,
    };
    Change::Release {
        address: mk_address(n),
        expected: mk_record(name),
        cooldown: Some(cooldown),
    }
}

fn jiff_now() -> berth_core::Moment {
    let millis = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    berth_core::Moment(u64::try_from(millis).unwrap())
}
