//! Requests on their way to `handle-admin`. Their number is bounded by their places.

use super::ForwardState;
use crate::slow::queue::SlowJob;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError, TryLockError};

/// What a forwarding thread is to do.
#[derive(Debug)]
pub(crate) enum ForwardItem {
    /// Forward this request, or ask for the next part of its listing.
    Job(Box<SlowJob>),
    /// End this listing: nobody reads it any more.
    End(Box<ForwardState>),
}

/// Items in their order.
#[derive(Debug, Default)]
pub(crate) struct ForwardQueue {
    state: Mutex<QueueState>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<ForwardItem>,
    is_closed: bool,
}

impl ForwardQueue {
    /// Hands over an item; for threads that may wait.
    pub(crate) fn submit(&self, item: ForwardItem) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).items.push_back(item);
        self.more.notify_one();
    }

    /// Hands over the items of a worker, which does not wait: while another thread is at the queue they stay.
    pub(crate) fn try_submit(&self, items: &mut VecDeque<ForwardItem>) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        state.items.append(items);
        drop(state);
        self.more.notify_all();
    }

    /// The next item; waits for one. `None` when there will be no more.
    pub(crate) fn next(&self) -> Option<ForwardItem> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the threads come to an end; what waits is let go.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        state.items.clear();
        drop(state);
        self.more.notify_all();
    }
}
