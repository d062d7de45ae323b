//! Handles: naming authority and local name (RFC 3651 section 2), and which server of a site has a
//! handle.

use crate::code::HashOption;
use crate::fold;
use alloc::vec::Vec;
use core::fmt;
use md5::{Digest, Md5};

/// The placeholder in operations without a handle.
pub const BLANK: &[u8] = b"/";
/// The start of the name of every prefix record.
pub const PREFIX_RECORDS: &[u8] = b"0.NA/";
/// Prefix of the prefix records.
pub const PREFIX_OF_PREFIXES: &[u8] = b"0.NA";
/// The root record.
pub const ROOT: &[u8] = b"0.NA/0.NA";
/// The trust root of signatures.
pub const TRUST_ROOT: &[u8] = b"0.0/0.0";
/// The live status of a server, which is not stored.
pub const SITE_STATUS: &[u8] = b"0.SITE/STATUS";

/// Whether `c` affects a terminal or the text around it instead of being shown: a control character
/// of C0 or C1, a line separator, or a character that changes the direction of text.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A handle as on the wire: any bytes, divided by their first slash.
///
/// Deployed servers treat names as bytes and check UTF-8 only on creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle<'a>(pub &'a [u8]);

impl<'a> Handle<'a> {
    /// Offset of the first slash, if there is one.
    #[must_use]
    #[inline]
    pub fn slash_at(self) -> Option<usize> {
        self.0.iter().position(|&byte| byte == b'/')
    }

    /// The prefix (RFC 3651: naming authority): the part before the first slash.
    ///
    /// A name without a slash is the name of a prefix, and its own prefix is `0.NA`.
    #[must_use]
    pub fn naming_authority(self) -> &'a [u8] {
        self.slash_at().map_or(PREFIX_OF_PREFIXES, |at| &self.0[..at])
    }

    /// The suffix (RFC 3651: local name): the part after the first slash, or the whole name without
    /// one.
    #[must_use]
    pub fn local_name(self) -> &'a [u8] {
        self.slash_at().map_or(self.0, |at| &self.0[at + 1..])
    }

    /// Whether the name belongs to the global service. Comparisons fold such a name as a whole
    /// everywhere.
    ///
    /// A service that does not fold still stores it as it was spelt.
    #[must_use]
    pub fn is_global(self) -> bool {
        self.0.starts_with(b"0.")
    }

    /// Whether this names a prefix record, `0.NA/...`.
    #[must_use]
    pub fn is_prefix_record(self) -> bool {
        fold::starts_with(self.0, PREFIX_RECORDS)
    }

    /// Whether this names the record of a derived prefix: `0.NA/` and a name with a dot.
    #[must_use]
    pub fn is_derived_prefix_record(self) -> bool {
        self.is_prefix_record() && self.0[PREFIX_RECORDS.len()..].contains(&b'.')
    }

    /// For the record of a derived prefix, the record of its parent: the name up to its last dot,
    /// with the same spelling.
    #[must_use]
    pub fn parent_prefix_record(self) -> Option<Handle<'a>> {
        if !self.is_derived_prefix_record() {
            return None;
        }
        let dot_at = self.0.iter().rposition(|&byte| byte == b'.')?;
        Some(Handle(&self.0[..dot_at]))
    }

    /// The record that describes this handle's prefix: `0.NA/` and the folded prefix.
    #[must_use]
    pub fn prefix_record(self) -> Vec<u8> {
        [PREFIX_RECORDS, &fold::folded(self.naming_authority())].concat()
    }

    /// The prefix that this name homes, written with or without the `0.NA/` of its record:
    /// `10.1045` for `10.1045` and `0.NA/10.1045`.
    ///
    /// Exactly one `0.NA/` is removed. `0.NA/0.NA/10`, which homes the prefixes derived from 10, is
    /// `0.NA/10`, so what this returns must not pass here again: a name does so once, where it
    /// comes in, and stores and sets have what is returned.
    #[must_use]
    pub fn homed_prefix(self) -> &'a [u8] {
        if self.is_prefix_record() { &self.0[PREFIX_RECORDS.len()..] } else { self.0 }
    }

    /// The handle that is looked up: a name without a slash stands for `0.NA/` and its folded form.
    #[must_use]
    pub fn looked_up(self) -> Vec<u8> {
        match self.slash_at() {
            Some(_) => self.0.to_vec(),
            None => [PREFIX_RECORDS, &fold::folded(self.0)].concat(),
        }
    }

    /// The name with its prefix folded; a global name is folded as a whole. Two names are the same
    /// in comparisons that do not fold local names if these forms are equal. It is not the key of a
    /// stored record.
    #[must_use]
    pub fn prefix_folded(self) -> Vec<u8> {
        let mut name = self.0.to_vec();
        fold::fold(&mut name[..self.folds_len()]);
        name
    }

    /// Number of bytes that [`prefix_folded`](Self::prefix_folded) folds.
    #[must_use]
    pub fn folds_len(self) -> usize {
        if self.is_global() { self.0.len() } else { self.slash_at().unwrap_or(self.0.len()) }
    }

    /// The bytes that `option` hashes, not yet folded.
    #[must_use]
    pub fn hashed_part(self, option: HashOption) -> &'a [u8] {
        match option {
            HashOption::Prefix => self.naming_authority(),
            HashOption::Suffix => self.local_name(),
            HashOption::Handle => self.0,
        }
    }

    /// The hash that chooses a server: the last four bytes of the MD5 of the folded part, as an
    /// absolute value.
    ///
    /// RFC 3652 section 3.1.3; deployed servers use four bytes where the RFC uses the whole digest.
    /// `0x8000_0000`, which has no positive counterpart in 32 bits, is not changed.
    #[must_use]
    pub fn hash(self, option: HashOption) -> u32 {
        let mut md5 = Md5::new();
        let mut folded = [0; 64];
        for chunk in self.hashed_part(option).chunks(folded.len()) {
            let folded = &mut folded[..chunk.len()];
            folded.copy_from_slice(chunk);
            fold::fold(folded);
            md5.update(&*folded);
        }
        let digest = md5.finalize();
        i32::from_be_bytes([digest[12], digest[13], digest[14], digest[15]]).unsigned_abs()
    }

    /// Position in the site's list of the server that has this handle; `None` for a site without
    /// servers.
    #[must_use]
    pub fn server_at(self, option: HashOption, servers_count: u32) -> Option<u32> {
        match servers_count {
            0 => None,
            1 => Some(0),
            count => Some(self.hash(option) % count),
        }
    }

    /// Whether the two handles are the same to a service that does (`folds`) or does not fold local
    /// names.
    ///
    /// Prefixes are always folded, and handles that begin with `0.` are folded as a whole.
    #[must_use]
    pub fn is_same(self, other: Handle<'_>, folds: bool) -> bool {
        if folds || self.is_global() {
            return fold::eq(self.0, other.0);
        }
        match (self.slash_at(), other.slash_at()) {
            (Some(a), Some(b)) => fold::eq(&self.0[..a], &other.0[..b]) && self.0[a..] == other.0[b..],
            (None, None) => fold::eq(self.0, other.0),
            _ => false,
        }
    }
}

impl fmt::Display for Handle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Handle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_homed_prefix_loses_the_start_of_its_record_once() {
        for (name, prefix) in [
            ("10.1045", "10.1045"),
            ("0.NA/10.1045", "10.1045"),
            ("0.na/10.1045", "10.1045"),
            ("0.NA/0.NA/10.1045", "0.NA/10.1045"),
            ("0.NA/0.NA", "0.NA"),
            ("0.NA/", ""),
            ("0.NA", "0.NA"),
        ] {
            assert_eq!(Handle(name.as_bytes()).homed_prefix(), prefix.as_bytes(), "{name}");
        }
    }

    #[test]
    fn hashes_as_deployed() {
        let handle = Handle(b"10.1045/july95-arms");
        assert_eq!(handle.hash(HashOption::Handle), 2_053_237_461);
        assert_eq!(handle.hash(HashOption::Prefix), 618_843_948);
        assert_eq!(handle.hash(HashOption::Suffix), 583_810_194);
        assert_eq!(Handle(b"noslash").hash(HashOption::Prefix), 36_223_079);
        assert_eq!(Handle("20.500.12345/é".as_bytes()).hash(HashOption::Handle), 1_764_701_390);
    }

    #[test]
    fn the_first_slash_divides() {
        for (name, prefix, suffix) in [
            ("10.1/a/b", "10.1", "a/b"),
            ("/", "", ""),
            ("//", "", "/"),
            ("a/", "a", ""),
            ("/a", "", "a"),
            ("x", "0.NA", "x"),
            ("", "0.NA", ""),
        ] {
            let handle = Handle(name.as_bytes());
            assert_eq!(handle.naming_authority(), prefix.as_bytes(), "{name}");
            assert_eq!(handle.local_name(), suffix.as_bytes(), "{name}");
        }
    }

    #[test]
    fn prefixes_have_records_and_parents() {
        assert_eq!(Handle(b"cnri.test/abc").prefix_record(), b"0.NA/CNRI.TEST");
        assert_eq!(Handle(b"0.na/10").prefix_record(), b"0.NA/0.NA");
        assert_eq!(Handle(b"tst").looked_up(), b"0.NA/TST");
        assert_eq!(Handle(b"tst/x").looked_up(), b"tst/x");
        assert_eq!(Handle(b"0.NA/10.1000.x").parent_prefix_record(), Some(Handle(b"0.NA/10.1000")));
        assert_eq!(Handle(b"0.NA/10").parent_prefix_record(), None);
        assert_eq!(Handle(b"10.1000").parent_prefix_record(), None);
        assert!(!Handle(b"0.NA").is_prefix_record());
    }

    #[test]
    fn services_fold_local_names_or_not() {
        for (a, b, folding, keeping) in [
            ("10.1/abc", "10.1/ABC", true, false),
            ("abc/x", "ABC/x", true, true),
            ("0.na/abc", "0.NA/ABC", true, true),
            ("abc", "ABC", true, true),
            ("a/ü", "a/Ü", false, false),
            ("a/b", "a/b ", false, false),
            ("a/b", "a", false, false),
        ] {
            let (x, y) = (Handle(a.as_bytes()), Handle(b.as_bytes()));
            assert_eq!(x.is_same(y, true), folding, "{a} and {b}");
            assert_eq!(x.is_same(y, false), keeping, "{a} and {b}");
            assert_eq!(x.prefix_folded() == y.prefix_folded(), keeping, "{a} and {b}");
        }
    }

    #[test]
    fn a_hash_without_positive_counterpart_is_taken_without_sign() {
        assert_eq!(i32::MIN.unsigned_abs(), 0x8000_0000);
        assert_eq!(Handle(b"1/a").server_at(HashOption::Handle, 0), None);
        assert_eq!(Handle(b"1/a").server_at(HashOption::Handle, 1), Some(0));
    }

    #[test]
    fn long_names_hash_as_a_whole() {
        // More than the 64 bytes that are folded at a time, compared with the digest of the folded
        // whole.
        let name = [b"10.1/".as_slice(), &[b'x'; 200]].concat();
        let digest = Md5::digest(fold::folded(&name));
        let last = i32::from_be_bytes([digest[12], digest[13], digest[14], digest[15]]);
        assert_eq!(Handle(&name).hash(HashOption::Handle), last.unsigned_abs());
    }

    #[test]
    fn shows_bytes_that_are_not_text() {
        assert_eq!(std::format!("{}", Handle(b"a/\xffb")), "a/\\xffb");
    }
}
