//! The write queue of pool objects: which process writes next, as annotations of one Lease beside the pools.
//!
//! Not on the pool itself: joining there would cost a write of the whole object, and make a concurrent patch of
//! whereabouts fail, which tests the version. One Lease for the pools of a namespace, because a role can name it.
//!
//! Only writers that met others join the queue; a writer that is alone makes no call. A writer that is done leaves it, so
//! that no one waits for a writer with nothing to write. Correctness does not depend on it: a commit has its own
//! preconditions (I1), and a process that may not write the Lease commits without a turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kube::{Failure, KubeError, ObjectClient, Place, Resource, Verb};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::Patch;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Version;
use crate::turns::{Line, PREFIX, Patience, Ring, patch};

/// The kind of object that the queues are on.
pub const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    place: Place::Namespaced,
};

/// The Lease that the queues are on.
const NAME: &str = "berth-turns";

/// A write of a pool of 10,000 takes a second and more.
const PATIENCE: Patience = Patience {
    least: Duration::from_millis(50),
    longest: Duration::from_secs(5),
    from_others: true,
};

/// A process that may not write the Lease commits without turns for this long; after another failure, for a moment.
const WITHOUT: Duration = Duration::from_secs(30);
const A_MOMENT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct WriteQueue {
    /// The name of this process among those that take turns.
    id: String,
    memberships: Mutex<BTreeMap<String, Arc<Membership>>>,
}

/// This process's membership in the queue of one pool.
#[derive(Debug)]
struct Membership {
    line: Arc<Line>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Others write the pool too.
    crowded: bool,
    turn: Option<Held>,
    without_until: Option<Instant>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    /// Who was waited for in vain, and goes with us.
    passed: Vec<String>,
}

impl Default for WriteQueue {
    fn default() -> Self {
        Self {
            id: format!("{:08x}", rand::random::<u32>()),
            memberships: Mutex::default(),
        }
    }
}

impl WriteQueue {
    fn membership(&self, pool: &str) -> Arc<Membership> {
        let mut memberships = self.memberships.lock();
        Arc::clone(memberships.entry(pool.to_owned()).or_insert_with(|| {
            let prefix = format!("{PREFIX}{:08x}-", hash(pool));
            Arc::new(Membership {
                line: Arc::new(Line::new(prefix, PATIENCE)),
                state: Mutex::default(),
            })
        }))
    }

    /// A commit met other writers of the pool: the next one takes its turn.
    pub fn met_others(&self, pool: &str) {
        self.membership(pool).state.lock().crowded = true;
    }

    /// Waits for the turn to write the pool, where others write it too. Whether there is one.
    pub async fn take(&self, client: &ObjectClient, pool: &str) -> bool {
        let membership = self.membership(pool);
        {
            let state = membership.state.lock();
            let without = |until: Instant| until > Instant::now();
            if state.turn.is_some() {
                return true;
            }
            if !state.crowded || state.without_until.is_some_and(without) {
                return false;
            }
        }
        let api: Api<Lease> = Api::namespaced(client.kube().clone(), client.namespace());
        loop {
            if let Err(error) = self.sign_up(client, &membership.line).await {
                tracing::debug!(pool, %error, "no turn is to be had");
                let denied = matches!(error, KubeError::Rejected { .. });
                let without = if denied { WITHOUT } else { A_MOMENT };
                membership.state.lock().without_until = Some(Instant::now() + without);
                return false;
            }
            membership.line.follow(&api, NAME);
            // Removed by another process that waited too long: join again.
            let Some(passed) = membership.line.turn(&self.id).await else {
                continue;
            };
            membership.state.lock().turn = Some(Held {
                since: Instant::now(),
                passed,
            });
            return true;
        }
    }

    /// The turn, if there is one, is the next one's.
    pub fn pass(&self, client: &ObjectClient, pool: &str) {
        let membership = self.membership(pool);
        let Some(held) = membership.state.lock().turn.take() else {
            return;
        };
        membership.line.took(held.since.elapsed());
        if membership.line.ring().is_alone(&self.id) {
            membership.state.lock().crowded = false;
        }
        let gone = held.passed.iter().map(String::as_str);
        let gone = gone.chain([self.id.as_str()]).map(|member| (member, None));
        let off = patch(membership.line.prefix(), gone);
        let client = client.clone();
        // The request's answer does not wait for this.
        tokio::spawn(async move {
            match client.patch(&LEASES, NAME, &Patch::Merge(off)).await {
                Ok(lease) => hear(&membership.line, &lease),
                Err(failure) => {
                    let error = failure.into_error(client.ask(Verb::Patch, &LEASES, NAME));
                    tracing::debug!(%error, "still signed up; the others will pass us over");
                }
            }
        });
    }

    /// Signs up behind all who are known to wait.
    async fn sign_up(&self, client: &ObjectClient, line: &Line) -> Result<(), KubeError> {
        if !line.is_followed() {
            match client.get_metadata(&LEASES, NAME).await? {
                Some(lease) => hear(line, &lease.object),
                None => create(client).await?,
            }
        }
        let up = patch(line.prefix(), [(self.id.as_str(), Some(line.ring().end()))]);
        let signed = client.patch(&LEASES, NAME, &Patch::Merge(up)).await;
        let lease =
            signed.map_err(|failure| failure.into_error(client.ask(Verb::Patch, &LEASES, NAME)))?;
        hear(line, &lease);
        Ok(())
    }
}

async fn create(client: &ObjectClient) -> Result<(), KubeError> {
    // Every change goes to all who wait: without a history of each field it is half as long.
    let lease = json!({
        "apiVersion": LEASES.api_version(),
        "kind": LEASES.kind,
        "metadata": { "name": NAME, "managedFields": [{}] },
    });
    match client.create(&LEASES, &lease).await {
        Ok(_) => Ok(()),
        Err(Failure::Refused(refusal)) if refusal.is_taken_name() => Ok(()),
        Err(failure) => Err(failure.into_error(client.ask(Verb::Create, &LEASES, NAME))),
    }
}

fn hear(line: &Line, lease: &Value) {
    let metadata = &lease["metadata"];
    let annotations = metadata["annotations"].as_object().map(|annotations| {
        let text =
            |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        annotations.iter().filter_map(text).collect()
    });
    let version = metadata["resourceVersion"].as_str().unwrap_or_default();
    let ring = Ring::read(line.prefix(), annotations.as_ref());
    line.hear(Version::new(version), ring);
}

/// FNV-1a: the same in every process and version. Pools that share a value share turns, and nothing else.
fn hash(pool: &str) -> u32 {
    pool.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
