//! The queue of requests to `handle-admin`. Its length is bounded by the permits of the requests.

use super::state::ForwardState;
use crate::slow::queue::SlowJob;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError, TryLockError};

/// A task of a forwarding thread.
#[derive(Debug)]
pub(crate) enum ForwardItem {
    /// Forward this request, or ask for the next part of its listing.
    Job(Box<SlowJob>),
    /// End this listing, because its connection is closed.
    End(Box<ForwardState>),
}

/// A queue of items in order.
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
    /// Hands over an item. May block, so workers use [`try_submit`](Self::try_submit).
    pub(crate) fn submit(&self, item: ForwardItem) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).items.push_back(item);
        self.more.notify_one();
    }

    /// Hands over the items of a worker without blocking. While another thread holds the lock of
    /// the queue, the items stay in `items`.
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

    /// Waits for the next item. Returns `None` when the queue is closed.
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

    /// Closes the queue, so that the threads stop. Waiting items are discarded.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        state.items.clear();
        drop(state);
        self.more.notify_all();
    }
}
