//! Requests, faults and cancellations in random order: what was acknowledged is what is held.

use super::*;

/// Random schedules of claims, repeats, releases and cancellations over three desks and a ledger
/// that fails at random. In the end the store holds what the survivors were told, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn random_schedules_end_in_what_was_acknowledged() {
    for round in 0..6u64 {
        let seed = rand::random::<u64>() ^ round;
        println!("seed {seed}");
        random_schedule(seed).await;
    }
}

async fn random_schedule(seed: u64) {
    let store = Arc::new(MemoryLedger::new());
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut tasks = Vec::new();
    for side in 0..3u64 {
        let mut ledger = FaultyLedger::new(Arc::clone(&store));
        ledger.delay = Duration::from_millis(rng.random_range(0..4));
        let faults = [
            Fault::None,
            Fault::None,
            Fault::Unavailable,
            Fault::LostReply,
            Fault::LostRequest,
        ];
        *ledger.faults.get_mut() = (0..40)
            .map(|_| faults[rng.random_range(0..faults.len())])
            .collect();
        let desk = mk_desk(&Arc::new(ledger), &mk_settings());
        for pod in 0..12u64 {
            let desk = desk.clone();
            let mut rng = SmallRng::seed_from_u64(seed ^ (side * 100 + pod));
            tasks.push(tokio::spawn(async move {
                let name = format!("s{side}p{pod}");
                let mut mine = None;
                for _ in 0..6 {
                    let patience = Duration::from_millis(rng.random_range(0..60));
                    let claim = desk.submit(mk_claim(&name, "10.0.0.0/24"));
                    match rng.random_range(0..4) {
                        0 => {
                            // Given up or not: what counts is the release that follows.
                            let _ = tokio::time::timeout(patience, claim).await;
                            desk.submit(mk_release(&name)).await.unwrap();
                            mine = None;
                        }
                        1 => {
                            desk.submit(mk_release(&name)).await.unwrap();
                            mine = None;
                        }
                        _ => {
                            let got = address(claim.await.unwrap());
                            assert!(
                                mine.is_none_or(|before| before == got),
                                "I3: {mine:?} {got}"
                            );
                            mine = Some(got);
                        }
                    }
                }
                mine
            }));
        }
    }
    let mut acknowledged = BTreeSet::new();
    for task in tasks {
        if let Some(address) = task.await.unwrap() {
            assert!(
                acknowledged.insert(address),
                "{address} has two owners (I1), seed {seed}"
            );
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(held(&store).await, acknowledged, "seed {seed}");
}
