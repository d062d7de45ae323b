//! The MANIFEST: a few lines of text that name the layers of a set, newest first.

use crate::format::checksum;
use core::fmt;
use core::fmt::Write as _;
use std::string::String;
use std::vec::Vec;

/// Name of the file in the directory of a set.
pub const MANIFEST: &str = "MANIFEST";
/// First line; the number is the version of the format.
pub const MANIFEST_FIRST_LINE: &str = "handle snapshot set 1";
/// Most layers of a set. A lookup that finds nothing searches each, so merges should keep their
/// number low.
pub const LAYERS_MAX: usize = 32;
/// Most bytes of the name of a layer file.
pub const FILE_NAME_LEN_MAX: usize = 64;
/// Most bytes of a manifest.
pub const MANIFEST_LEN_MAX: usize = 8192;
/// Suffix of the name of every layer file.
pub const LAYER_SUFFIX: &str = ".layer";

/// The content of a MANIFEST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The generation, one higher with each publication.
    pub generation: u64,
    /// Time when the set was published, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Number of handles that a lookup finds in all layers together. Counted by the publisher.
    pub handles_count: u64,
    /// The state of the store that the set shows, if it was made from a store.
    pub source: Option<SetOrigin>,
    /// The layers, newest first; at least one.
    pub layers: Vec<LayerEntry>,
}

/// A state of a store of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOrigin {
    /// Identity of the store.
    pub store: u64,
    /// The last transaction of the store that the set includes.
    pub transaction: u64,
}

/// One layer of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerEntry {
    /// Name of the file, in the directory of the manifest.
    pub file: String,
    /// Bytes of the file.
    pub len: u64,
    /// Checksum of the header, which includes those of the sections.
    pub header_sum: u64,
}

/// Why a manifest is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Number of the line, from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl core::error::Error for ManifestError {}

impl Manifest {
    /// Parses a manifest. Only the exact bytes that [`encode`](Self::encode) writes are accepted.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let whole = |what| ManifestError { line: 0, what };
        if bytes.len() > MANIFEST_LEN_MAX {
            return Err(whole("the manifest is too long"));
        }
        let text = core::str::from_utf8(bytes).map_err(|_| whole("the manifest is not text"))?;
        let text = text.strip_suffix('\n').ok_or(whole("the manifest is cut short"))?;
        let last_at = text.rfind('\n').map_or(0, |at| at + 1);
        // The checksum is checked first, so that a torn file is reported as torn.
        let sum = text[last_at..].strip_prefix("end ").and_then(hex);
        let sum = sum.ok_or(whole("the manifest is cut short: it does not end with its checksum"))?;
        if sum != checksum(&bytes[..last_at]) {
            return Err(whole("the manifest does not match its checksum"));
        }
        let mut lines = (1..).zip(text[..last_at].lines()).peekable();
        let mut field = |name: &str, what| {
            let (line, text) = lines.next().ok_or(whole(what))?;
            let rest = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
            rest.and_then(decimal).ok_or(ManifestError { line, what })
        };
        field("handle snapshot set", "unsupported version: this program reads version 1 of the manifest")
            .and_then(|version| {
                let what = "unsupported version: this program reads version 1 of the manifest";
                if version == 1 { Ok(()) } else { Err(ManifestError { line: 1, what }) }
            })?;
        let generation = field("generation", "expected `generation` and a number")?;
        let created_unix_ms = field("created_unix_ms", "expected `created_unix_ms` and a number")?;
        let handles_count = field("handles", "expected `handles` and a number")?;
        let source = lines.next_if(|(_, text)| text.starts_with("source "));
        let source = source.map(|(line, text)| {
            let what = "expected `source`, the identity of a store and a transaction";
            SetOrigin::parse(text).ok_or(ManifestError { line, what })
        });
        let source = source.transpose()?;
        let mut layers = Vec::new();
        for (line, text) in lines {
            let layer = LayerEntry::parse(text).ok_or(ManifestError {
                line,
                what: "expected `layer`, a file name, its length and its checksum",
            })?;
            layers.push(layer);
            if layers.len() > LAYERS_MAX {
                return Err(ManifestError { line, what: "too many layers" });
            }
        }
        if layers.is_empty() {
            return Err(whole("the manifest names no layer"));
        }
        let manifest = Self { generation, created_unix_ms, handles_count, source, layers };
        // The only remaining difference is the form of line ends, which an editor changes.
        if manifest.encode().as_bytes() == bytes {
            Ok(manifest)
        } else {
            Err(whole("the manifest was edited: publish the set again"))
        }
    }

    /// The text of the manifest.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string does not fail");
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "{MANIFEST_FIRST_LINE}")?;
        writeln!(text, "generation {}", self.generation)?;
        writeln!(text, "created_unix_ms {}", self.created_unix_ms)?;
        writeln!(text, "handles {}", self.handles_count)?;
        if let Some(SetOrigin { store, transaction }) = self.source {
            writeln!(text, "source {store:016x} {transaction}")?;
        }
        for LayerEntry { file, len, header_sum } in &self.layers {
            writeln!(text, "layer {file} {len} {header_sum:016x}")?;
        }
        let sum = checksum(text.as_bytes());
        writeln!(text, "end {sum:016x}")
    }
}

impl SetOrigin {
    fn parse(line: &str) -> Option<Self> {
        let (store, transaction) = line.strip_prefix("source ")?.split_once(' ')?;
        Some(Self { store: hex(store)?, transaction: decimal(transaction)? })
    }
}

impl LayerEntry {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("layer ")?.split(' ');
        let (file, len, sum) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !is_layer_file(file) {
            return None;
        }
        Some(Self { file: file.into(), len: decimal(len)?, header_sum: hex(sum)? })
    }
}

/// Whether a name can be that of a layer: short, of plain characters, and in this directory.
#[must_use]
pub fn is_layer_file(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    name.len() <= FILE_NAME_LEN_MAX
        && name.ends_with(LAYER_SUFFIX)
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

fn decimal(text: &str) -> Option<u64> {
    let is_canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical)
}

fn hex(text: &str) -> Option<u64> {
    let is_canonical = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned as _;
    use std::format;

    fn manifest() -> Manifest {
        let layer = |n: u64| LayerEntry { file: format!("{n:010}-0.layer"), len: n * 1000, header_sum: n };
        Manifest {
            generation: 2,
            created_unix_ms: 1_700_000_000_000,
            handles_count: 10,
            source: None,
            layers: std::vec![layer(2), layer(1)],
        }
    }

    #[test]
    fn survives_and_every_change_is_seen() {
        assert_eq!(Manifest::parse(manifest().encode().as_bytes()), Ok(manifest()));
        let manifest =
            Manifest { source: Some(SetOrigin { store: 0xabc, transaction: u64::MAX }), ..manifest() };
        let text = manifest.encode();
        assert_eq!(Manifest::parse(text.as_bytes()), Ok(manifest));
        for len in 0..text.len() {
            assert!(Manifest::parse(&text.as_bytes()[..len]).is_err(), "cut to {len}");
        }
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::parse(&bytes).is_err(), "bit {bit}");
        }
        assert!(Manifest::parse(format!("{text}\n").as_bytes()).is_err());
        assert!(Manifest::parse(text.replace('\n', "\r\n").as_bytes()).is_err());
    }

    /// Adds a correct checksum, so that the lines themselves are checked.
    fn parse(lines: &[&str]) -> Result<Manifest, ManifestError> {
        let mut text = lines.join("\n") + "\n";
        text += &format!("end {:016x}\n", checksum(text.as_bytes()));
        Manifest::parse(text.as_bytes())
    }

    #[test]
    fn names_the_line_that_is_wrong() {
        let good = ["handle snapshot set 1", "generation 7", "created_unix_ms 5", "handles 0"];
        let layer = "layer a.layer 5 0123456789abcdef";
        let with = |at: usize, line: &str| {
            let mut lines: Vec<String> = good.iter().map(|line| (*line).to_owned()).collect();
            lines.push(layer.to_owned());
            line.clone_into(&mut lines[at]);
            parse(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert!(with(0, good[0]).is_ok());
        for (at, line) in [
            (0, "handle snapshot set 2"),
            (0, "something else"),
            (1, "generation -1"),
            (1, "generation 07"),
            (1, "generation 18446744073709551616"),
            (2, "created_unix_ms"),
            (3, "handles +5"),
            (4, "source 0123456789abcdef"),
            (4, "source 0123456789abcdef -1"),
            (4, "source 0123456789abcdef 1 2"),
            (4, "source 123456789abcdef 1"),
            (4, "layer ../a.layer 5 0123456789abcdef"),
            (4, "layer .layer 5 0123456789abcdef"),
            (4, "layer a/b.layer 5 0123456789abcdef"),
            (4, "layer a.txt 5 0123456789abcdef"),
            (4, "layer a.layer 5 0123456789ABCDEF"),
            (4, "layer a.layer 5 123456789abcdef"),
            (4, "layer a.layer 5 0123456789abcdef more"),
            (4, ""),
        ] {
            assert_eq!(with(at, line).unwrap_err().line, at + 1, "{line}");
        }
        assert!(parse(&good).is_err(), "no layer");
        let mut many = good.to_vec();
        many.resize(good.len() + LAYERS_MAX, layer);
        assert!(parse(&many).is_ok());
        many.push(layer);
        assert!(parse(&many).is_err());
        assert!(Manifest::parse(&[b'\n'; MANIFEST_LEN_MAX + 1]).is_err());
        let long = "x".repeat(FILE_NAME_LEN_MAX - LAYER_SUFFIX.len()) + LAYER_SUFFIX;
        assert!(is_layer_file(&long) && !is_layer_file(&format!("x{long}")));
    }
}
