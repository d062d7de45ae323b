//! Cached addresses of names. The driver of a lookup resolves them; the lookup only names them.

use crate::ClockReading;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// How long addresses are used. The system's resolver does not report their time to live.
const KEPT_MS: u64 = 60_000;
/// How long the absence of addresses is kept.
const NONE_KEPT_MS: u64 = 10_000;

/// Addresses by name, for a bounded number of names.
#[derive(Debug)]
pub struct NameCache {
    names_max: usize,
    known: Mutex<HashMap<String, (Vec<IpAddr>, u64)>>,
}

impl NameCache {
    /// Keeps the addresses of at most `names_max` names.
    #[must_use]
    pub fn new(names_max: usize) -> Self {
        Self { names_max, known: Mutex::default() }
    }

    /// The addresses of `name`, if they are cached; an empty list if it has none.
    #[must_use]
    pub fn get(&self, name: &str, now: ClockReading) -> Option<Vec<IpAddr>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (addresses, until_ms) = known.get(name)?;
        (now.ms < *until_ms).then(|| addresses.clone())
    }

    /// Stores the addresses of `name`.
    pub fn note(&self, name: &str, addresses: &[IpAddr], now: ClockReading) {
        let kept_ms = if addresses.is_empty() { NONE_KEPT_MS } else { KEPT_MS };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.names_max && !known.contains_key(name) {
            known.retain(|_, (_, until_ms)| now.ms < *until_ms);
        }
        // Names beyond the limit are looked up each time.
        if known.len() < self.names_max || known.contains_key(name) {
            known.insert(name.to_owned(), (addresses.to_vec(), now.ms.saturating_add(kept_ms)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> ClockReading {
        ClockReading { ms, unix_s: 0 }
    }

    #[test]
    fn addresses_expire_and_the_number_of_names_is_bounded() {
        let (names, one) = (NameCache::new(2), [IpAddr::from([192, 0, 2, 1])]);
        names.note("a", &one, at(0));
        names.note("none", &[], at(0));
        names.note("beyond", &one, at(0));
        assert_eq!(names.get("a", at(59_999)), Some(one.to_vec()));
        assert_eq!(names.get("a", at(60_000)), None);
        assert_eq!(names.get("none", at(9_999)), Some(vec![]));
        assert_eq!((names.get("none", at(10_000)), names.get("beyond", at(0))), (None, None));
        names.note("beyond", &one, at(10_000));
        assert!(names.get("beyond", at(10_000)).is_some(), "there is room again");
    }
}
