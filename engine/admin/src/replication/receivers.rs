//! The progress of each receiver of streams, for metrics and the control socket.

use super::source::ReceiverShare;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of receivers whose progress is kept. A receiver is an authorised identity with a
/// server of its site. Beyond the maximum, the receiver with the oldest request is dropped.
const RECEIVERS_MAX: usize = 256;

/// A receiver: an identity, and the server of its site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiverKey {
    /// The identity, as `index:handle`.
    pub identity: String,
    /// The position of the server in the site of the receiver.
    pub server_at: u32,
}

impl ReceiverKey {
    /// The receiver with this identity and share.
    #[must_use]
    pub fn new(identity: &str, share: ReceiverShare) -> Self {
        Self { identity: identity.to_owned(), server_at: share.server_at }
    }
}

/// The progress of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiverProgress {
    /// The last transaction that it has, from its requests or its last complete stream.
    pub last_transaction: u64,
    /// The time of its last request, in milliseconds since 1970.
    pub asked_unix_ms: u64,
    /// Streams of transactions that were sent to the end.
    pub streams: u64,
    /// Dumps that were sent to the end.
    pub dumps: u64,
}

/// What a receiver is sent: whether it has to request all records, and the last transaction here.
pub(super) type ReceiverNews = (bool, u64);

#[derive(Debug, Default)]
struct KnownReceiver {
    progress: ReceiverProgress,
    /// What it was last sent.
    last_news: Option<ReceiverNews>,
}

/// The progress of all known receivers.
#[derive(Debug, Default)]
pub struct Receivers(Mutex<BTreeMap<ReceiverKey, KnownReceiver>>);

impl Receivers {
    fn table(&self) -> MutexGuard<'_, BTreeMap<ReceiverKey, KnownReceiver>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request of a receiver, which names `last_id` as its last transaction.
    pub(super) fn note_request(&self, receiver: ReceiverKey, last_id: Option<i64>, now_unix_ms: u64) {
        let mut table = self.table();
        if table.len() >= RECEIVERS_MAX && !table.contains_key(&receiver) {
            let oldest = table.iter().min_by_key(|(_, known)| known.progress.asked_unix_ms);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                table.remove(&oldest);
            }
        }
        let progress = &mut table.entry(receiver).or_default().progress;
        progress.asked_unix_ms = now_unix_ms;
        if let Some(last_id) = last_id.and_then(|id| u64::try_from(id).ok()) {
            progress.last_transaction = progress.last_transaction.max(last_id);
        }
    }

    /// Notes what a receiver is sent; whether that differs from the last time.
    pub(super) fn note_news(&self, receiver: &ReceiverKey, news: ReceiverNews) -> bool {
        let mut table = self.table();
        table.get_mut(receiver).is_none_or(|known| known.last_news.replace(news) != Some(news))
    }

    /// Notes that all transactions up to `last_id` were sent to the receiver.
    pub(super) fn received_transactions(&self, receiver: &ReceiverKey, last_id: u64) {
        if let Some(KnownReceiver { progress, .. }) = self.table().get_mut(receiver) {
            progress.last_transaction = last_id;
            progress.streams += 1;
        }
    }

    /// Notes that all records were sent to the receiver, as of transaction `last_id`.
    pub(super) fn received_dump(&self, receiver: &ReceiverKey, last_id: u64) {
        if let Some(KnownReceiver { progress, .. }) = self.table().get_mut(receiver) {
            progress.last_transaction = last_id;
            progress.dumps += 1;
        }
    }

    /// All receivers with their progress.
    #[must_use]
    pub fn all(&self) -> Vec<(ReceiverKey, ReceiverProgress)> {
        self.table().iter().map(|(key, known)| (key.clone(), known.progress)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_kept_by_receiver_and_bounded() {
        let receivers = Receivers::default();
        let key = |n: u32| ReceiverKey { identity: "300:10.1/m".to_owned(), server_at: n };
        receivers.note_request(key(0), Some(5), 1);
        receivers.received_transactions(&key(0), 9);
        receivers.note_request(key(0), Some(7), 2);
        let expected = ReceiverProgress { last_transaction: 9, asked_unix_ms: 2, streams: 1, dumps: 0 };
        assert_eq!(receivers.all(), [(key(0), expected)]);
        receivers.received_dump(&key(0), 3);
        assert_eq!(receivers.all()[0].1.last_transaction, 3, "a new dump begins");
        let noted = |news| receivers.note_news(&key(0), news);
        assert_eq!(
            [(false, 3), (false, 3), (true, 3), (true, 3), (false, 4)].map(noted),
            [true, false, true, false, true]
        );
        (1..1000).for_each(|n| receivers.note_request(key(n), None, 10 + u64::from(n)));
        let all = receivers.all();
        assert_eq!(all.len(), RECEIVERS_MAX);
        assert!(all.iter().all(|(key, _)| key.server_at >= 1000 - 256), "the oldest are gone");
    }
}
