//! Response times of servers, so that the fastest are asked first.

use crate::ClockReading;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Response times by address, in milliseconds, for a bounded number of servers.
#[derive(Debug)]
pub struct ServerTimes {
    servers_max: usize,
    entries: Mutex<HashMap<SocketAddr, TimesEntry>>,
}

#[derive(Clone, Copy, Debug)]
struct TimesEntry {
    took_ms: u32,
    noted_ms: u64,
    /// When it last answered as a primary server.
    primary_ms: Option<u64>,
}

/// Half-life of a response time, so that slow servers are tried again after a while.
const HALF_LIFE_MS: u64 = 60_000;
/// How long the primary server that answered last is preferred, as in deployed clients.
const PRIMARY_MS: u64 = 3_600_000;
/// Width of the jitter, in milliseconds, as in deployed clients.
const JITTER_MS: u32 = 256;

impl TimesEntry {
    fn at(self, now: ClockReading) -> u32 {
        let halvings = now.ms.saturating_sub(self.noted_ms) / HALF_LIFE_MS;
        u32::try_from(halvings).ok().and_then(|halvings| self.took_ms.checked_shr(halvings)).unwrap_or(0)
    }
}

impl ServerTimes {
    /// Keeps the times of at most `servers_max` servers.
    #[must_use]
    pub fn new(servers_max: usize) -> Self {
        Self { servers_max, entries: Mutex::default() }
    }

    /// Records the time of an answer, as the mean with the previous value. A failure counts as the
    /// time that was waited.
    pub fn note(&self, server: SocketAddr, took_ms: u32, now: ClockReading) {
        let mut known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = known.len() >= self.servers_max;
        match known.get_mut(&server) {
            Some(known) => {
                *known = TimesEntry { took_ms: known.at(now).midpoint(took_ms), noted_ms: now.ms, ..*known };
            }
            // Servers beyond the limit stay unknown, which does no harm: they are asked like new
            // ones.
            None if is_full => {}
            None => {
                known.insert(server, TimesEntry { took_ms, noted_ms: now.ms, primary_ms: None });
            }
        }
    }

    /// Records that a server answered as a primary one. Of several primaries that do not have each
    /// other's changes yet, the same one is to be asked again.
    pub fn note_primary(&self, server: SocketAddr, now: ClockReading) {
        let mut known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(&server) {
            known.primary_ms = Some(now.ms);
        }
    }

    /// When a server last answered as a primary one, if that was recent.
    #[must_use]
    pub fn primary_ms(&self, server: SocketAddr, now: ClockReading) -> Option<u64> {
        let known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let primary_ms = known.get(&server)?.primary_ms?;
        (now.ms.saturating_sub(primary_ms) < PRIMARY_MS).then_some(primary_ms)
    }

    /// The rank of `server`: its response time and a random jitter. Unknown servers count as fast.
    pub fn rank(&self, server: SocketAddr, random: u32, now: ClockReading) -> u32 {
        self.known_ms(server, now).unwrap_or(0).saturating_add(random % JITTER_MS)
    }

    /// The response time of `server`, if it is known.
    #[must_use]
    pub fn known_ms(&self, server: SocketAddr, now: ClockReading) -> Option<u32> {
        let known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&server).map(|known| known.at(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u8) -> SocketAddr {
        ([192, 0, 2, number], 2641).into()
    }

    const fn at(ms: u64) -> ClockReading {
        ClockReading { ms, unix_s: 0 }
    }

    #[test]
    fn slow_servers_come_last_and_are_forgiven_in_time() {
        let times = ServerTimes::new(8);
        times.note(server(1), 20, at(0));
        times.note(server(2), 60_000, at(0));
        assert_eq!(times.rank(server(1), 0, at(0)), 20);
        assert_eq!(times.rank(server(2), 5, at(59_999)), 60_005);
        assert_eq!(times.rank(server(2), 5, at(60_000)), 30_005);
        assert_eq!(times.rank(server(3), 256 + 7, at(0)), 7, "unknown");
        assert_eq!(times.rank(server(2), 0, at(16 * 60_000)), 0);
        assert_eq!(times.rank(server(2), 0, at(u64::MAX)), 0);
    }

    #[test]
    fn the_number_of_kept_times_is_bounded() {
        let times = ServerTimes::new(2);
        (1..=3).for_each(|number| times.note(server(number), 10, at(0)));
        times.note(server(2), 30, at(1));
        let known = [1, 2, 3].map(|number| times.known_ms(server(number), at(1)));
        assert_eq!(known, [Some(10), Some(20), None]);
    }
}
