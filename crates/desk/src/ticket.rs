//! A request in a desk's queue.

use std::time::{Duration, Instant};

use berth_core::plan::Scope;
use berth_core::{Address, Answer, Record, Request};
use tokio::sync::oneshot;

use crate::DeskError;

#[derive(Debug)]
pub(crate) struct Ticket {
    /// Of a [`Reply::Found`]: the release of what is to be found.
    pub request: Request,
    pub arrived: Instant,
    pub deadline: Instant,
    pub reply: Reply,
    pub origin: Origin,
    pub route: Route,
    /// What it may change; none for all that it names.
    pub scope: Option<Scope>,
}

/// What the caller waits for.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The request is served.
    Answer(oneshot::Sender<Result<Answer, DeskError>>),
    /// Nothing is changed: what the request would release is read.
    Found(oneshot::Sender<Result<Vec<(Address, Record)>, DeskError>>),
}

/// Who waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A caller of this process: a grant that it does not receive is undone.
    ThisProcess,
    /// A caller of another process. It may have found its grant in the ledger meanwhile and use it: what was granted
    /// stays, and goes with its holder.
    OtherProcess,
}

/// Which desk may serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The leader's, if there is one.
    LeaderFirst,
    /// This one alone.
    Here,
}

impl Ticket {
    /// A request of this process, which may change all that it names.
    pub fn new(request: Request, limit: Duration, reply: Reply) -> Ticket {
        let arrived = Instant::now();
        Ticket {
            request,
            arrived,
            deadline: arrived + limit,
            reply,
            origin: Origin::ThisProcess,
            route: Route::LeaderFirst,
            scope: None,
        }
    }

    /// Whether it only reads.
    pub fn is_find(&self) -> bool {
        matches!(self.reply, Reply::Found(_))
    }

    /// Whether its time is up, or its caller has gone.
    pub fn is_over(&self, now: Instant) -> bool {
        let is_closed = match &self.reply {
            Reply::Answer(reply) => reply.is_closed(),
            Reply::Found(reply) => reply.is_closed(),
        };
        self.deadline <= now || is_closed
    }

    /// Answers with an error. A caller that has gone needs none.
    pub fn refuse(self, error: DeskError) {
        match self.reply {
            Reply::Answer(reply) => drop(reply.send(Err(error))),
            Reply::Found(reply) => drop(reply.send(Err(error))),
        }
    }
}
