//! A node's slices without an agent around them: on a connection to the API server that a test can delay, and on a
//! ledger that a test can observe and make fail.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use berth_api::berth::SliceCall;
use berth_api::claim::{NETWORK, NODE, RANGE, SliceClaim, SliceClaimSpec};
use berth_api::whereabouts::IPPool;
use berth_core::{Address, Change, Prefix};
use berth_desk::DeskMetrics;
use berth_kube::Connect;
use berth_ledger::{
    DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, MemoryLedger, PoolKey,
    Records, SharedRecordLedger, Version,
};
use berth_pods::{Front, Store, Stores};
use berth_slices::SliceSettings;
use berth_slices::slices::Setup;
use berth_slices::{SliceMetrics, Slices, sliced};
use berth_testkit::{Asked, Fate, FaultProxy, answered_addresses};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cni_call::{bare, request};
use crate::test_node::{Site, until};

/// The part for which an address is set aside.
const SURRENDERED: &str = "(surrendered)";

/// The node's ledger.
#[derive(Debug, Default)]
pub struct Local {
    below: MemoryLedger,
    refusal: Mutex<Refusal>,
    watch: Mutex<Option<Watch>>,
    breaches: Mutex<Vec<String>>,
}

/// Whether a change of the holdings fails.
#[derive(Clone, Debug, Default)]
enum Refusal {
    #[default]
    No,
    Next,
    /// What was set aside then.
    Made(Rows),
}

/// Addresses that are set aside, each for a part.
pub type Rows = Vec<(Address, String)>;

/// What must be set aside after every commit.
#[derive(Clone, Debug)]
struct Watch {
    pool: PoolKey,
    part: Prefix,
    /// As one of these parts.
    parts: Vec<String>,
}

impl Local {
    /// The next change of the holdings is refused.
    pub fn refuse_holdings(&self) {
        *self.refusal.lock().unwrap() = Refusal::Next;
    }

    /// What was set aside when one was.
    pub fn refused(&self) -> Option<Rows> {
        match &*self.refusal.lock().unwrap() {
            Refusal::Made(rows) => Some(rows.clone()),
            _ => None,
        }
    }

    /// From now on each address of `part` must be set aside, for one of `parts`.
    pub fn watch(&self, range: &str, part: &str, parts: &[&str]) {
        *self.watch.lock().unwrap() = Some(Watch {
            pool: sliced::key("", range.parse().unwrap()),
            part: part.parse().unwrap(),
            parts: parts.iter().map(|part| (*part).to_owned()).collect(),
        });
    }

    /// When that was violated.
    pub fn breaches(&self) -> Vec<String> {
        self.breaches.lock().unwrap().clone()
    }

    pub async fn out_of_use(&self, range: Prefix) -> Rows {
        let pool = sliced::key("", range);
        let now = self.below.load(&pool).await.unwrap();
        let rows = now.pool.records();
        let rows = rows.filter(|(_, row)| row.owner.subject == SURRENDERED);
        rows.map(|(address, row)| (address, row.owner.part.clone()))
            .collect()
    }

    /// Fails if the test requests it.
    async fn before(&self, pool: &PoolKey) -> Result<(), LedgerError> {
        let refuses = matches!(*self.refusal.lock().unwrap(), Refusal::Next);
        if !refuses || !pool.name.starts_with(sliced::HOLDINGS) {
            return Ok(());
        }
        let rows = self.out_of_use(pool.network.unwrap()).await;
        *self.refusal.lock().unwrap() = Refusal::Made(rows);
        Err(LedgerError::Unavailable {
            target: "the node's ledger".to_owned(),
            why: "a test refuses this".to_owned(),
            retry_after: None,
        })
    }

    /// Checks what must be set aside.
    async fn after(&self, pool: &PoolKey, changes: &[Change]) {
        let watch = self.watch.lock().unwrap().clone();
        let Some(Watch { part, parts, .. }) = watch.filter(|watch| watch.pool == *pool) else {
            return;
        };
        let now = self.out_of_use(pool.network.unwrap()).await;
        let out = |address: Address| {
            let mut rows = now.iter();
            rows.any(|(one, of)| *one == address && parts.contains(of))
        };
        for n in 0..part.block().count() {
            let address = part.network().plus(n).unwrap();
            if !out(address) {
                let breach = format!("{address} is in use after {changes:?}");
                self.breaches.lock().unwrap().push(breach);
            }
        }
    }
}

#[async_trait]
impl DelegatingLedger for Local {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &self.below
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        self.before(pool).await?;
        let below = &self.below;
        let made = below.commit(pool, base, changes, guard).await?;
        self.after(pool, changes).await;
        Ok(made)
    }
}

#[async_trait]
impl DelegatingRecords for Local {
    fn records_below(&self) -> &dyn Records {
        &self.below
    }
}

/// A node.
pub struct Bare {
    pub name: String,
    pub relay: FaultProxy,
    pub local: Arc<Local>,
    pub slices: Slices,
    front: Front,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A connection to the API server with the rights of a node's agent.
pub async fn relay_of(site: &Site, node: &str) -> FaultProxy {
    let account = site.agents.on(node).await.unwrap();
    FaultProxy::of(&account).await.unwrap()
}

impl Bare {
    /// A node that maintains its slices.
    pub async fn start(site: &Site, name: &str, settings: SliceSettings) -> Bare {
        Bare::start_behind(site, name, settings, |_| Fate::Pass).await
    }

    /// The same, with this fate for its requests from the first on.
    pub async fn start_behind(
        site: &Site,
        name: &str,
        settings: SliceSettings,
        rule: impl FnMut(&Asked) -> Fate + Send + 'static,
    ) -> Bare {
        let relay = relay_of(site, name).await;
        relay.rule(rule);
        Bare::new(site, name, settings, relay, true).await
    }

    /// A node that does only what a call needs.
    pub async fn idle(site: &Site, name: &str, settings: SliceSettings) -> Bare {
        let relay = relay_of(site, name).await;
        Bare::new(site, name, settings, relay, false).await
    }

    async fn new(
        site: &Site,
        name: &str,
        settings: SliceSettings,
        relay: FaultProxy,
        keeps: bool,
    ) -> Bare {
        site.register(name).await;
        let connect = Connect {
            kubeconfig: Some(relay.kubeconfig()),
            ..site.connect(30)
        };
        let local = Arc::new(Local::default());
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let slices = Slices::new(Setup {
            connection: connect.open().await.unwrap(),
            local: Arc::clone(&local) as SharedRecordLedger,
            database: "memory".into(),
            file: name.to_owned(),
            node: name.to_owned(),
            boot: "b".to_owned(),
            settings,
            metrics: SliceMetrics::default(),
            daemon: keeps.then(|| (tasks.clone(), stop.clone())),
        });
        slices.open().await.unwrap();
        let store =
            Store::cluster(slices.ledger(), DeskMetrics::default()).with_slices(slices.clone());
        let stores: Arc<dyn Stores> = Arc::new(Arc::new(store));
        Bare {
            front: Front::new(stores, name).with_flat_places(Vec::new()),
            name: name.to_owned(),
            relay,
            local,
            slices,
            tasks,
            stop,
        }
    }

    /// The address that a pod gets, or the code and the text of the refusal.
    pub async fn try_add(&self, pod: &str, ipam: &Value) -> Result<String, (u64, String)> {
        let call = request("ADD", "ns", pod, &format!("{pod}-container"), ipam);
        let given = answered_addresses(&self.front.answer(&call).await)?;
        Ok(bare(&given[0]))
    }

    pub async fn add(&self, pod: &str, ipam: &Value) -> String {
        self.try_add(pod, ipam).await.unwrap()
    }

    pub async fn del(&self, pod: &str, ipam: &Value) {
        let call = request("DEL", "ns", pod, &format!("{pod}-container"), ipam);
        let answer = self.front.answer(&call).await;
        assert_eq!((answer.exit, answer.stdout.as_str()), (0, ""));
    }

    /// The requests that created an object of that kind in the cluster, or tried to.
    pub fn made(&self, plural: &str) -> Vec<(Asked, Option<u16>)> {
        let seen = self.relay.seen().into_iter();
        let made = seen.filter(|(asked, _)| asked.method == "POST" && asked.path.ends_with(plural));
        made.collect()
    }

    /// Returns when everything is as an agent's end leaves it.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A claim as an agent has written it; what it is a slice of is `whole`.
pub async fn claim(site: &Site, whole: &str, range: &str, node: &str, epoch: u8, offers: Value) {
    let spec = SliceClaimSpec {
        range: range.to_owned(),
        node: node.to_owned(),
        epoch: epoch.into(),
        offers: serde_json::from_value(offers).unwrap(),
        ..SliceClaimSpec::default()
    };
    let mut claim = SliceClaim::new(&range.replace('/', "-"), spec);
    let whole = whole.replace('/', "-");
    let labels = [(NODE, node), (RANGE, whole.as_str()), (NETWORK, "")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    claim.metadata.labels = Some(labels.into());
    let params = PostParams::default();
    site.claim_api().create(&params, &claim).await.unwrap();
}

/// The plain pool of a range that was sliced, without reservations.
pub async fn sliced(site: &Site, whole: &str, size: u8) {
    let mark = json!({ "state": "sliced", "size": size, "unreserved": true }).to_string();
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": whole.replace('/', "-"), "annotations": { "berth.dev/sliced": mark } },
        "spec": { "range": whole, "allocations": {} },
    }))
    .await;
}

/// Writes a claim as another node does.
pub async fn amend(site: &Site, range: &str, change: impl FnOnce(&mut SliceClaimSpec)) {
    let claims = site.claim_api();
    let name = range.replace('/', "-");
    let mut spec = claims.get(&name).await.unwrap().spec;
    change(&mut spec);
    let mut merge = spec.merge();
    merge["metadata"]["labels"] = json!({ NODE: spec.node });
    let params = PatchParams::default();
    let patch = Patch::Merge(merge);
    claims.patch(&name, &params, &patch).await.unwrap();
}

/// The claim after a transfer.
pub fn pass(claim: &mut SliceClaimSpec, to: &str) {
    *claim = SliceClaimSpec {
        network: claim.network.clone(),
        range: claim.range.clone(),
        node: to.to_owned(),
        epoch: claim.epoch + 1,
        ..SliceClaimSpec::default()
    };
}

/// Requests a part of a claim as another node does, and notifies its holder.
pub async fn want(site: &Site, range: &str, taker: &str, holder: &str) {
    amend(site, range, |claim| claim.wants.push(taker.to_owned())).await;
    let call = json!({ "metadata": { "name": holder }, "spec": { "call": range } });
    site.create::<SliceCall>(call).await;
}

/// Notifies a node, as a process does that has written one of its claims.
pub async fn call_node(site: &Site, node: &str) {
    let call = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "SliceCall",
        "metadata": { "name": node }, "spec": { "call": "taken" } });
    let params = PatchParams::apply("test").force();
    let calls = site.api::<SliceCall>();
    calls
        .patch(node, &params, &Patch::Apply(call))
        .await
        .unwrap();
}

/// Makes all claims another node's and notifies the one that had them; returns when it has lost them.
pub async fn take_claims(site: &Site, node: &str) {
    for range in site.holders().await.into_keys() {
        amend(site, &range, |claim| pass(claim, "another")).await;
    }
    call_node(site, node).await;
    until("the loss is reported", async || {
        let events = site.node_events(node).await;
        let mut reasons = events.iter().map(|(reason, _)| reason);
        let told = reasons.any(|reason| reason == "SliceLost");
        told.then_some(()).ok_or(format!("{events:?}"))
    })
    .await;
}

/// Ranges and nodes of a claim's offers, once no node requests a part of it any more.
pub async fn answered(site: &Site, range: &str) -> Vec<(String, String)> {
    let name = range.replace('/', "-");
    let claims = site.claim_api();
    until("the want is answered", async || {
        let now = claims.get(&name).await.unwrap().spec;
        if !now.wants.is_empty() {
            return Err(format!("{now:?}"));
        }
        let offers = now.offers.into_iter();
        Ok(offers.map(|one| (one.range, one.node)).collect())
    })
    .await
}
