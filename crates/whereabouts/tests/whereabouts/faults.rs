//! Connections that break, servers that die, clients that are killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_core::Address;
use berth_ledger::RetryPolicy;
use berth_testkit::{Cluster, Part};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use berth_conformance::crash;

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_random_loses_nothing_acknowledged() {
    let cluster = cluster().await;
    let bed = Bed::on(cluster, "crash").await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let store = format!("{} {}", cluster.kubeconfig().display(), bed.namespace);
    let mut acknowledged: Vec<BTreeSet<Address>> = Vec::new();
    for round in 0..3u64 {
        let killers: Vec<_> = (0..3u64)
            .map(|n| {
                let name = format!("r{round}w{n}");
                let child = crash::spawn_writer("faults::crash_writer", &store, &name);
                let spread = seed.rotate_left((round * 3 + n) as u32 * 5) % 700;
                let life = Duration::from_millis(1_200 + spread);
                std::thread::spawn(move || crash::kill_after(child, life))
            })
            .collect();
        for killer in killers {
            acknowledged.push(killer.join().unwrap());
        }
    }
    crash::nothing_acknowledged_is_lost(&bed.ledger, &mk_pool(), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child of kill_9_at_random_loses_nothing_acknowledged"]
async fn crash_writer() {
    let store = std::env::var(crash::STORE).unwrap();
    let (kubeconfig, namespace) = store.rsplit_once(' ').unwrap();
    let connect = Connect {
        kubeconfig: Some(kubeconfig.into()),
        namespace: Some(namespace.to_owned()),
        ..Connect::default()
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    crash::write_for_ever(&ledger, &mk_pool()).await;
}

/// Claims until told to stop, through whatever happens, and returns what was acknowledged.
async fn persist(ledger: KubeLedger, name: String, stop: Arc<AtomicBool>) -> BTreeSet<Address> {
    let policy = RetryPolicy {
        retries: 100_000,
        timeout: Duration::from_secs(300),
        max: Duration::from_millis(500),
        ..RetryPolicy::default()
    };
    let mut got = BTreeSet::new();
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        let record = mk_record(&format!("{name}-{round}"));
        let mut backoff = policy.start();
        loop {
            let tried = async {
                let snapshot = ledger.load(&mk_pool()).await?;
                if let Some(address) = snapshot.pool.held_by(&record.owner).next() {
                    return Ok(address);
                }
                let free = (100..).map(mk_address).find(|a| !snapshot.pool.is_held(*a));
                let address = free.unwrap();
                let change = Change::Allocate {
                    address,
                    record: record.clone(),
                };
                ledger
                    .commit(&mk_pool(), &snapshot.version, &[change], None)
                    .await
                    .map(|_| address)
            };
            match tried.await {
                Ok(address) => {
                    assert!(got.insert(address));
                    break;
                }
                Err(error) => {
                    assert!(error.is_passing() || error.needs_reload(), "{error}");
                    if stop.load(Ordering::SeqCst) {
                        return got;
                    }
                    let pause = backoff.pause(None).expect("a writer starved");
                    tokio::time::sleep(pause).await;
                }
            }
        }
        round += 1;
    }
    got
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_die_under_writers_lose_nothing_acknowledged() {
    let cluster = Cluster::start().await.unwrap();
    install(&cluster).await;
    let bed = Bed::on(&cluster, "dying").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for n in 0..4 {
        let connect = Connect {
            timeout: Duration::from_secs(3),
            ..mk_connect(&cluster, &bed.namespace)
        };
        let ledger = KubeLedger::new(connect.open().await.unwrap());
        let stop = Arc::clone(&stop);
        writers.push(tokio::spawn(persist(ledger, format!("w{n}"), stop)));
    }
    for part in [Part::ApiServer, Part::Etcd] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.kill(part).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.restart(part).await.unwrap();
    }
    // A server that hangs: connections stay open and nothing comes.
    cluster.pause(Part::Etcd).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    cluster.resume(Part::Etcd).unwrap();
    cluster.ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.push(writer.await.unwrap());
    }
    crash::nothing_acknowledged_is_lost(&bed.ledger, &mk_pool(), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_server_got_nothing_and_a_hanging_one_may_have() {
    let cluster = Cluster::start().await.unwrap();
    install(&cluster).await;
    let bed = Bed::on(&cluster, "hanging").await;
    let connect = Connect {
        timeout: Duration::from_secs(5),
        ..mk_connect(&cluster, &bed.namespace)
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    bed.write(&[claim(1, "a")]).await.unwrap();
    let base = ledger.load(&mk_pool()).await.unwrap().version;
    cluster.pause(Part::ApiServer).unwrap();
    let read = ledger.load(&mk_pool()).await.unwrap_err();
    let written = ledger
        .commit(&mk_pool(), &base, &[claim(2, "b")], None)
        .await;
    let written = written.unwrap_err();
    cluster.resume(Part::ApiServer).unwrap();
    assert!(read.is_passing(), "{read}");
    // Nobody knows: a connection may have been made and the request be on its way.
    assert!(
        matches!(written, LedgerError::Uncertain { .. }) || written.is_passing(),
        "{written}"
    );
    cluster.kill(Part::ApiServer).unwrap();
    let refused = ledger
        .commit(&mk_pool(), &base, &[claim(3, "c")], None)
        .await;
    let refused = refused.unwrap_err();
    assert!(refused.is_passing(), "{refused}");
    cluster.restart(Part::ApiServer).await.unwrap();
    let kept = held(&bed.ledger, &mk_pool()).await;
    assert!(!kept.contains_key(&mk_address(3)), "nothing was sent");
}

/// Passes bytes to the API server, and its answers back as long as it is told to.
struct Proxy {
    url: String,
    answers: Arc<AtomicBool>,
}

impl Proxy {
    async fn new(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let answers = Arc::new(AtomicBool::new(true));
        let open = Arc::clone(&answers);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                });
                let open = Arc::clone(&open);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65536];
                    while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
                        if !open.load(Ordering::SeqCst)
                            || to_client.write_all(&buffer[..n]).await.is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        Self { url, answers }
    }
}

/// I2: the write is there, the answer is not, and the caller is told exactly that.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_leaves_the_claim_to_be_found() {
    let cluster = cluster().await;
    let bed = Bed::on(cluster, "lost").await;
    bed.write(&[claim(1, "a")]).await.unwrap();
    let proxy = Proxy::new(cluster.port()).await;
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["clusters"][0]["cluster"]["server"] = json!(proxy.url);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    let connect = Connect {
        kubeconfig: Some(path),
        timeout: Duration::from_secs(5),
        ..mk_connect(cluster, &bed.namespace)
    };
    let ledger = KubeLedger::new(connect.open().await.unwrap());
    let base = ledger.load(&mk_pool()).await.unwrap().version;

    proxy.answers.store(false, Ordering::SeqCst);
    let unheard = ledger
        .commit(&mk_pool(), &base, &[claim(2, "b")], None)
        .await;
    let unheard = unheard.unwrap_err();
    assert!(
        matches!(unheard, LedgerError::Uncertain { .. }),
        "{unheard}"
    );
    proxy.answers.store(true, Ordering::SeqCst);
    let kept = held(&ledger, &mk_pool()).await;
    assert!(kept[&mk_address(2)].same_holder(&mk_record("b")));

    let key = berth_ledger::ClaimKey::new(berth_ledger::ClaimKind::Reservation, "10.0.0.9");
    proxy.answers.store(false, Ordering::SeqCst);
    let unheard = ledger.create(&key, &mk_record("b")).await.unwrap_err();
    assert!(
        matches!(unheard, LedgerError::Uncertain { .. }),
        "{unheard}"
    );
    proxy.answers.store(true, Ordering::SeqCst);
    ledger
        .create(&key, &mk_record("b"))
        .await
        .expect("the claim stands already (I3)");
}
