//! The requests of a batch of datagrams.

use crate::counters::Counters;
use crate::rate_limit::shortest_len;
use handle_net::{Inbox, Peer};

/// The datagrams of a batch, numbered in order of arrival through all trains.
#[derive(Clone, Copy)]
pub(super) struct UdpBatch<'r> {
    inbox: Inbox<'r>,
    /// For each datagram its position in the inbox, which is that of its train.
    trains_at: &'r [u16],
}

impl<'r> UdpBatch<'r> {
    /// The batch in `inbox`, whose datagrams have these `trains_at`.
    pub(super) const fn new(inbox: Inbox<'r>, trains_at: &'r [u16]) -> Self {
        Self { inbox, trains_at }
    }

    /// Number of datagrams.
    pub(super) const fn len(&self) -> usize {
        self.trains_at.len()
    }

    /// Request number `at`.
    pub(super) const fn request(&'r self, at: usize) -> UdpRequest<'r> {
        UdpRequest { batch: self, at }
    }

    /// All datagrams, with their senders.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = (Peer, &'r [u8])> + use<'r> {
        let trains = self.inbox.iter();
        trains.flat_map(|train| train.segments().map(move |datagram| (train.peer, datagram)))
    }
}

/// A request in a batch. Most answers need nothing of it but its sender, so everything else is
/// looked up when it is needed.
#[derive(Clone, Copy)]
pub(super) struct UdpRequest<'r> {
    batch: &'r UdpBatch<'r>,
    at: usize,
}

impl<'r> UdpRequest<'r> {
    /// The sender.
    #[inline]
    pub(super) fn peer(self) -> Peer {
        self.batch.inbox.get(usize::from(self.batch.trains_at[self.at])).peer
    }

    /// The bytes of the request, envelope first.
    pub(super) fn message(self) -> &'r [u8] {
        let UdpBatch { inbox, trains_at } = *self.batch;
        let train_at = trains_at[self.at];
        let first = trains_at.partition_point(|&other| other < train_at);
        inbox.get(usize::from(train_at)).segments().nth(self.at - first).unwrap_or_default()
    }

    /// Bytes of the shortest datagram of the train in which the request came.
    #[inline]
    pub(super) fn shortest_len(self) -> usize {
        shortest_len(&self.batch.inbox.get(usize::from(self.batch.trains_at[self.at])))
    }
}

/// Counts the received datagrams, and notes the position of each one in the inbox.
pub(super) fn receive(inbox: Inbox<'_>, trains_at: &mut Vec<u16>, counters: &Counters) {
    let (mut bytes, mut trains, mut truncated) = (0, 0, 0);
    trains_at.clear();
    for (train_at, train) in (0u16..).zip(inbox.iter()) {
        let count = train.segments_count();
        bytes += train.bytes.len() as u64;
        trains += u64::from(count > 1);
        truncated += u64::from(train.truncated);
        trains_at.resize(trains_at.len() + count, train_at);
    }
    counters.batches.add(1);
    counters.datagrams_received.add(trains_at.len() as u64);
    counters.bytes_received.add(bytes);
    counters.trains_received.add(trains);
    counters.received_truncated.add(truncated);
}
