//! Fragmented requests, until they are complete.

use crate::config::Config;
use crate::counters::Counters;
use handle_proto::wire::Envelope;
use handle_proto::wire::reassembly::{FragmentRefusal, Reassembly, ReassemblyLimits, ReassemblyOutcome};
use std::net::IpAddr;

/// The fragments that a worker keeps, by the address of their sender as in deployed servers.
pub(super) struct RequestFragments {
    table: Reassembly<IpAddr>,
    /// Most bytes of a fragmented request.
    len_max: u32,
}

impl RequestFragments {
    pub(super) fn new(config: &Config) -> Self {
        Self { table: Reassembly::new(limits(config)), len_max: config.limits.fragmented_request_bytes }
    }

    /// Applies other settings.
    pub(super) fn set(&mut self, config: &Config) {
        self.table.set_limits(limits(config));
        self.len_max = config.limits.fragmented_request_bytes;
    }

    /// The earliest time at which [`expire`](Self::expire) has something to do.
    pub(super) fn next_expiry_ms(&self) -> Option<u64> {
        self.table.next_expiry_ms()
    }

    /// Drops the fragments of requests that were not completed in time.
    pub(super) fn expire(&mut self, now_ms: u64, counters: &Counters) {
        self.table.expire(now_ms);
        counters.fragmented_expired.set(self.table.counts().expired);
    }

    /// Stores a fragment from `source` and counts it. Returns the whole message once it is
    /// complete.
    pub(super) fn put_together(
        &mut self,
        source: IpAddr,
        datagram: &[u8],
        now_ms: u64,
        counters: &Counters,
    ) -> Option<Vec<u8>> {
        if Envelope::split(datagram).is_ok_and(|(envelope, _)| envelope.message_len > self.len_max) {
            counters.dropped_fragment_too_long.add(1);
            return None;
        }
        let repeated = self.table.counts().repeated;
        let counter = match self.table.accept(source, datagram, now_ms) {
            Ok(ReassemblyOutcome::Complete(message)) => return Some(message),
            Ok(ReassemblyOutcome::Incomplete) if self.table.counts().repeated > repeated => {
                &counters.dropped_fragment_repeated
            }
            Ok(ReassemblyOutcome::Incomplete) => &counters.fragments_kept,
            // Deployed servers do not answer a message in a single fragment: `conversations.jsonl`,
            // `truncated_flag_single_packet`.
            Ok(ReassemblyOutcome::Whole(_))
            | Err(
                FragmentRefusal::Unreadable(_) | FragmentRefusal::Misfit | FragmentRefusal::Contradiction,
            ) => &counters.dropped_fragment_invalid,
            Err(FragmentRefusal::NoCapacity) => &counters.dropped_fragment_buffer_full,
        };
        counter.add(1);
        None
    }
}

fn limits(config: &Config) -> ReassemblyLimits {
    ReassemblyLimits {
        messages_max: config.limits.fragmented_requests,
        messages_per_sender_max: config.limits.fragmented_requests_per_sender,
        bytes_max: config.limits.fragmented_bytes,
        age_ms_max: config.limits.fragmented_wait_ms.into(),
    }
}
