//! Pools in pages: any number of entries, one page per address.

use futures::StreamExt;

use super::*;

/// A pool as anybody sees it, and a ledger that keeps it in pages.
async fn paged(name: &str) -> (Bed, KubeLedger) {
    let cluster = cluster().await;
    let bed = Bed::on(cluster, name).await;
    let ledger = open(cluster, &bed.namespace).await.in_pages();
    (bed, ledger)
}

fn many(numbers: std::ops::Range<u32>) -> Vec<Change> {
    numbers.map(|n| claim(n, &format!("p{n}"))).collect()
}

async fn names(bed: &Bed) -> Vec<String> {
    let listed = bed.pools.list(&Default::default()).await.unwrap();
    let names = listed.items.into_iter();
    names.filter_map(|object| object.metadata.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_conform() {
    all_conform("paged", KubeLedger::in_pages).await;
}

/// One object takes 10,487 allocations of a usual size; a pool takes what its range has.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_in_pages_outgrows_one_object() {
    const ENTRIES: u32 = 12_000;
    let (bed, ledger) = paged("outgrow").await;
    let mut version = ledger.load(&mk_pool()).await.unwrap().version;
    for next in (0..ENTRIES).step_by(1_500) {
        let claims = many(next..next + 1_500);
        version = ledger.commit(&mk_pool(), &version, &claims).await.unwrap();
    }
    let kept = held(&ledger, &mk_pool()).await;
    assert_eq!(kept.len(), ENTRIES as usize);
    assert!(kept[&mk_address(11_999)].same_holder(&mk_record("p11999")));
    assert!(
        ledger
            .refresh(&mk_pool(), &version)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(names(&bed).await.len(), 12, "a thousand on each");
    let pools = ledger.pools().await.unwrap();
    assert_eq!(pools, [mk_pool()], "it is one pool");
    let theft = write(&ledger, &mk_pool(), &[claim(7_777, "thief")]).await;
    assert!(matches!(theft, Err(LedgerError::Conflict { .. })), "(I1)");
}

/// I2: all pages of a commit, or none.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_refuses_takes_the_others_claims_back() {
    let (_, ledger) = paged("partly").await;
    let before = [claim(1, "a"), claim(2, "b"), claim(2_500, "c")];
    write(&ledger, &mk_pool(), &before).await.unwrap();
    let base = ledger.load(&mk_pool()).await.unwrap().version;
    let mut again = mk_record("a");
    again.handle = Handle::new("id-a-again");
    let update = Change::Update {
        address: mk_address(1),
        expected: mk_record("a"),
        record: again,
    };
    let changes = [
        update,
        release(2, "b"),
        claim(3, "d"),
        claim(1_500, "d"),
        claim(2_500, "thief"),
    ];
    let refused = ledger.commit(&mk_pool(), &base, &changes).await;
    assert!(
        matches!(&refused, Err(LedgerError::Conflict { held, .. }) if *held == [mk_address(2_500)]),
        "{refused:?}"
    );
    let kept = held(&ledger, &mk_pool()).await;
    // The release stays: its owner asked for it.
    assert_eq!(
        kept.keys().copied().collect::<Vec<_>>(),
        [mk_address(1), mk_address(2_500)]
    );
    assert!(kept[&mk_address(1)].same_holder(&mk_record("a")));
    assert!(kept[&mk_address(2_500)].same_holder(&mk_record("c")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_whereabouts_is_spread_when_it_is_told_to_be() {
    let (bed, ledger) = paged("spread").await;
    assert_eq!(ledger.spread(&mk_pool()).await.unwrap(), 0, "nothing there");
    bed.write(&many(0..3_500)).await.unwrap();
    let before = held(&bed.ledger, &mk_pool()).await;

    // Neither takes the other's for its own.
    let error = ledger.load(&mk_pool()).await.unwrap_err().to_string();
    assert!(error.contains("spread it"), "{error}");
    let unknown = Version::default();
    let commit = ledger.commit(&mk_pool(), &unknown, &[claim(9, "x")]).await;
    assert!(matches!(commit, Err(LedgerError::Unreadable { .. })));

    assert_eq!(ledger.spread(&mk_pool()).await.unwrap(), 2_500);
    assert_eq!(held(&ledger, &mk_pool()).await, before);
    assert_eq!(names(&bed).await.len(), 4);
    let error = bed.ledger.load(&mk_pool()).await.unwrap_err().to_string();
    assert!(error.contains("one page of several"), "{error}");
    let commit = bed.commit(&unknown, &[claim(5_000, "x")]).await;
    assert!(matches!(commit, Err(LedgerError::Unreadable { .. })));

    // A spread that died between the two steps: on its page, and still on the first.
    bed.merge(json!({ "spec": { "allocations": {
        "1500": { "id": "id-p1500", "podref": "default/p1500", "ifname": "net1" },
        "3700": { "id": "id-p3700", "podref": "default/p3700", "ifname": "net1" },
    } } }))
    .await;
    let error = ledger.load(&mk_pool()).await.unwrap_err().to_string();
    assert!(error.contains("spread the pool again"), "{error}");
    assert_eq!(ledger.spread(&mk_pool()).await.unwrap(), 2);
    let after = held(&ledger, &mk_pool()).await;
    assert_eq!(after.len(), 3_501);
    assert!(after[&mk_address(3_700)].same_holder(&mk_record("p3700")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sees_every_page() {
    let (_, ledger) = paged("pagewatch").await;
    write(&ledger, &mk_pool(), &[claim(1, "a")]).await.unwrap();
    let mut stream = ledger.watch(&mk_pool()).await.unwrap();
    let change = [claim(1_500, "b"), claim(2_500, "c")];
    write(&ledger, &mk_pool(), &change).await.unwrap();
    let search = async {
        while let Some(seen) = stream.next().await {
            let seen = seen.unwrap();
            if seen.pool.len() == 3 {
                return seen;
            }
        }
        panic!("the watch ended");
    };
    let seen = tokio::time::timeout(Duration::from_secs(20), search).await;
    let seen = seen.expect("the watch never showed all pages");
    // It is the state that a load gives, and a base to commit on.
    assert_eq!(seen.version, ledger.load(&mk_pool()).await.unwrap().version);
    ledger
        .commit(&mk_pool(), &seen.version, &[release(1_500, "b")])
        .await
        .unwrap();
}
