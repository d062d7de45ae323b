//! Which records a mirror takes from a primary.

use crate::replication::source::ReceiverShare;
use handle_proto::fold::folded;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::{Handle, HashOption};

/// Prefixes with those derived from them, or all prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixFilter(Vec<Vec<u8>>);

impl PrefixFilter {
    /// The filter for these prefixes; for all if there are none.
    #[must_use]
    pub fn new(prefixes: &[String]) -> Self {
        Self(prefixes.iter().map(|prefix| folded(prefix.as_bytes())).collect())
    }

    /// Whether it lets a handle through: by the prefix of the handle or, for the record of a
    /// prefix, by this prefix.
    #[must_use]
    pub fn has(&self, handle: &[u8]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let name = folded(handle);
        let prefix = match name.strip_prefix(PREFIX_RECORDS) {
            // `0.NA/0.NA/10` is about the prefixes derived from 10.
            Some(prefix) => prefix.strip_prefix(PREFIX_RECORDS).unwrap_or(prefix),
            None => Handle(&name).naming_authority(),
        };
        self.0.iter().any(|allowed| is_within(prefix, allowed))
    }

    /// Whether both filters let a handle through.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().flat_map(|one| other.0.iter().map(move |other| (one, other)));
        self.0.is_empty()
            || other.0.is_empty()
            || pairs.any(|(one, other)| is_within(one, other) || is_within(other, one))
    }
}

/// Whether `prefix` is `allowed` or derived from it.
fn is_within(prefix: &[u8], allowed: &[u8]) -> bool {
    prefix.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

/// The records that are taken from one server of a primary.
#[derive(Clone, Debug)]
pub struct MirrorScope {
    /// The filter of this primary.
    pub filter: PrefixFilter,
    /// The filters of all other primaries.
    pub others: Vec<PrefixFilter>,
    /// The handles of this server in its own site.
    pub own_share: ReceiverShare,
    /// The handles of the server of the primary in the site of the primary.
    pub primary_share: ReceiverShare,
}

impl MirrorScope {
    /// Whether a handle is taken from this server of the primary.
    #[must_use]
    pub fn has(&self, handle: &[u8]) -> bool {
        self.filter.has(handle) && self.own_share.has(handle) && self.primary_share.has(handle)
    }

    /// The prefix with this record, folded; `None` if homing it is not taken over.
    #[must_use]
    pub fn homed_prefix(&self, record: &[u8]) -> Option<Vec<u8>> {
        let prefix = folded(Handle(record).homed_prefix());
        self.filter.has(&[PREFIX_RECORDS, &prefix].concat()).then_some(prefix)
    }

    /// Whether a dump of this server removes the record of a handle that it does not name. Records
    /// that belong to no primary are removed, too.
    #[must_use]
    pub fn owns(&self, handle: &[u8]) -> bool {
        self.primary_share.has(handle) && !self.others.iter().any(|other| other.has(handle))
    }

    /// Whether a dump of this server releases a prefix that it does not name. All servers of a site
    /// have the same homed prefixes, so only the first one decides.
    #[must_use]
    pub fn owns_prefix(&self, record: &[u8]) -> bool {
        self.primary_share.server_at == 0 && !self.others.iter().any(|other| other.has(record))
    }

    /// A text that changes when other records are to be taken, which only a dump can bring.
    #[must_use]
    pub fn describe(&self) -> String {
        let share = |share: &ReceiverShare| {
            let option = match share.hash_option {
                HashOption::Prefix => "prefix",
                HashOption::Suffix => "suffix",
                HashOption::Handle => "handle",
            };
            match share.servers_count {
                1 => "all".to_owned(),
                count => format!("{option} {} of {count}", share.server_at),
            }
        };
        let prefixes: Vec<_> = self.filter.0.iter().map(|it| String::from_utf8_lossy(it)).collect();
        format!("{}; {}; {}", share(&self.own_share), share(&self.primary_share), prefixes.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(prefixes: &[&str]) -> PrefixFilter {
        PrefixFilter::new(&prefixes.iter().map(|&it| it.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_filter_has_the_prefix_its_record_and_what_is_derived() {
        let filter = filter(&["10.1045", "ab"]);
        for handle in [
            "10.1045/x",
            "10.1045.7/x",
            "0.NA/10.1045",
            "0.na/10.1045.7",
            "0.NA/0.na/10.1045",
            "AB/",
            "ab/x/10.2",
        ] {
            assert!(filter.has(handle.as_bytes()), "{handle}");
        }
        for handle in [
            "10.10456/x",
            "10.104/x",
            "10/x",
            "0.NA/10",
            "0.NA/10.10456",
            "abc/x",
            "x/ab",
            "0.NA/0.NA",
            "0.NA/0.NA/10",
        ] {
            assert!(!filter.has(handle.as_bytes()), "{handle}");
        }
        assert!(super::PrefixFilter::new(&[]).has(b"any/thing"));
    }

    #[test]
    fn each_record_belongs_to_the_server_that_it_hashes_to() {
        let whole = ReceiverShare { hash_option: HashOption::Handle, servers_count: 1, server_at: 0 };
        let scope = |server_at| MirrorScope {
            filter: filter(&["10.1"]),
            others: vec![filter(&["10.2"])],
            own_share: whole,
            primary_share: ReceiverShare { servers_count: 2, server_at, ..whole },
        };
        for n in 0..50 {
            let handle = format!("10.1/{n}").into_bytes();
            assert_ne!(scope(0).has(&handle), scope(1).has(&handle));
            assert_eq!(scope(0).has(&handle), scope(0).owns(&handle));
            let stray = format!("10.3/{n}").into_bytes();
            assert!(!scope(0).has(&stray) && !scope(1).has(&stray));
            assert_ne!(scope(0).owns(&stray), scope(1).owns(&stray), "removed by the dump of one server");
            assert!(!scope(0).owns(format!("10.2/{n}").as_bytes()));
        }
        assert!(scope(0).owns_prefix(b"0.NA/10.1") && !scope(1).owns_prefix(b"0.NA/10.1"));
        assert_ne!(scope(0).describe(), scope(1).describe());
    }
}
