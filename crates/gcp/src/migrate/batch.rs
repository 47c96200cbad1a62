//! Group commit of moves: calls for one VM that wait while another is under way go out together.
//!
//! Guarantees: one call of a VM at a time in this process; additions and removals are never in one; before a call is sent,
//! and after its fingerprint was read, the record of each move in it is read once more, and a move that is further by then
//! is left out; a call that the cloud refuses is made again for each move alone, so that a bad one fails alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use berth_attachment::Goal;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::executor::{Vm, of_operation, of_update};
use super::group::{self, Share};
use super::machine::{Call, Outcome};
use crate::cloud::{Cloud, CloudError, Nic, RequestId};
use crate::nic::{Aliases, GATHER, MAX_ALIASES, NodeLock};

/// How a call ended, and why it failed.
pub(super) type Ended = (Outcome, Option<CloudError>);
/// Whether the record of the move is still as it was when the call was asked for.
pub(super) type Current = Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// The calls that wait, by VM. One for all moves of a process.
#[derive(Debug, Default)]
pub struct Updates {
    vms: Mutex<BTreeMap<Vm, Arc<Queue>>>,
}

#[derive(Debug, Default)]
struct Queue {
    turn: AsyncMutex<()>,
    waiting: Mutex<Vec<Ticket>>,
}

struct Ticket {
    address: Ipv4Addr,
    call: Call<Vm>,
    current: Current,
    reply: oneshot::Sender<Ended>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.address, self.call)
    }
}

/// Where calls go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    pub cloud: &'a Cloud,
    pub nic: &'a str,
    pub range: Option<&'a str>,
    pub lock: Option<&'a (Vm, NodeLock)>,
}

impl Updates {
    /// Makes the call, together with what waits for the same VM.
    pub(super) async fn make(
        &self,
        route: Route<'_>,
        address: Ipv4Addr,
        call: &Call<Vm>,
        current: Current,
    ) -> Ended {
        let queue = Arc::clone(self.vms.lock().entry(call.node.clone()).or_default());
        let (reply, mut answer) = oneshot::channel();
        queue.waiting.lock().push(Ticket {
            address,
            call: call.clone(),
            current,
            reply,
        });
        loop {
            let _turn = tokio::select! {
                biased;
                // The sender is gone where the process that had the turn left it: the call is repeated.
                ended = &mut answer => return ended.unwrap_or((Outcome::Unknown, None)),
                turn = queue.turn.lock() => turn,
            };
            if !queue.waiting.lock().is_empty() {
                tokio::time::sleep(GATHER).await;
            }
            let batch = queue.take();
            if !batch.is_empty() {
                send(route, &call.node, batch).await;
            }
        }
    }
}

impl Queue {
    /// What waits for the goal of the one that has waited longest.
    fn take(&self) -> Vec<Ticket> {
        let mut waiting = self.waiting.lock();
        let (now, later) = group::take(std::mem::take(&mut *waiting), |ticket| ticket.call.goal);
        *waiting = later;
        now
    }
}

async fn send(route: Route<'_>, vm: &Vm, batch: Vec<Ticket>) {
    let ended = attempt(route, vm, &batch).await;
    let calls = batch.len();
    for (ticket, ended) in batch.into_iter().zip(ended) {
        let ended = match group::share(ended.0, calls) {
            Share::Alone => {
                let one = attempt(route, vm, std::slice::from_ref(&ticket)).await;
                one.into_iter().next().unwrap_or((Outcome::Unknown, None))
            }
            Share::Ended(_) => ended,
        };
        // The caller may have left.
        let _ = ticket.reply.send(ended);
    }
}

/// One ending per ticket, in their order.
async fn attempt(route: Route<'_>, vm: &Vm, batch: &[Ticket]) -> Vec<Ended> {
    let all = |ended: Ended| vec![ended; batch.len()];
    let _held = match route.lock {
        Some((own, lock)) if own == vm => match lock.hold().await {
            Ok(held) => Some(held),
            Err(error) => {
                let error = CloudError::Unavailable(error.to_string());
                return all((Outcome::Unknown, Some(error)));
            }
        },
        _ => None,
    };
    let read = route.cloud.instance(&vm.zone, &vm.instance).await;
    let nic = match read.and_then(|instance| instance.nic(route.nic).cloned()) {
        Ok(nic) => nic,
        Err(error @ CloudError::NotFound(_)) => return all((Outcome::Gone, Some(error))),
        Err(error) => return all((Outcome::Unknown, Some(error))),
    };
    // After the fingerprint: if a record has moved on, its call must not be made any more.
    let current = join_all(batch.iter().map(|ticket| (ticket.current)())).await;
    let made: Vec<&Ticket> = batch
        .iter()
        .zip(&current)
        .filter_map(|(ticket, current)| current.then_some(ticket))
        .collect();
    let ended = match made.is_empty() {
        true => (Outcome::Unknown, None),
        false => update(route, vm, &nic, &made).await,
    };
    let left_out = (Outcome::Unknown, None);
    current
        .into_iter()
        .map(|current| {
            if current {
                ended.clone()
            } else {
                left_out.clone()
            }
        })
        .collect()
}

async fn update(route: Route<'_>, vm: &Vm, nic: &Nic, made: &[&Ticket]) -> Ended {
    let goal = made.first().map_or(Goal::Absent, |ticket| ticket.call.goal);
    let addresses: BTreeSet<Ipv4Addr> = made.iter().map(|ticket| ticket.address).collect();
    let aliases = Aliases {
        read: &nic.aliases,
        range: route.range,
        limit: MAX_ALIASES,
    };
    let list = match aliases.after(goal, &addresses) {
        Ok(Some(list)) => list,
        Ok(None) => return (Outcome::Done, None),
        Err(_) => {
            let (instance, used) = (&vm.instance, nic.aliases.len());
            let text = format!("instance {instance} has {used} alias ranges");
            return (Outcome::Refused, Some(CloudError::NicFull(text)));
        }
    };
    let id = group::request_id(made.iter().map(|ticket| ticket.call.id));
    let request = RequestId::of(id.0);
    let at = (vm.zone.as_str(), vm.instance.as_str());
    let sent = route
        .cloud
        .set_aliases(at, (&nic.name, &nic.fingerprint), &list, &request);
    match sent.await {
        Ok(operation) => match route.cloud.wait(&operation).await {
            Ok(()) => (Outcome::Done, None),
            Err(error) => (of_operation(&error), Some(error)),
        },
        Err(error) => (of_update(&error, goal), Some(error)),
    }
}
