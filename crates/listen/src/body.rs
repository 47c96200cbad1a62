//! A request's body with a deadline, charged to a budget that all bodies of a listener share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::gate::Activity;

/// Bodies are charged in these units.
const UNIT: usize = 1024;

const WHOLE: u8 = 0;
const LATE: u8 = 1;
const NO_ROOM: u8 = 2;

/// The budget of all bodies of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget(Arc::new(Semaphore::new(
            (bytes / UNIT).min(Semaphore::MAX_PERMITS),
        )))
    }

    fn take(&self, units: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(units).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(units).ok()
    }
}

/// What one request's body holds until its answer, and how reading it ended.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Budget,
    held: Mutex<Option<OwnedSemaphorePermit>>,
    ended: AtomicU8,
}

impl Charge {
    pub fn new(budget: &Budget) -> Arc<Charge> {
        Arc::new(Charge {
            budget: budget.clone(),
            held: Mutex::default(),
            ended: AtomicU8::new(WHOLE),
        })
    }

    /// Charges as many units as `bytes` need; false if the budget is used up.
    fn hold(&self, bytes: usize) -> bool {
        let mut held = self.held.lock();
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let need = bytes.div_ceil(UNIT);
        if need <= have {
            return true;
        }
        let Some(more) = self.budget.take(need - have) else {
            return false;
        };
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        true
    }

    /// The answer instead of the handler's own, if its body was cut short here; in the format of its routes.
    pub fn refusal(&self, answered: &Response) -> Option<Response> {
        let refused = match self.ended.load(Ordering::Relaxed) {
            LATE => Refused::Late,
            NO_ROOM => Refused::NoRoom,
            _ => return None,
        };
        let form = answered.extensions().get::<RefusalForm>();
        let mut response = form.map_or(plain as fn(Refused) -> Response, |form| form.0)(refused);
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        Some(response)
    }
}

/// Why the listener answers instead of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The body did not arrive in time.
    Late,
    /// The budget of all bodies is used up.
    NoRoom,
}

impl Refused {
    pub const fn status(self) -> StatusCode {
        match self {
            Refused::Late => StatusCode::REQUEST_TIMEOUT,
            Refused::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub const fn text(self) -> &'static str {
        match self {
            Refused::Late => "the request's body did not arrive in time",
            Refused::NoRoom => "too many request bodies at a time; try again later",
        }
    }
}

/// How routes format what the listener refuses. They put it into the extensions of each of their responses; without it
/// the refusal is plain text.
#[derive(Clone, Copy, Debug)]
pub struct RefusalForm(pub fn(Refused) -> Response);

fn plain(refused: Refused) -> Response {
    (refused.status(), format!("{}\n", refused.text())).into_response()
}

/// The body that a handler gets.
pub(crate) struct Bounded {
    inner: Incoming,
    deadline: Pin<Box<Sleep>>,
    read: usize,
    charge: Arc<Charge>,
    activity: Arc<Activity>,
}

impl Bounded {
    /// Wraps a body whose head has just arrived. A request without a body is complete at once.
    pub fn wrap(
        inner: Incoming,
        limit: Duration,
        charge: &Arc<Charge>,
        activity: &Arc<Activity>,
    ) -> Body {
        if inner.is_end_stream() {
            activity.serve();
            return Body::empty();
        }
        Body::new(Bounded {
            inner,
            deadline: Box::pin(tokio::time::sleep(limit)),
            read: 0,
            charge: Arc::clone(charge),
            activity: Arc::clone(activity),
        })
    }

    fn cut(&self, how: u8, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.charge.ended.store(how, Ordering::Relaxed);
        Poll::Ready(Some(Err(why.into())))
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Pending => match this.deadline.as_mut().poll(cx) {
                Poll::Ready(()) => this.cut(LATE, "the body did not arrive in time"),
                Poll::Pending => Poll::Pending,
            },
            Poll::Ready(Some(Ok(frame))) => {
                this.read += frame.data_ref().map_or(0, Bytes::len);
                if this.deadline.is_elapsed() {
                    return this.cut(LATE, "the body did not arrive in time");
                }
                if !this.charge.hold(this.read) {
                    return this.cut(NO_ROOM, "too many bodies at a time");
                }
                if this.inner.is_end_stream() {
                    this.activity.serve();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                this.activity.serve();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
