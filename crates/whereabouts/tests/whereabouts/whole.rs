//! Large objects are written whole, and nothing that others put there is lost by it.

use berth_testkit::{Fate, FaultProxy};

use super::*;

/// Entries of others, from this offset on.
const THEIRS: u32 = 1_000;
const COUNT: u32 = 2_000;

/// A pool that is large enough, and a ledger whose requests are seen.
struct Large {
    bed: Bed,
    relay: FaultProxy,
    ledger: KubeLedger,
}

impl Large {
    async fn new(name: &str) -> Self {
        let cluster = cluster().await;
        let bed = Bed::on(cluster, name).await;
        let entry = |n: u32| {
            let value = json!({ "id": format!("{n:0>64}"), "podref": format!("default/{n}") });
            (n.to_string(), value)
        };
        let entries = (THEIRS..THEIRS + COUNT).map(entry);
        let entries: serde_json::Map<String, Value> = entries.collect();
        let metadata = json!({
            "labels": { "team": "net" },
            "annotations": { "note": "kept" },
            "finalizers": ["example.com/hold"],
        });
        let spec = json!({ "range": "10.0.0.0/16", "allocations": entries });
        bed.plant(&mk_pool().name, metadata, spec).await;
        let relay = FaultProxy::new(cluster).await.unwrap();
        let connect = Connect {
            kubeconfig: Some(relay.kubeconfig()),
            namespace: Some(bed.namespace.clone()),
            timeout: Duration::from_secs(30),
        };
        let ledger = KubeLedger::new(connect.open().await.unwrap());
        Self { bed, relay, ledger }
    }

    async fn base(&self) -> Version {
        self.ledger.load(&mk_pool()).await.unwrap().version
    }

    async fn commit(&self, base: &Version, changes: &[Change]) -> Version {
        let committed = self.ledger.commit(&mk_pool(), base, changes, None).await;
        committed.unwrap()
    }

    /// What a commit that can't be made is told.
    async fn refusal(&self, base: &Version, change: Change) -> LedgerError {
        let refused = self.ledger.commit(&mk_pool(), base, &[change], None).await;
        refused.unwrap_err()
    }

    /// How it was written so far: `PUT 200`, for instance.
    fn writes(&self) -> Vec<String> {
        let seen = self.relay.seen().into_iter();
        let writes = seen.filter(|(asked, _)| asked.method != "GET");
        let told = |(asked, code): (berth_testkit::Asked, Option<u16>)| {
            format!("{} {}", asked.method, code.unwrap_or_default())
        };
        writes.map(told).collect()
    }

    async fn held(&self) -> usize {
        held(&self.bed.ledger, &mk_pool()).await.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_pool_is_written_whole_and_all_of_it_stays() {
    let large = Large::new("whole").await;
    let before = large.bed.raw().await;
    let mut version = large.base().await;
    version = large
        .commit(&version, &[claim(1, "a"), claim(2, "b")])
        .await;
    let again = Change::Update {
        address: mk_address(1),
        expected: mk_record("a"),
        record: Record::new(mk_record("a").owner, Handle::new("second")),
    };
    let to_rest = put_to_rest(2, "b");
    version = large.commit(&version, &[again, to_rest]).await;
    assert_eq!(large.writes(), ["PUT 200", "PUT 200"]);
    assert!(!version.is_merged());

    let after = large.bed.raw().await;
    let known = large.ledger.refresh(&mk_pool(), &version).await.unwrap();
    assert!(known.is_none(), "the version is that of the object");
    let metadata = &after["metadata"];
    assert_eq!(metadata["labels"], before["metadata"]["labels"]);
    assert_eq!(metadata["finalizers"], before["metadata"]["finalizers"]);
    assert_eq!(metadata["annotations"]["note"], "kept");
    assert!(metadata["annotations"]["berth.dev/resting"].is_string());
    assert_eq!(metadata.get("managedFields"), None, "tracking has ended");
    let mut entries = after["spec"]["allocations"].as_object().unwrap().clone();
    let ours = json!({ "id": "second", "podref": "default/a", "ifname": "net1" });
    assert_eq!(entries.remove("1"), Some(ours));
    assert_eq!(Value::Object(entries), before["spec"]["allocations"]);

    // Its last owner's coming ends the rest.
    large.commit(&version, &[claim(2, "b")]).await;
    let annotations = &large.bed.raw().await["metadata"]["annotations"];
    assert_eq!(*annotations, json!({ "note": "kept" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_in_between_costs_the_attempt_and_nothing_else() {
    let large = Large::new("between").await;
    let base = large.base().await;
    let theirs = json!({ "id": "x", "podref": "default/theirs", "ifname": "net1" });
    let patch = json!({ "spec": { "allocations": { "7": theirs } } });
    large.bed.merge(patch).await;
    let version = large.commit(&base, &[claim(1, "a")]).await;
    assert_eq!(large.writes(), ["PUT 409", "PATCH 200"]);
    assert!(version.is_merged(), "the caller lacks what they wrote");
    assert_eq!(large.held().await, COUNT as usize + 2);
    let entry = &large.bed.raw().await["spec"]["allocations"]["7"];
    assert_eq!(*entry, theirs);
    let theft = large.refusal(&base, claim(7, "thief")).await;
    assert!(matches!(theft, LedgerError::Conflict { .. }), "{theft}");

    // They may be at it still: some patches, on which what is known follows; then whole again, without a read.
    let mut version = large.base().await;
    let (writes, reads) = (large.writes().len(), large.relay.seen().len());
    for n in 10..20 {
        version = large.commit(&version, &[claim(n, &format!("p{n}"))]).await;
        assert!(!version.is_merged());
    }
    let last = &large.writes()[writes..];
    assert_eq!(last[0], "PATCH 200");
    assert_eq!(last[9], "PUT 200");
    assert_eq!(last.len(), 10, "{last:?}");
    assert_eq!(large.relay.seen().len(), reads + 10, "nothing was read");
    assert_eq!(large.held().await, COUNT as usize + 12);
}

/// A commit that turns out to change nothing (the node is stored already, or a definition prunes it) raises no generation:
/// another writer's change was taken for it, and a later write of the whole object erased that writer's entry (I1).
#[tokio::test(flavor = "multi_thread")]
async fn berth_17_1_an_entry_beside_a_commit_without_effect_stays() {
    let large = Large::new("noeffect").await;
    let ours = json!({ "id": mk_record("a").handle.as_str(), "podref": "default/a", "ifname": "net1", "node": "n1" });
    large
        .bed
        .merge(json!({ "spec": { "allocations": { "1": ours } } }))
        .await;
    let base = large.base().await;
    let theirs = json!({ "id": "x", "podref": "default/theirs", "ifname": "net1" });
    let patch = json!({ "spec": { "allocations": { "7": theirs } } });
    large.bed.merge(patch).await;
    let without_effect = Change::Update {
        address: mk_address(1),
        expected: mk_record("a"),
        record: mk_record("a").with("node", "n1"),
    };
    let mut version = large.commit(&base, &[without_effect]).await;
    assert!(version.is_merged(), "the caller lacks what they wrote");
    for n in 10..20 {
        version = large.commit(&version, &[claim(n, &format!("p{n}"))]).await;
    }
    let entry = &large.bed.raw().await["spec"]["allocations"]["7"];
    assert_eq!(*entry, theirs);
}

/// The generation counts what the spec went through: a mark that another sets meanwhile does not show in it.
#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_that_another_sets_in_between_stays() {
    let large = Large::new("annotated").await;
    let mut version = large.base().await;
    version = large.commit(&version, &[claim(1, "a")]).await;
    let patch = json!({ "metadata": { "annotations": { "theirs": "set" }, "labels": null } });
    large.bed.merge(patch).await;
    let mut next = claim(2, "b");
    for n in 0..10 {
        version = large.commit(&version, &[next]).await;
        assert!(!version.is_merged(), "no entry is other than was thought");
        next = match n % 2 {
            0 => release(2, "b"),
            _ => claim(2, "b"),
        };
    }
    let writes = large.writes();
    assert_eq!(writes[..3], ["PUT 200", "PUT 409", "PATCH 200"]);
    assert_eq!(writes.last().unwrap(), "PUT 200");
    let metadata = &large.bed.raw().await["metadata"];
    let annotations = json!({ "note": "kept", "theirs": "set" });
    assert_eq!(metadata["annotations"], annotations);
    assert_eq!(metadata.get("labels"), None);
}

/// A role of before large objects were written whole.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_only_patch_patches() {
    let large = Large::new("may-patch").await;
    let rules = json!([{
        "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["ippools"],
        "verbs": ["get", "patch"],
    }]);
    let cluster = cluster().await;
    let account = cluster.service_account(&large.bed.namespace, "patcher", rules);
    let account = account.await.unwrap();
    let connect = Connect {
        kubeconfig: Some(account.kubeconfig().to_owned()),
        ..Connect::default()
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    for n in 1..4 {
        write(&ledger, &mk_pool(), &[claim(n, &format!("p{n}"))])
            .await
            .unwrap();
    }
    assert_eq!(large.held().await, COUNT as usize + 3);
    // It is asked once.
    large.relay.rule(|asked| match asked.method.as_str() {
        "PUT" => Fate::Refuse {
            code: 403,
            retry_after: None,
        },
        _ => Fate::Pass,
    });
    let mut version = large.base().await;
    for n in 4..7 {
        version = large.commit(&version, &[claim(n, &format!("p{n}"))]).await;
    }
    assert_eq!(
        large.writes(),
        ["PUT 403", "PATCH 200", "PATCH 200", "PATCH 200"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_neither_a_success_nor_a_failure() {
    let large = Large::new("lost").await;
    let base = large.base().await;
    large.relay.rule(|asked| match asked.method.as_str() {
        "PUT" => Fate::Cut,
        _ => Fate::Pass,
    });
    let lost = large.refusal(&base, claim(1, "a")).await;
    assert!(matches!(lost, LedgerError::Uncertain { .. }), "{lost}");
    large.relay.rule(|_| Fate::Pass);
    large.commit(&base, &[claim(1, "a")]).await;
    assert_eq!(large.held().await, COUNT as usize + 1);
}
