//! The object ledger with a codec of the tests' own, on a real API server: the promises of all ledgers, and its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;
use std::time::Duration;

use berth_conformance::{claim, held, mk_address, mk_record, release, write};
use berth_core::{Change, Cooldown};
use berth_kube::{Connect, ObjectClient, Selection};
use berth_ledger::object::{WriteAs, now};
use berth_ledger::{
    Contention, Ledger, LedgerError, ObjectLedger, PoolKey, Rejection, SharedLedger, Version,
};
use berth_testkit::{Cluster, Fate, FaultProxy};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use shelf::{SHELVES, Shelves};
use tokio::sync::OnceCell;

mod shelf;

/// The shared cluster with the kind in it.
async fn cluster() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    READY.get_or_init(|| install(cluster)).await;
    cluster
}

async fn install(cluster: &Cluster) {
    cluster.apply_object(shelf::definition()).await.unwrap();
    // A new kind is refused until the server serves it: 404, then 429.
    let ledger = open(&cluster.kubeconfig(), Shelves::default()).await;
    for _ in 0..200 {
        if ledger.pools().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the API server does not list the kind after 20 s");
}

async fn open(kubeconfig: &std::path::Path, codec: Shelves) -> ObjectLedger<Shelves> {
    let connect = Connect {
        kubeconfig: Some(kubeconfig.to_owned()),
        namespace: Some("default".to_owned()),
        timeout: Duration::from_secs(30),
    };
    ObjectLedger::new(&connect.open().await.unwrap(), codec)
}

/// One object of the kind, and a ledger whose requests are seen.
struct Bed {
    pool: PoolKey,
    relay: FaultProxy,
    ledger: ObjectLedger<Shelves>,
    objects: Api<DynamicObject>,
}

impl Bed {
    async fn new(name: &str) -> Self {
        Self::with(name, Shelves::default()).await
    }

    async fn with(name: &str, codec: Shelves) -> Self {
        let cluster = cluster().await;
        let relay = FaultProxy::new(cluster).await.unwrap();
        let kind = ApiResource {
            group: SHELVES.group.into(),
            version: SHELVES.version.into(),
            api_version: SHELVES.api_version(),
            kind: SHELVES.kind.into(),
            plural: SHELVES.plural.into(),
        };
        let bed = Self {
            pool: PoolKey::of_network(name, "10.0.0.0/16".parse().unwrap()),
            ledger: open(&relay.kubeconfig(), codec).await,
            objects: Api::all_with(cluster.client().await.unwrap(), &kind),
            relay,
        };
        bed.plant().await;
        bed
    }

    /// The object, as a person creates it.
    async fn plant(&self) {
        let object = json!({
            "apiVersion": SHELVES.api_version(),
            "kind": SHELVES.kind,
            "metadata": { "name": self.pool.name, "labels": { "team": "net" } },
            "spec": { "range": "10.0.0.0/16", "note": "kept" },
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let params = PostParams::default();
        self.objects.create(&params, &object).await.unwrap();
    }

    async fn base(&self) -> Version {
        self.ledger.load(&self.pool).await.unwrap().version
    }

    async fn commit(&self, base: &Version, change: Change) -> Result<Version, LedgerError> {
        self.ledger.commit(&self.pool, base, &[change], None).await
    }

    async fn raw(&self) -> Value {
        let object = self.objects.get(&self.pool.name).await.unwrap();
        serde_json::to_value(object).unwrap()
    }

    async fn merge(&self, patch: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.objects.patch(&self.pool.name, &params, &patch);
        patched.await.unwrap();
    }

    async fn merge_status(&self, patch: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let objects = &self.objects;
        let patched = objects.patch_status(&self.pool.name, &params, &patch);
        patched.await.unwrap();
    }

    async fn held(&self) -> usize {
        held(&self.ledger, &self.pool).await.len()
    }

    /// What was asked since the first `from` requests: `PUT 200`, for instance.
    fn asked(&self, from: usize) -> Vec<String> {
        let seen = self.relay.seen().into_iter().skip(from);
        seen.map(|(asked, code)| format!("{} {}", asked.method, code.unwrap_or_default()))
            .collect()
    }
}

fn is_conflict(outcome: Result<Version, LedgerError>) {
    let refused = outcome.unwrap_err();
    assert!(
        matches!(refused, LedgerError::Conflict { .. }),
        "{refused:?}"
    );
}

async fn conforms(name: &str, write_as: WriteAs) {
    let cluster = cluster().await;
    let codec = Shelves {
        creates: true,
        write_as,
        ..Shelves::default()
    };
    let mut ledgers: Vec<SharedLedger> = Vec::new();
    for _ in 0..4 {
        ledgers.push(Arc::new(open(&cluster.kubeconfig(), codec).await));
    }
    let pool = PoolKey::of_network(name, "10.0.0.0/16".parse().unwrap());
    berth_conformance::suite(berth_conformance::Subject::new(pool, ledgers)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_objects_written_whole() {
    conforms("conforms-replace", WriteAs::Replace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_merge_patches() {
    conforms("conforms-merge", WriteAs::MergePatch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_and_counter_are_in_the_status_and_all_else_stays() {
    let bed = Bed::new("status").await;
    bed.merge_status(json!({ "status": { "conditions": ["theirs"] } }))
        .await;
    let before = bed.raw().await;
    let base = bed.base().await;
    let first = bed.commit(&base, claim(1, "a")).await.unwrap();
    let requests = bed.relay.seen().len();
    let second = bed.commit(&first, claim(2, "b")).await.unwrap();
    assert_eq!(
        bed.asked(requests),
        ["PUT 200"],
        "what was seen is not read"
    );
    bed.commit(&second, release(1, "a")).await.unwrap();
    let after = bed.raw().await;
    let entry = json!({ "owner": "default/b", "part": "net1", "handle": "id-b" });
    assert_eq!(
        after["status"],
        json!({ "entries": { "10.0.0.2": entry }, "used": 1, "conditions": ["theirs"] })
    );
    assert_eq!(after["spec"], before["spec"]);
    let (now, then) = (&after["metadata"], &before["metadata"]);
    assert_eq!(
        (&now["generation"], &now["labels"]),
        (&then["generation"], &then["labels"])
    );
    assert!(
        now["managedFields"].is_array(),
        "tracking is not ended unasked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_pool_is_an_error_where_people_create_them() {
    let bed = Bed::new("present").await;
    let absent = PoolKey::named("not-there");
    let changes = [claim(1, "a")];
    for refused in [
        bed.ledger.load(&absent).await.err(),
        bed.ledger.peek(&absent).await.err(),
        bed.ledger
            .commit(&absent, &Version::absent(), &changes, None)
            .await
            .err(),
        bed.ledger
            .commit(&absent, &Version::default(), &changes, None)
            .await
            .err(),
    ] {
        let refused = refused.unwrap();
        let text = refused.to_string();
        let LedgerError::Rejected { rejection, .. } = refused else {
            panic!("{text}");
        };
        assert!(matches!(rejection, Rejection::Missing(_)), "{text}");
        assert!(text.contains("Shelf not-there"), "{text}");
        assert!(text.contains("create the Shelf"), "{text}");
    }
    assert!(!bed.ledger.exists(&absent).await.unwrap());
    assert!(bed.ledger.exists(&bed.pool).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_grew_or_was_made_again_in_between_is_a_conflict() {
    let bed = Bed::new("guarded").await;
    let base = bed.base().await;
    bed.merge(json!({ "spec": { "range": "10.0.0.0/15" } }))
        .await;
    is_conflict(bed.commit(&base, claim(1, "a")).await);
    let base = bed.base().await;
    let base = bed.commit(&base, claim(1, "a")).await.unwrap();

    let params = kube::api::DeleteParams::default();
    bed.objects.delete(&bed.pool.name, &params).await.unwrap();
    is_conflict(bed.commit(&base, claim(2, "b")).await);
    bed.plant().await;
    is_conflict(bed.commit(&base, claim(2, "b")).await);
    assert_eq!(bed.held().await, 0);
    let base = bed.base().await;
    bed.commit(&base, claim(2, "b")).await.unwrap();
    assert_eq!(bed.held().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_of_other_addresses_costs_a_read_and_loses_nothing() {
    let bed = Bed::new("merged").await;
    let base = bed.base().await;
    let entry = json!({ "owner": "default/x", "part": "", "handle": "x", "theirs": 1 });
    let status = json!({ "entries": { "10.0.0.7": entry } });
    bed.merge_status(json!({ "status": status })).await;
    bed.merge(json!({ "metadata": { "annotations": { "theirs": "set" } } }))
        .await;
    let requests = bed.relay.seen().len();
    let version = bed.commit(&base, claim(1, "a")).await.unwrap();
    assert!(version.is_merged(), "the caller lacks what they wrote");
    assert_eq!(bed.asked(requests), ["PUT 409", "GET 200", "PUT 200"]);
    let now = bed.raw().await;
    assert_eq!(now["status"]["entries"]["10.0.0.7"], entry);
    assert_eq!(now["metadata"]["annotations"]["theirs"], "set");
    assert_eq!((bed.held().await, &now["status"]["used"]), (2, &json!(2)));
    is_conflict(bed.commit(&base, claim(7, "thief")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_neither_success_nor_failure() {
    let bed = Bed::new("lost").await;
    let base = bed.base().await;
    bed.relay.rule(|asked| match asked.method.as_str() {
        "PUT" => Fate::Lose,
        _ => Fate::Pass,
    });
    let lost = bed.commit(&base, claim(1, "a")).await.unwrap_err();
    assert!(matches!(lost, LedgerError::Uncertain { .. }), "{lost}");
    bed.relay.rule(|_| Fate::Pass);
    // It was carried out: planned again on what is there, it is not made twice.
    is_conflict(bed.commit(&base, claim(1, "a")).await);
    assert_eq!(bed.held().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_says_when_to_come_back() {
    let bed = Bed::new("busy").await;
    let base = bed.base().await;
    bed.relay.rule(|_| Fate::Refuse {
        code: 429,
        retry_after: Some(7),
    });
    let busy = bed.commit(&base, claim(1, "a")).await.unwrap_err();
    let LedgerError::Unavailable { retry_after, .. } = busy else {
        panic!("{busy}");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_read_or_kept_is_refused_and_stays() {
    let codec = Shelves {
        limit: 2_600,
        ..Shelves::default()
    };
    let bed = Bed::with("refused", codec).await;
    let base = bed.base().await;
    let outside = Change::Allocate {
        address: "10.9.0.1".parse().unwrap(),
        record: mk_record("a"),
    };
    let refused = bed.commit(&base, outside).await.unwrap_err().to_string();
    assert!(refused.contains("outside of 10.0.0.0/16"), "{refused}");

    let mut full = None;
    for n in 1..100 {
        let (change, base) = (claim(n, &format!("p{n}")), bed.base().await);
        let changes = [change];
        let fits = bed.ledger.has_room(&bed.pool, &changes).is_ok();
        match bed.ledger.commit(&bed.pool, &base, &changes, None).await {
            Ok(_) => assert!(fits, "the {n}th has room"),
            Err(error) => {
                full = Some((n, error));
                break;
            }
        }
    }
    let (n, error) = full.expect("the object never was full");
    assert!(n > 3, "{error}");
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    assert_eq!(bed.held().await, n as usize - 1);

    let base = bed.base().await;
    bed.merge_status(json!({ "status": { "entries": { "10.0.0.1": "scrawl" } } }))
        .await;
    let before = bed.raw().await;
    let refused = bed.commit(&base, release(2, "p2")).await.unwrap_err();
    assert!(
        matches!(refused, LedgerError::Unreadable { .. }),
        "{refused}"
    );
    assert_eq!(bed.raw().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_cools_down_is_its_last_owners_alone() {
    let bed = Bed::new("cooldown").await;
    write(&bed.ledger, &bed.pool, &[claim(1, "a")])
        .await
        .unwrap();
    let since = now();
    let cooldown = Cooldown {
        since,
        until: since.plus(Duration::from_secs(3600)),
        owner: mk_record("a").owner,
    };
    let cool_down = Change::Release {
        address: mk_address(1),
        expected: mk_record("a"),
        cooldown: Some(cooldown),
    };
    write(&bed.ledger, &bed.pool, &[cool_down]).await.unwrap();
    is_conflict(write(&bed.ledger, &bed.pool, &[claim(1, "b")]).await);
    write(&bed.ledger, &bed.pool, &[claim(1, "a")])
        .await
        .unwrap();
    assert_eq!(
        bed.raw().await["status"].get("cooldowns"),
        Some(&Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_listed() {
    let bed = Bed::new("listed").await;
    write(&bed.ledger, &bed.pool, &[claim(1, "a")])
        .await
        .unwrap();
    let mut shown = None;
    let mut visit = |visited: berth_ledger::Visited| {
        if visited.key == bed.pool {
            shown = Some(visited.snapshot.unwrap().pool.len());
        }
    };
    bed.ledger.visit_pools(&mut visit).await.unwrap();
    assert_eq!(shown, Some(1));
}

/// Objects of other kinds, by the client that the ledger uses.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_any_kind_are_listed_page_by_page_and_watched() {
    use futures::StreamExt;
    use kube::runtime::watcher::Event;

    const CONFIG_MAPS: berth_kube::Resource = berth_kube::Resource {
        group: "",
        version: "v1",
        plural: "configmaps",
        kind: "ConfigMap",
        place: berth_kube::Place::Namespaced,
    };
    let cluster = cluster().await;
    let namespace = cluster.namespace("client").await.unwrap();
    let connect = Connect {
        kubeconfig: Some(cluster.kubeconfig()),
        namespace: Some("default".to_owned()),
        timeout: Duration::from_secs(30),
    };
    let default = ObjectClient::new(&connect.open().await.unwrap());
    let client = default.in_namespace(&namespace);
    for n in 0..5 {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("map-{n}"), "labels": { "of": "client" } },
        });
        client.create(&CONFIG_MAPS, &object).await.unwrap();
    }
    let selection = Selection {
        labels: "of=client",
        page: 2,
        ..Selection::default()
    };
    let mut names = Vec::new();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let keep = |object: Value| names.push(name(&object));
    client.list(&CONFIG_MAPS, &selection, keep).await.unwrap();
    assert_eq!(names, ["map-0", "map-1", "map-2", "map-3", "map-4"]);
    let everywhere = Selection {
        everywhere: true,
        ..selection
    };
    let mut count = 0;
    let keep = |_: Value| count += 1;
    let listed = default.list_metadata(&CONFIG_MAPS, &everywhere, keep);
    listed.await.unwrap();
    assert_eq!(count, 5);
    let mut events = client.watch(&CONFIG_MAPS, &selection);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "late", "labels": { "of": "client" } },
    });
    client.create(&CONFIG_MAPS, &object).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(object) | Event::InitApply(object)) = event
                && object.metadata.name.as_deref() == Some("late")
            {
                return true;
            }
        }
        false
    });
    assert!(heard.await.expect("the watch never showed the object"));
}
