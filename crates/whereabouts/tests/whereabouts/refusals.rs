//! What a real API server refuses, and what the caller is told.

use berth_ledger::{ClaimKey, ClaimKind, Rejection};
use berth_testkit::Cluster;

use super::slices::mk_claimed;
use super::*;

fn rejection(error: LedgerError) -> (Rejection, String) {
    let text = error.to_string();
    match error {
        LedgerError::Rejected { rejection, .. } => (rejection, text),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_names_verb_and_kind() {
    let cluster = cluster().await;
    let bed = Bed::on(cluster, "rbac").await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    let rules = json!([{
        "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["ippools"], "verbs": ["get"],
    }]);
    let account = cluster
        .service_account(&bed.namespace, "reader", rules)
        .await
        .unwrap();
    // The namespace comes from the kubeconfig's context.
    let connect = Connect {
        kubeconfig: Some(account.kubeconfig().to_owned()),
        ..Connect::default()
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    assert_eq!(held(&ledger, &mk_pool()).await.len(), 1);
    let (kind, text) = rejection(
        write(&ledger, &mk_pool(), &[claim(2, "b")])
            .await
            .unwrap_err(),
    );
    assert!(matches!(kind, Rejection::Forbidden(_)), "{text}");
    assert!(
        text.contains("grant `patch` on `ippools.whereabouts.cni.cncf.io`"),
        "{text}"
    );
    let absent = PoolKey::of_network("10.7.0.0-16", "10.7.0.0/16".parse().unwrap());
    let change = Change::Allocate {
        address: "10.7.0.1".parse().unwrap(),
        record: mk_record("a"),
    };
    let (_, text) = rejection(write(&ledger, &absent, &[change]).await.unwrap_err());
    assert!(text.contains("grant `create`"), "{text}");
    let (_, text) = rejection(ledger.pools().await.unwrap_err());
    assert!(text.contains("grant `list`"), "{text}");
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.1");
    let (_, text) = rejection(ledger.create(&key, &mk_record("a")).await.unwrap_err());
    assert!(
        text.contains("grant `create` on `overlappingrangeipreservations.whereabouts.cni.cncf.io`"),
        "{text}"
    );
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_nobody_is_refused() {
    let cluster = cluster().await;
    let connection = mk_connect(cluster, "default").open().await.unwrap();
    drop(connection);
    let admin = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&admin).unwrap();
    config["users"][0]["user"] = json!({ "token": "expired" });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    let connect = Connect {
        kubeconfig: Some(path),
        ..Connect::default()
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    let (kind, text) = rejection(ledger.load(&mk_pool()).await.unwrap_err());
    assert!(matches!(kind, Rejection::Unauthenticated(_)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_installed_is_named_and_so_is_a_namespace() {
    let cluster = Cluster::start().await.unwrap();
    let ledger = open(&cluster, "default").await;
    let (kind, text) = rejection(ledger.load(&mk_pool()).await.unwrap_err());
    assert!(matches!(kind, Rejection::Missing(_)), "{text}");
    assert!(
        text.contains("deploy/crds/whereabouts.cni.cncf.io_ippools.yaml"),
        "{text}"
    );
    let whole = "10.0.0.0/16".parse().unwrap();
    let claimed = ledger.claim_new_slice("", whole, &mk_claimed("uid")).await;
    let (_, text) = rejection(claimed.unwrap_err());
    assert!(
        text.contains("namespace `berth-default` does not exist")
            && text.contains("deploy/crds/namespace-slices.yaml"),
        "{text}"
    );
    install(&cluster).await;
    let nowhere = open(&cluster, "nowhere").await;
    let refused = write(&nowhere, &mk_pool(), &[claim(1, "a")]).await;
    let (_, text) = rejection(refused.unwrap_err());
    assert!(
        text.contains("namespace `nowhere` does not exist"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_finds_invalid_is_refused_for_good() {
    let bed = Bed::new("invalid").await;
    // An IPv6 range that begins with a colon has no valid name in whereabouts' scheme.
    let network = "::/64".parse().unwrap();
    let pool = PoolKey::of_network(berth_api::names::pool("", "", network), network);
    let change = Change::Allocate {
        address: "::5".parse().unwrap(),
        record: mk_record("a"),
    };
    let (kind, text) = rejection(write(&bed.ledger, &pool, &[change]).await.unwrap_err());
    assert!(
        matches!(kind, Rejection::Invalid { code: 422, .. }),
        "{text}"
    );
    assert!(text.contains("---64"), "{text}");

    bed.write(&[claim(1, "a")]).await.unwrap();
    let outside = Change::Allocate {
        address: "9.255.255.255".parse().unwrap(),
        record: mk_record("b"),
    };
    let (_, text) = rejection(bed.write(&[outside]).await.unwrap_err());
    assert!(
        text.contains("9.255.255.255") && text.contains("10.0.0.0/16"),
        "{text}"
    );

    let unknown_range = PoolKey::named("somewhere");
    let refused = write(&bed.ledger, &unknown_range, &[claim(1, "a")]).await;
    let (_, text) = rejection(refused.unwrap_err());
    assert!(text.contains("range is not known"), "{text}");
    // One that exists says its range itself.
    let named = PoolKey::named(mk_pool().name);
    write(&bed.ledger, &named, &[claim(2, "b")]).await.unwrap();
    assert_eq!(held(&bed.ledger, &named).await.len(), 2);
}

/// A network's name is part of its pool's, and its author writes it: it must not lead to another object.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_a_pool_s_name_leads_to_no_other_object() {
    let bed = Bed::new("names").await;
    let spec = json!({ "range": "10.0.0.0/16", "allocations": {
        "7": { "id": "c", "podref": "ns/p", "ifname": "net1" } } });
    bed.plant("victim", json!({}), spec).await;
    for name in [
        "victim?x=y",
        "victim#",
        "../ippools/victim",
        "victim%3Fx",
        "a/../victim",
    ] {
        let pool = PoolKey::of_network(name, "10.0.0.0/16".parse().unwrap());
        let snapshot = bed.ledger.load(&pool).await.unwrap();
        assert_eq!(snapshot.pool.records().count(), 0, "{name}");
        let claim = Change::Allocate {
            address: "10.0.0.9".parse().unwrap(),
            record: Record::new(Owner::new("ns/q", "net1"), Handle::new("d")),
        };
        let refused = bed
            .ledger
            .commit(&pool, &snapshot.version, &[claim], None)
            .await;
        assert!(refused.is_err(), "{name}");
    }
    let victim = bed.pools.get("victim").await.unwrap();
    let entries = victim.data["spec"]["allocations"]
        .as_object()
        .unwrap()
        .len();
    assert_eq!(entries, 1);
}
