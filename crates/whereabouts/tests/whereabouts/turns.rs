//! Writers of one pool that take turns: on the pool nothing shows it, and nobody depends on it.

use std::collections::BTreeSet;

use berth_core::Address;
use berth_ledger::Contention;
use k8s_openapi::api::coordination::v1::Lease;

use super::*;

/// Claims one free address, as a desk does: a turn, a look, a commit. How many turns there were.
async fn claim_one(ledger: &KubeLedger, name: &str) -> usize {
    let (mut turns, mut base) = (0, Version::default());
    loop {
        let turn = ledger.turn(&mk_pool(), &base).await;
        turns += usize::from(turn.taken);
        let now = match turn.newer {
            Some(newer) => newer,
            None => ledger.load(&mk_pool()).await.unwrap(),
        };
        let free = (1..).find(|n| !now.pool.is_held(mk_address(*n))).unwrap();
        base = now.version;
        match ledger
            .commit(&mk_pool(), &base, &[claim(free, name)], None)
            .await
        {
            Ok(_) => return turns,
            Err(error) => assert!(error.needs_reload(), "{error}"),
        }
    }
}

/// Makes a ledger meet another one.
async fn meet(bed: &Bed, ledger: &KubeLedger) {
    let base = ledger.load(&mk_pool()).await.unwrap().version;
    let next = held(&bed.ledger, &mk_pool()).await.len() as u32 + 1;
    bed.write(&[claim(next, "other")]).await.unwrap();
    let (pool, late) = (mk_pool(), [claim(next, "late")]);
    let met = ledger.commit(&pool, &base, &late, None).await;
    met.expect_err("the address is held");
}

struct Ring {
    leases: Api<Lease>,
}

impl Ring {
    async fn of(bed: &Bed) -> Ring {
        let client = cluster().await.client().await.unwrap();
        Ring {
            leases: Api::namespaced(client, &bed.namespace),
        }
    }

    /// The annotations of those who are signed up; nothing if there is no Lease.
    async fn members(&self) -> Option<Vec<String>> {
        let lease = self.leases.get_opt("berth-turns").await.unwrap()?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        Some(annotations.into_keys().collect())
    }

    async fn empties(&self) {
        let empty = async {
            while self.members().await.is_some_and(|ring| !ring.is_empty()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(20), empty).await;
        assert!(done.is_ok(), "signed up: {:?}", self.members().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_that_met_take_turns_and_the_pool_stays_as_whereabouts_has_it() {
    let bed = Bed::new("turns").await;
    let ring = Ring::of(&bed).await;
    assert_eq!(claim_one(&bed.ledger, "alone").await, 0);
    assert_eq!(claim_one(&bed.ledger, "alone-too").await, 0);
    assert_eq!(ring.members().await, None, "nobody met anybody");
    let writers = (0..6).map(|writer| {
        let namespace = bed.namespace.clone();
        tokio::spawn(async move {
            let ledger = open(cluster().await, &namespace).await;
            let mut turns = 0;
            for pod in 0..5 {
                turns += claim_one(&ledger, &format!("w{writer}-{pod}")).await;
            }
            turns
        })
    });
    let mut turns = 0;
    for writer in writers.collect::<Vec<_>>() {
        turns += writer.await.unwrap();
    }
    assert!(turns > 0, "they never met");
    let now = held(&bed.ledger, &mk_pool()).await;
    let lowest: BTreeSet<Address> = (1..=32).map(mk_address).collect();
    assert_eq!(now.into_keys().collect::<BTreeSet<_>>(), lowest);
    let pool = bed.pools.get("10.0.0.0-16").await.unwrap();
    assert_eq!(pool.metadata.annotations, None);
    ring.empties().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_died_while_signed_up_is_passed_over_and_taken_out() {
    let bed = Bed::new("turns-dead").await;
    let ring = Ring::of(&bed).await;
    let ledger = open(cluster().await, &bed.namespace).await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    meet(&bed, &ledger).await;
    // Signed up, and dead.
    assert!(ledger.turn(&mk_pool(), &Version::default()).await.taken);
    let ids = ring.members().await.unwrap();
    assert_eq!(ids.len(), 1);
    let next = open(cluster().await, &bed.namespace).await;
    meet(&bed, &next).await;
    assert!(claim_one(&next, "b").await > 0);
    ring.empties().await;
    // It only seemed dead: what it commits without a turn is as good.
    assert!(claim_one(&ledger, "c").await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_take_turns_writes_without() {
    let bed = Bed::new("turns-none").await;
    let rules = json!([{
        "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": ["*"],
    }]);
    let account = cluster()
        .await
        .service_account(&bed.namespace, "turnless", rules)
        .await
        .unwrap();
    let connect = Connect {
        kubeconfig: Some(account.kubeconfig().to_owned()),
        ..Connect::default()
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    bed.write(&[claim(1, "a")]).await.unwrap();
    meet(&bed, &ledger).await;
    assert_eq!(claim_one(&ledger, "b").await, 0);
    assert_eq!(held(&bed.ledger, &mk_pool()).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_versions_can_be_compared_with_a_commit() {
    use futures::StreamExt;

    let bed = Bed::new("versions").await;
    let first = bed.write(&[claim(1, "a")]).await.unwrap();
    let mut versions = bed.ledger.watch_versions(&mk_pool()).await.unwrap();
    let heard = versions.next().await.unwrap().unwrap();
    assert_eq!(heard.order(&first), Some(std::cmp::Ordering::Equal));
    let second = bed.write(&[claim(2, "b")]).await.unwrap();
    let heard = versions.next().await.unwrap().unwrap();
    assert_eq!(heard.order(&second), Some(std::cmp::Ordering::Equal));
    bed.pools
        .delete("10.0.0.0-16", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let heard = versions.next().await.unwrap().unwrap();
    assert_eq!(heard.order(&second), None, "it is gone");
}
