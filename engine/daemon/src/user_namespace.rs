//! Users as this process sees them. In a user namespace, as with `PrivateUsers=yes` in a unit, the
//! kernel reports all users that the namespace does not map under one number.

use std::fs::read_to_string;

/// That number, if the kernel does not tell another.
const OVERFLOW_DEFAULT: u32 = 65534;
/// Number of users of a namespace that maps all of them.
const WHOLE: u64 = u32::MAX as u64;

/// Whether this process can tell `user` from every other user of the host. If the kernel does not
/// say how users are mapped, they all are.
#[must_use]
pub fn is_visible(user: u32) -> bool {
    let Ok(map) = read_to_string("/proc/self/uid_map") else { return true };
    // With `ProcSubset=pid`, this file is not there.
    let overflow = read_to_string("/proc/sys/fs/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_DEFAULT);
    is_mapped(user, &map, overflow)
}

/// Whether `map`, lines with a first user, the first one that it stands for, and their number, maps
/// `user`, which is not `overflow`.
fn is_mapped(user: u32, map: &str, overflow: u32) -> bool {
    let ranges = map.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u64>().ok());
        Some((fields.next()??, fields.nth(1)??))
    });
    let is_in = |(first, count): (u64, u64)| (first..first + count).contains(&u64::from(user));
    let is_whole = |(first, count): (u64, u64)| first == 0 && count >= WHOLE;
    let ranges: Vec<(u64, u64)> = ranges.collect();
    ranges.iter().copied().any(is_whole) || (user != overflow && ranges.into_iter().any(is_in))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_a_namespace_does_not_map_cannot_be_told_apart() {
        let whole = "         0          0 4294967295\n";
        assert!([0, 991, 65534].into_iter().all(|user| is_mapped(user, whole, 65534)));
        let private = "0 0 1\n991 991 1\n";
        let mapped = |user| is_mapped(user, private, 65534);
        assert_eq!([0, 1, 990, 991, 992, 65534].map(mapped), [true, false, false, true, false, false]);
        let container = "0 100000 65536\n";
        assert!(is_mapped(65533, container, 65534) && !is_mapped(65536, container, 65534));
        assert!(!is_mapped(65534, container, 65534), "it may be any other user");
        assert!(is_mapped(65534, container, 65533), "the kernel uses another number");
        assert!(["", "x y z", "0 0"].into_iter().all(|map| !is_mapped(0, map, 65534)));
        assert!(is_visible(rustix::process::geteuid().as_raw()));
    }
}
