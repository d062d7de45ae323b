//! How long servers took to answer, so that the fastest are asked first.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Response times by address, in milliseconds; of a bounded number of servers.
#[derive(Debug)]
pub struct Times {
    servers_max: usize,
    ms: Mutex<HashMap<SocketAddr, u32>>,
}

/// How much is taken off whenever a server was not chosen, in 64ths: slow ones are tried again after a while.
const FORGIVEN_64THS: u32 = 1;
/// Half the width of the jitter, in milliseconds, as deployed.
const JITTER_MS: u32 = 128;

impl Times {
    /// Times of at most `servers_max` servers.
    #[must_use]
    pub fn new(servers_max: usize) -> Self {
        Self { servers_max, ms: Mutex::default() }
    }

    /// Notes how long an answer took, half and half with what was known; a failure counts as the time that was
    /// waited for it in vain.
    pub fn note(&self, server: SocketAddr, took_ms: u32) {
        let mut times = self.ms.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = times.len() >= self.servers_max;
        match times.get_mut(&server) {
            Some(known) => *known = known.midpoint(took_ms),
            // Servers beyond the limit stay unknown, which is no harm: they are asked as new ones.
            None if is_full => {}
            None => drop(times.insert(server, took_ms)),
        }
    }

    /// A place in the order for `server`: its time and a random jitter. Unknown ones count as fast. Each time
    /// it is looked at, a little of a slow time is forgiven.
    pub fn rank(&self, server: SocketAddr, random: u32) -> u32 {
        let mut times = self.ms.lock().unwrap_or_else(PoisonError::into_inner);
        let known = times.get_mut(&server).map_or(0, |ms| {
            let before = *ms;
            *ms -= (*ms * FORGIVEN_64THS).div_ceil(64);
            before
        });
        known.saturating_add(random % (2 * JITTER_MS))
    }

    /// What is known of `server`.
    #[must_use]
    pub fn known_ms(&self, server: SocketAddr) -> Option<u32> {
        self.ms.lock().unwrap_or_else(PoisonError::into_inner).get(&server).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u8) -> SocketAddr {
        ([192, 0, 2, number], 2641).into()
    }

    #[test]
    fn slow_servers_come_last_and_are_forgiven_in_time() {
        let times = Times::new(8);
        times.note(server(1), 20);
        times.note(server(2), 60_000);
        assert_eq!(times.rank(server(1), 0), 20);
        assert_eq!(times.rank(server(2), 5), 60_005);
        assert_eq!(times.rank(server(3), 256 + 7), 7, "unknown");
        let mut rounds = 0;
        while times.rank(server(2), 0) > 20 {
            rounds += 1;
        }
        assert!((100..1000).contains(&rounds), "{rounds}");
    }

    #[test]
    fn times_of_so_many_servers_are_kept() {
        let times = Times::new(2);
        (1..=3).for_each(|number| times.note(server(number), 10));
        times.note(server(2), 30);
        let known = [1, 2, 3].map(|number| times.known_ms(server(number)));
        assert_eq!(known, [Some(10), Some(20), None]);
    }
}
