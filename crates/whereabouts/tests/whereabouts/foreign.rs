//! Other programs write the same objects: nothing of theirs is lost, nothing of ours.

use std::collections::BTreeSet;

use berth_core::{Address, Prefix};
use berth_ledger::Ledger;
use berth_testkit::{Attachment, Cluster, Whereabouts};

use super::*;
use berth_conformance::claim_lowest;

/// Whether it says that it succeeded, or what it says.
fn call(whereabouts: &Whereabouts, verb: &str, pod: &str) -> Result<(), String> {
    let ipam = json!({ "range": "10.0.0.0/16", "enable_overlapping_ranges": false });
    let who = Attachment {
        pod,
        container: &format!("container-{pod}"),
        ifname: "net1",
    };
    let output = whereabouts.call(verb, who, &ipam).unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// Both at once on one pool: no address twice (I1), nothing acknowledged lost (I2), whoever gave it.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_whereabouts_and_berth_share_a_pool() {
    const EACH: usize = 12;
    let cluster = cluster().await;
    let bed = Bed::on(cluster, "shared").await;
    let rules = Whereabouts::rules();
    let account = cluster.service_account(&bed.namespace, "whereabouts", rules);
    let account = account.await.unwrap();
    let whereabouts = Whereabouts::new(account.kubeconfig(), "node").unwrap();
    let theirs = std::thread::spawn(move || {
        let mut given = 0;
        for n in 0..EACH {
            // It gives up after 100 lost races in a row; a runtime would try again.
            for _ in 0..10 {
                match call(&whereabouts, "ADD", &format!("theirs-{n}")) {
                    Ok(_) => {
                        given += 1;
                        break;
                    }
                    Err(text) => println!("whereabouts: {text}"),
                }
            }
        }
        (whereabouts, given)
    });
    let mut ours: BTreeSet<Address> = BTreeSet::new();
    let mut round = 0;
    while !theirs.is_finished() || round < EACH {
        let name = format!("ours-{round}");
        let (address, record) = claim_lowest(&bed.ledger, &mk_pool(), &name).await;
        assert!(ours.insert(address), "{address} was given twice (I1)");
        if round % 3 == 0 {
            let gone = Change::Release {
                address,
                expected: record,
                cooldown: None,
            };
            bed.write(&[gone]).await.unwrap();
            ours.remove(&address);
        }
        round += 1;
    }
    let (whereabouts, given) = theirs.join().unwrap();
    assert_eq!(given, EACH);
    let kept = held(&bed.ledger, &mk_pool()).await;
    for address in &ours {
        assert!(
            kept[address].owner.subject.starts_with("default/ours-"),
            "{address} was ours (I1)"
        );
    }
    let theirs: BTreeSet<&str> = kept
        .values()
        .map(|record| record.owner.subject.as_str())
        .filter(|subject| subject.starts_with("ns/theirs-"))
        .collect();
    assert_eq!(theirs.len(), EACH, "{kept:?} (I2)");
    assert_eq!(kept.len(), ours.len() + EACH);

    // It understands what we wrote: its DEL frees its own, and ours stays.
    for n in 0..EACH {
        call(&whereabouts, "DEL", &format!("theirs-{n}")).unwrap();
    }
    let kept = held(&bed.ledger, &mk_pool()).await;
    assert_eq!(kept.into_keys().collect::<BTreeSet<_>>(), ours);
}

/// A definition that keeps everything, as a later version of the kind might.
async fn loose_cluster() -> Cluster {
    let cluster = Cluster::start().await.unwrap();
    for mut crd in berth_api::crds().unwrap() {
        if crd["spec"]["names"]["plural"] == "ippools" {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
            });
        }
        cluster.apply_object(crd).await.unwrap();
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn what_berth_does_not_know_stays() {
    let cluster = loose_cluster().await;
    let bed = Bed::on(&cluster, "loose").await;
    let metadata = json!({
        "labels": { "team": "net" },
        "annotations": { "note": "kept" },
        "finalizers": ["example.com/hold"],
    });
    let foreign = json!({ "id": "x", "podref": "default/x", "ifname": "net1", "since": 5 });
    let spec = json!({
        "range": "10.0.0.0/16",
        "policy": { "spread": true },
        "allocations": {
            "1": foreign,
            "2": { "id": "y", "podref": "default/y", "mac": "02:00:00:00:00:01" },
            "seven": { "id": "z", "podref": "default/z" },
            "-3": { "id": "z", "podref": "default/z" },
            "9": "what is this",
            "10": { "id": 7, "podref": "default/q" },
            "0011": { "id": "p", "podref": "default/padded", "ifname": "net1" },
        },
    });
    bed.plant(&mk_pool().name, metadata.clone(), spec.clone())
        .await;

    // What can't be read is reported, and an address that something strange is at is not free.
    let seen = bed.ledger.load(&mk_pool()).await.unwrap();
    let unparsed: BTreeSet<&str> = seen
        .pool
        .unparsed()
        .iter()
        .map(|s| s.key.as_str())
        .collect();
    assert_eq!(unparsed, BTreeSet::from(["seven", "-3", "9", "10"]));
    for n in [1, 2, 9, 10, 11] {
        assert!(seen.pool.is_held(mk_address(n)), "{n}");
        let refused = bed.write(&[claim(n, "thief")]).await;
        assert!(
            matches!(refused, Err(LedgerError::Conflict { .. })),
            "{n}: {refused:?}"
        );
    }
    let strange = seen.pool.get(mk_address(9)).unwrap().clone();
    let freed = Change::Release {
        address: mk_address(9),
        expected: strange,
        cooldown: None,
    };
    let refused = bed.write(&[freed]).await;
    assert!(matches!(refused, Err(LedgerError::Conflict { .. })), "(I5)");
    assert_eq!(bed.raw().await["spec"], spec);

    // An update, a release and a claim change what they name, and nothing beside it.
    let mk = |id: &str, pod: &str, part: &str| Record::new(Owner::new(pod, part), Handle::new(id));
    let changes = [
        Change::Update {
            address: mk_address(1),
            expected: mk("x", "default/x", "net1"),
            record: mk("x2", "default/x", ""),
        },
        Change::Release {
            address: mk_address(2),
            expected: mk("y", "default/y", ""),
            cooldown: None,
        },
        claim(3, "new"),
    ];
    bed.write(&changes).await.unwrap();
    let padded = Change::Release {
        address: mk_address(11),
        expected: mk("p", "default/padded", "net1"),
        cooldown: None,
    };
    bed.write(&[padded]).await.unwrap();
    let mut expected = spec;
    expected["allocations"] = json!({
        "1": { "id": "x2", "podref": "default/x", "since": 5 },
        "3": { "id": "id-new", "podref": "default/new", "ifname": "net1" },
        "seven": { "id": "z", "podref": "default/z" },
        "-3": { "id": "z", "podref": "default/z" },
        "9": "what is this",
        "10": { "id": 7, "podref": "default/q" },
    });
    let now = bed.raw().await;
    assert_eq!(now["spec"], expected);
    for part in ["labels", "annotations", "finalizers"] {
        assert_eq!(now["metadata"][part], metadata[part], "{part} (I7)");
    }

    // A map that somebody took away comes back with the next claim.
    bed.merge(json!({ "spec": { "allocations": null } })).await;
    bed.write(&[claim(4, "back")]).await.unwrap();
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 1);
}

/// I5: every address in it would be taken for another.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_range_is_refused_and_stays() {
    let bed = Bed::new("other").await;
    for (name, range) in [
        ("10.0.0.0-16", "10.1.0.0/16"),
        ("10.2.0.0-16", "10.2.0.7/16"),
        ("10.3.0.0-16", "10.3.0.0/17"),
        ("10.4.0.0-16", "many addresses"),
    ] {
        let spec = json!({ "range": range, "allocations": {} });
        bed.plant(name, json!({}), spec.clone()).await;
        let network: Prefix = name.replace("-16", "/16").parse().unwrap();
        let pool = PoolKey::of_network(name, network);
        let error = bed.ledger.load(&pool).await.unwrap_err();
        assert!(matches!(error, LedgerError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("spec.range"), "{error}");
        let change = Change::Allocate {
            address: network.network().plus(1).unwrap(),
            record: mk_record("a"),
        };
        let unknown = berth_ledger::Version::default();
        let refused = bed.ledger.commit(&pool, &unknown, &[change], None).await;
        assert!(matches!(refused, Err(LedgerError::Unreadable { .. })));
        let after = bed.pools.get(name).await.unwrap();
        assert_eq!(after.data["spec"], spec);
    }
}

/// One annotation that can't be read costs the pool's allocations, and nothing else: addresses are read and released.
#[tokio::test(flavor = "multi_thread")]
async fn a_strange_annotation_of_ours_holds_allocations_alone_and_stays() {
    let bed = Bed::new("annotation").await;
    bed.write(&[claim(1, "a"), claim(2, "b"), claim(3, "c")])
        .await
        .unwrap();
    let annotated = |text| json!({ "metadata": { "annotations": { "berth.dev/resting": text } } });
    bed.merge(annotated(json!("soon"))).await;
    let error = bed.write(&[claim(4, "d")]).await.unwrap_err();
    // A desk halves what is not valid: releases that came together with an allocation are carried out.
    let invalid = |error: &LedgerError| {
        matches!(error, LedgerError::Rejected { rejection, .. }
            if matches!(rejection, berth_ledger::Rejection::Invalid { .. }))
    };
    assert!(invalid(&error), "{error}");
    assert!(error.to_string().contains("berth.dev/resting"), "{error}");
    let stale = berth_ledger::Version::default();
    let (pool, claims) = (mk_pool(), [claim(4, "d")]);
    let careful = bed.ledger.commit(&pool, &stale, &claims, None);
    let error = careful.await.unwrap_err();
    assert!(invalid(&error), "{error}");
    bed.write(&[release(2, "b")]).await.unwrap();
    let seen = bed.ledger.load(&mk_pool()).await.unwrap();
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 2);
    assert_eq!(seen.pool.unparsed()[0].key, "berth.dev/resting");
    let now = bed.raw().await;
    assert_eq!(now["metadata"]["annotations"]["berth.dev/resting"], "soon");
    // Without it, everything is as before.
    bed.merge(annotated(Value::Null)).await;
    bed.write(&[claim(4, "d")]).await.unwrap();
}
