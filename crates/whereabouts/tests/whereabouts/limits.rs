//! How much one object takes, and what happens at the end of it.

use berth_whereabouts::ETCD_REQUEST_LIMIT;

use super::*;

/// A claim of about 800 bytes: the real limit is reached in seconds.
fn fat(n: u32) -> Change {
    let owner = Owner::new(format!("default/{n:0>700}"), "net1");
    Change::Allocate {
        address: mk_address(n),
        record: Record::new(owner, Handle::new(format!("{n:0>64}"))),
    }
}

/// Claims from `first` on until the ledger refuses; returns how many are held then.
async fn fill(ledger: &KubeLedger, first: u32, batch: u32) -> (u32, LedgerError) {
    for next in (first..first + 100 * batch).step_by(batch as usize) {
        let claims: Vec<Change> = (next..next + batch).map(fat).collect();
        if let Err(error) = write(ledger, &mk_pool(), &claims).await {
            return (next, error);
        }
    }
    panic!("the object never filled up");
}

fn assert_full(error: &LedgerError) {
    let LedgerError::Full { size, limit, .. } = error else {
        panic!("{error}");
    };
    assert!(size >= limit, "{error}");
    assert!(error.to_string().contains("node slices"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_object_is_refused_before_it_is_sent() {
    let bed = Bed::new("full").await;
    // To the last bytes, in ever smaller commits.
    let mut n = 0;
    for batch in [150, 12, 1] {
        let (held, error) = fill(&bed.ledger, n, batch).await;
        assert_full(&error);
        n = held;
    }
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), n as usize);
    let size = bed.raw().await.to_string().len();
    println!("{n} entries, {size} bytes");
    assert!(
        size + 2_048 > ETCD_REQUEST_LIMIT,
        "refused too early: {size}"
    );
    // What can be released makes room again.
    let Change::Allocate { address, record } = fat(0) else {
        unreachable!()
    };
    let gone = Change::Release {
        address,
        expected: record,
        cooldown: None,
    };
    bed.write(&[gone]).await.unwrap();
    bed.write(&[fat(n)]).await.unwrap();
}

/// I2: an etcd that takes less than we think says so itself, and it is no success.
#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_refusal_of_a_large_object_is_understood() {
    let cluster = cluster().await;
    let bed = Bed::on(cluster, "toolarge").await;
    let connection = mk_connect(cluster, &bed.namespace).open().await.unwrap();
    let trusting = KubeLedger::new(connection).with_limit(usize::MAX);
    let (recorded, error) = fill(&trusting, 0, 150).await;
    println!("{error}");
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), recorded as usize);
    // More than a message of the API server to etcd, and more than a request to the API server.
    for count in [2_600, 5_000] {
        let claims: Vec<Change> = (20_000..20_000 + count).map(fat).collect();
        let error = write(&trusting, &mk_pool(), &claims).await.unwrap_err();
        println!("{error}");
        assert!(matches!(error, LedgerError::Full { .. }), "{error}");
        let absent = PoolKey::of_network(format!("fresh-{count}"), "10.0.0.0/16".parse().unwrap());
        let error = write(&trusting, &absent, &claims).await.unwrap_err();
        assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    }
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), recorded as usize);
}

/// The API server takes 10,000 operations in a JSON patch; a commit may be larger.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_thousands_of_changes_is_still_one() {
    let bed = Bed::new("thousands").await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    let claims: Vec<Change> = (2..6_002).map(|n| claim(n, &format!("p{n}"))).collect();
    bed.write(&claims).await.unwrap();
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 6_001);
    let releases = (2..6_002).map(|n| release(n, &format!("p{n}")));
    let mut releases: Vec<Change> = releases.collect();
    releases.push(release(7_000, "nobody"));
    let refused = bed.write(&releases).await;
    assert!(matches!(refused, Err(LedgerError::Conflict { .. })));
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 6_001);
    releases.pop();
    bed.write(&releases).await.unwrap();
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 1);
}
