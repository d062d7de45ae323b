//! The wait of a connection of HTTP/1.1 for requests.

use super::served_connection::ServedConnection;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// The timeout for the head of a request, and the signal that the process stops. One timer serves
/// all requests of a connection.
pub struct RequestWait<'w> {
    served: &'w ServedConnection,
    timer: Pin<&'w mut Sleep>,
    stopped: Pin<&'w mut (dyn Future<Output = ()> + Send)>,
    is_registered: bool,
    is_stopped: bool,
}

impl<'w> RequestWait<'w> {
    /// A wait with a timer for the first request, and the future that completes when the process
    /// stops.
    #[must_use]
    pub const fn new(
        served: &'w ServedConnection,
        timer: Pin<&'w mut Sleep>,
        stopped: Pin<&'w mut (dyn Future<Output = ()> + Send)>,
    ) -> Self {
        Self { served, timer, stopped, is_registered: false, is_stopped: false }
    }

    /// Completes when no complete head of a request has arrived within the timeout. Wakes the task
    /// when it may have, and once when the process stops.
    ///
    /// The timer and the stop signal keep the waker of their first poll, which is that of this
    /// task. They are polled again only after they have changed.
    pub fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.is_registered || self.timer.is_elapsed() {
            self.is_registered = true;
            if self.timer.as_mut().poll(context).is_ready() {
                match self.served.activity.deadline(self.served.header_timeout()) {
                    Some(deadline) => self.timer.as_mut().reset(deadline.into()),
                    None => return Poll::Ready(()),
                }
                self.is_registered = false;
            } else if !self.is_stopped {
                self.is_stopped = self.stopped.as_mut().poll(context).is_ready();
                if self.is_stopped {
                    // The caller may have looked just before.
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }
}
