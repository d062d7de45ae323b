//! Limits on audit lines that cost the client nothing: refusals, anonymous requests, and requests
//! without effect.

use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;

/// After a quiet time, the bytes of this many seconds may be written at once.
const BURST_S: u64 = 64;

/// Limits on such lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditBounds {
    /// Lines per second.
    pub lines_per_s: u32,
    /// Lines per second from one source: an IPv4 address, or a /64 of IPv6.
    pub lines_per_source_per_s: u32,
    /// Bytes per second, averaged.
    pub bytes_per_s: u64,
}

/// Why a line is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundedKind {
    /// The request was refused.
    Refused,
    /// The request needed no authentication.
    Anonymous,
    /// The request changed nothing.
    Unchanged,
}

/// Lines that were left out since the last summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct BoundsSummary {
    pub(super) left_out: u64,
    pub(super) refused: u64,
    pub(super) anonymous: u64,
    pub(super) unchanged: u64,
}

impl BoundsSummary {
    fn count(&mut self, bounded: BoundedKind) {
        self.left_out += 1;
        match bounded {
            BoundedKind::Refused => self.refused += 1,
            BoundedKind::Anonymous => self.anonymous += 1,
            BoundedKind::Unchanged => self.unchanged += 1,
        }
    }
}

/// Counts bounded lines. Within one second, it keeps no more sources than lines are written.
#[derive(Debug)]
pub(super) struct LineGate {
    bounds: AuditBounds,
    unix_s: u64,
    written: u32,
    of_source: HashMap<IpAddr, u32>,
    bytes_left: u64,
    summary: BoundsSummary,
}

impl LineGate {
    pub(super) fn new(bounds: AuditBounds) -> Self {
        Self {
            bounds,
            unix_s: 0,
            written: 0,
            of_source: HashMap::new(),
            bytes_left: bounds.bytes_per_s * BURST_S,
            summary: BoundsSummary::default(),
        }
    }

    pub(super) fn set(&mut self, bounds: AuditBounds) {
        self.bounds = bounds;
        self.bytes_left = self.bytes_left.min(bounds.bytes_per_s * BURST_S);
    }

    /// Whether to write a line of `len` bytes. A line that is not written is counted.
    pub(super) fn admit(&mut self, source: IpAddr, unix_s: u64, len: u64, bounded: BoundedKind) -> bool {
        let bounds = self.bounds;
        if self.unix_s != unix_s {
            let refill = unix_s.saturating_sub(self.unix_s).saturating_mul(bounds.bytes_per_s);
            self.bytes_left = self.bytes_left.saturating_add(refill).min(bounds.bytes_per_s * BURST_S);
            (self.unix_s, self.written) = (unix_s, 0);
            self.of_source.clear();
        }
        let of_source = self.of_source.get(&source).copied().unwrap_or(0);
        let is_admitted = self.written < bounds.lines_per_s
            && of_source < bounds.lines_per_source_per_s
            && len <= self.bytes_left;
        if is_admitted {
            self.written += 1;
            self.bytes_left -= len;
            self.of_source.insert(source, of_source + 1);
        } else {
            self.summary.count(bounded);
        }
        is_admitted
    }

    /// Counts a line that is left out for another reason.
    pub(super) fn leave_out(&mut self, bounded: BoundedKind) {
        self.summary.count(bounded);
    }

    /// The lines left out since the last call, if any.
    pub(super) fn take_summary(&mut self) -> Option<BoundsSummary> {
        let summary = std::mem::take(&mut self.summary);
        (summary.left_out > 0).then_some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: AuditBounds = AuditBounds { lines_per_s: 10, lines_per_source_per_s: 3, bytes_per_s: 1000 };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn lines_are_limited_by_source_and_in_total() {
        let mut gate = LineGate::new(BOUNDS);
        let mut admitted = |source, count, unix_s| {
            (0..count).filter(|_| gate.admit(source, unix_s, 1, BoundedKind::Refused)).count()
        };
        assert_eq!(admitted(ip(1), 13, 5), 3);
        assert_eq!(admitted(ip(2), 2, 5), 2, "a flood does not use the share of others");
        assert_eq!((3..9).map(|last| admitted(ip(last), 3, 5)).sum::<usize>(), 5);
        assert_eq!(admitted(ip(1), 1, 6), 1);
        let left_out = BoundsSummary { left_out: 23, refused: 23, ..BoundsSummary::default() };
        assert_eq!(gate.take_summary(), Some(left_out));
        assert_eq!(gate.take_summary(), None);
    }

    #[test]
    fn bytes_are_bounded_by_rate() {
        let bounds = AuditBounds { lines_per_s: 1000, lines_per_source_per_s: 1000, ..BOUNDS };
        let mut gate = LineGate::new(bounds);
        let mut admitted =
            |unix_s| (0..1000).filter(|_| gate.admit(ip(1), unix_s, 500, BoundedKind::Anonymous)).count();
        assert_eq!(admitted(100), 128, "64,000 bytes at once");
        assert_eq!((101..201).map(&mut admitted).sum::<usize>(), 200, "then 1000 in a second");
        assert_eq!(admitted(10_000), 128);
        assert_eq!(gate.take_summary().unwrap().anonymous, 1000 * 102 - 456);
    }
}
