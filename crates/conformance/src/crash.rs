//! kill -9 at random: what was acknowledged is there, and nothing is half written.
//!
//! The writer is a child process: this test binary again, running one ignored test that never ends
//! by itself. It prints each claim when the ledger has acknowledged it; the parent kills it at a
//! random moment and compares.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_core::Address;
use berth_ledger::{Ledger, PoolKey};

use super::{claim_lowest, held};

pub const STORE: &str = "BERTH_TEST_STORE";
pub const NAME: &str = "BERTH_TEST_NAME";

/// Starts the ignored test `writer` of this binary on `store`.
pub fn spawn_writer(writer: &str, store: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            writer,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(STORE, store)
        .env(NAME, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The child's loop: claims for ever and says each one when it is acknowledged.
pub async fn write_for_ever(ledger: &dyn Ledger, pool: &PoolKey) {
    let name = std::env::var(NAME).unwrap();
    for round in 0.. {
        let (address, _) = claim_lowest(ledger, pool, &format!("{name}-{round}")).await;
        println!("\nacknowledged {address}");
    }
}

/// Lets the child write for `life`, kills it with SIGKILL and returns what it said.
pub fn kill_after(mut child: Child, life: Duration) -> BTreeSet<Address> {
    let stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines
            .filter_map(|line| {
                line.strip_prefix("acknowledged ")
                    .and_then(|a| a.parse().ok())
            })
            .collect::<BTreeSet<Address>>()
    });
    std::thread::sleep(life);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Everything acknowledged is held; at most one claim per killed writer was made without its
/// acknowledgement being heard.
pub async fn nothing_acknowledged_is_lost(
    ledger: &dyn Ledger,
    pool: &PoolKey,
    acknowledged: &[BTreeSet<Address>],
) {
    let held: BTreeSet<Address> = held(ledger, pool).await.into_keys().collect();
    let mut all = BTreeSet::new();
    for said in acknowledged {
        for address in said {
            assert!(
                held.contains(address),
                "{address} was acknowledged and lost (I2)"
            );
            assert!(
                all.insert(*address),
                "{address} was acknowledged twice (I1)"
            );
        }
    }
    let unheard = held.difference(&all).count();
    assert!(
        unheard <= acknowledged.len(),
        "{unheard} claims of {} writers",
        acknowledged.len()
    );
    assert!(
        !all.is_empty(),
        "the writers never wrote: the test proves nothing"
    );
}
