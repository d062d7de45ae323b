//! The homed prefixes of a layer: those that are given, or those that occur in its records.

use anyhow::{bail, ensure};
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::{Handle, fold};
use handle_snapshot::HomedTable;
use handle_snapshot::writer::HomedPrefixes;
use std::collections::BTreeSet;

/// Collects the homed prefixes of a layer while its records are read.
///
/// The newest table of a set is the valid one, so a delta either has no table or repeats the table
/// below it: a delta adds prefixes and never removes one.
pub(crate) struct HomedCollector<'a> {
    /// The valid table below a delta.
    below: Option<HomedTable<'a>>,
    is_delta: bool,
    /// Prefixes were given, so the prefixes of the records do not matter.
    is_given: bool,
    /// Folded; none of them is in `below`.
    new: BTreeSet<Vec<u8>>,
    /// The number of records that will not be answered from, and the first of them.
    outside: Option<(u64, String)>,
}

impl<'a> HomedCollector<'a> {
    /// Creates one for a base layer.
    pub(crate) fn base(prefixes: &[String]) -> anyhow::Result<Self> {
        Self::new(prefixes, None, false)
    }

    /// Creates one for a layer above others; `below` is the valid table of those.
    pub(crate) fn delta(prefixes: &[String], below: Option<HomedTable<'a>>) -> anyhow::Result<Self> {
        Self::new(prefixes, below, true)
    }

    fn new(prefixes: &[String], below: Option<HomedTable<'a>>, is_delta: bool) -> anyhow::Result<Self> {
        let mut gathered =
            Self { below, is_delta, is_given: !prefixes.is_empty(), new: BTreeSet::new(), outside: None };
        for prefix in prefixes {
            gathered.home(prefix)?;
        }
        Ok(gathered)
    }

    /// Adds a homed prefix.
    pub(crate) fn home(&mut self, prefix: &str) -> anyhow::Result<()> {
        self.add(prefix_name(prefix)?.as_bytes());
        Ok(())
    }

    /// Adds a homed prefix of a store, which may have any bytes.
    pub(crate) fn home_stored(&mut self, prefix: &[u8]) -> anyhow::Result<()> {
        if let Ok(prefix) = str::from_utf8(prefix) {
            return self.home(prefix);
        }
        let is_whole = fold::starts_with(prefix, PREFIX_RECORDS);
        let name = if is_whole { &prefix[PREFIX_RECORDS.len()..] } else { prefix };
        ensure!(HomedPrefixes::default().add(name), "the prefix {} is too long", Handle(prefix));
        self.add(name);
        Ok(())
    }

    fn add(&mut self, name: &[u8]) {
        if !self.below.is_some_and(|below| below.has(name)) {
            self.new.insert(fold::folded(name));
        }
    }

    /// Adds the prefix of a record.
    pub(crate) fn see(&mut self, handle: &[u8]) {
        let key = Handle(handle).looked_up();
        if self.has(Handle(&key)) {
            return;
        }
        if self.is_given {
            self.outside.get_or_insert_with(|| (0, Handle(handle).to_string())).0 += 1;
        } else {
            self.new.insert(fold::folded(Handle(&key).naming_authority()));
        }
    }

    /// Whether the record is answered from: its prefix is homed or, for the record of a derived
    /// prefix, all prefixes derived from an ancestor are homed.
    fn has(&self, handle: Handle<'_>) -> bool {
        let has = |prefix: &[u8]| {
            self.below.is_some_and(|below| below.has(prefix)) || self.new.contains(&fold::folded(prefix))
        };
        let ancestors =
            std::iter::successors(handle.parent_prefix_record(), |name| name.parent_prefix_record());
        has(handle.naming_authority()) || ancestors.map(|ancestor| ancestor.0).any(has)
    }

    /// Whether the layer is a delta.
    pub(crate) const fn is_delta(&self) -> bool {
        self.is_delta
    }

    /// The number of records that will not be answered from, and the first of them.
    pub(crate) const fn outside(&self) -> Option<&(u64, String)> {
        self.outside.as_ref()
    }

    /// The table of the layer; `None` if the layers below have the valid one.
    pub(crate) fn table(self) -> Option<HomedPrefixes> {
        if self.is_delta && self.new.is_empty() {
            return None;
        }
        let mut table = HomedPrefixes::default();
        for prefix in self.below.into_iter().flatten().chain(self.new.iter().map(Vec::as_slice)) {
            table.add(prefix);
        }
        Some(table)
    }
}

/// The name of a prefix written with or without `0.NA/`. The name that homes all prefixes derived
/// from a prefix itself begins with `0.NA/`: written `0.NA/0.NA/10`, homed as `0.NA/10`.
///
/// # Errors
/// If it is a handle or not a valid name.
pub(crate) fn prefix_name(prefix: &str) -> anyhow::Result<&str> {
    let without =
        |name: &'_ str| fold::starts_with(name.as_bytes(), PREFIX_RECORDS).then_some(PREFIX_RECORDS.len());
    let name = &prefix[without(prefix).unwrap_or(0)..];
    let last = &name[without(name).unwrap_or(0)..];
    ensure!(!last.contains('/'), "{prefix:?} is a handle, not a prefix such as 10.1045 or 0.NA/10.1045");
    let is_name = !last.is_empty() && !last.contains(|c: char| c.is_whitespace() || c.is_control());
    ensure!(is_name, "{prefix:?} is not a prefix such as 10.1045 or 0.NA/10.1045");
    ensure!(HomedPrefixes::default().add(name.as_bytes()), "the prefix {prefix} is too long");
    Ok(name)
}

/// Rejects a delta that was built before the set below it homed more prefixes.
pub(crate) fn check_delta(
    delta: Option<HomedTable<'_>>,
    below: Option<HomedTable<'_>>,
) -> anyhow::Result<()> {
    let (Some(delta), Some(below)) = (delta, below) else { return Ok(()) };
    if let Some(prefix) = below.iter().find(|prefix| !delta.has(prefix)) {
        bail!(
            "the delta was built for an older set, in which {} was not homed yet (build the delta again)",
            Handle(prefix)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(prefixes: &[&str]) -> Vec<String> {
        prefixes.iter().map(|&prefix| prefix.to_owned()).collect()
    }

    #[test]
    fn prefixes_that_occur_are_homed_unless_some_are_named() {
        let mut gathered = HomedCollector::base(&[]).unwrap();
        for handle in ["10.1/a", "10.1/b", "abc/x", "ABC/y", "noslash"] {
            gathered.see(handle.as_bytes());
        }
        assert!(gathered.outside().is_none());
        assert_eq!(gathered.new, [b"0.NA".to_vec(), b"10.1".to_vec(), b"ABC".to_vec()].into());
        let mut gathered = HomedCollector::base(&owned(&["0.na/10.1", "abc"])).unwrap();
        for handle in ["10.1/a", "10.2/b", "ABC/y", "10.3/c"] {
            gathered.see(handle.as_bytes());
        }
        assert_eq!(gathered.outside(), Some(&(2, "10.2/b".to_owned())));
        assert!(gathered.table().is_some());
    }

    #[test]
    fn prefixes_are_written_with_or_without_their_naming_authority() {
        for (text, name) in
            [("10.1", "10.1"), ("0.na/10.1", "10.1"), ("0.NA/0.NA/10", "0.NA/10"), ("0.NA/0.na/x", "0.na/x")]
        {
            assert_eq!(prefix_name(text).unwrap(), name);
        }
        let (no_prefix, handle) = ("is not a prefix such as", "is a handle, not a prefix");
        for (text, why) in [
            ("", no_prefix),
            ("0.NA/", no_prefix),
            ("10.1/a", handle),
            ("0.NA/10.1/a", handle),
            ("a b", no_prefix),
            ("a\u{1b}", no_prefix),
            (&"x".repeat(3000), "is too long"),
        ] {
            let error = prefix_name(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn records_of_derived_prefixes_belong_to_their_ancestor() {
        let mut gathered = HomedCollector::base(&owned(&["0.NA/0.NA/10"])).unwrap();
        gathered.see(b"0.NA/10.5");
        gathered.see(b"0.na/10.5.x");
        assert!(gathered.outside().is_none());
        gathered.see(b"0.NA/11.5");
        assert_eq!(gathered.outside(), Some(&(1, "0.NA/11.5".to_owned())));
    }

    #[test]
    fn a_delta_without_new_prefixes_has_no_table() {
        assert!(HomedCollector::delta(&[], None).unwrap().table().is_none());
        assert!(HomedCollector::base(&[]).unwrap().table().is_some());
        let mut gathered = HomedCollector::delta(&[], None).unwrap();
        gathered.see(b"10.1/a");
        assert!(gathered.table().is_some());
    }
}
