//! The MANIFEST: a few lines of text that name the layers of a set, newest first.

use super::statement::{SIGNATURE_LEN_MAX, SetStatement, SignedStatement};
use crate::format::{Sha256Sum, checksum};
use crate::lines::{hex_text, parse_decimal, parse_hex};
use crate::names::NameRule;
use core::fmt;
use core::fmt::Write as _;
use sha2::{Digest as _, Sha256};
use std::string::String;
use std::vec::Vec;

/// Name of the file in the directory of a set.
pub const MANIFEST: &str = "MANIFEST";
/// First line; the number is the version of the format.
pub const MANIFEST_FIRST_LINE: &str = "handle snapshot set 2";
/// Version without the rule for names. Such sets are read and served, and prove nothing.
const VERSION_WITHOUT_NAMES: u64 = 1;
/// The version that is written.
const VERSION: u64 = 2;
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
    /// The epoch of the publisher. A publisher that takes over from another one raises it, so that
    /// sets that the other one still publishes count as older.
    pub epoch: u64,
    /// The generation, one higher with each publication.
    pub generation: u64,
    /// Time when the set was published, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Number of handles that a lookup finds in all layers together. Counted by the publisher.
    pub handles_count: u64,
    /// How names become keys. It is that of the layers; `None` in a manifest of version 1, which
    /// does not have it.
    pub names: Option<NameRule>,
    /// Root of the [tree](crate::tree) over the records.
    pub root: Sha256Sum,
    /// The state of the store that the set shows, if it was made from a store.
    pub source: Option<SetOrigin>,
    /// The layers, newest first; at least one.
    pub layers: Vec<LayerEntry>,
    /// The signature of the publisher, if it has a key.
    pub seal: Option<ManifestSeal>,
}

/// The signature of a publisher in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestSeal {
    /// When it was made, Unix milliseconds.
    pub signed_unix_ms: u64,
    /// SHA-256 of the record of the public key.
    pub signer: Sha256Sum,
    /// The signature over the [statement](Manifest::state).
    pub signature: Vec<u8>,
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
    /// Digest of its content; see [`layer_digest`](crate::verify::layer_digest).
    pub digest: Sha256Sum,
}

/// Why a manifest is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Number of the line, from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
    /// The version of the format, if it is one that this program does not read.
    pub version: Option<u64>,
}

impl ManifestError {
    const fn at(line: usize, what: &'static str) -> Self {
        Self { line, what, version: None }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.version) {
            (_, Some(version)) => write!(f, "unsupported version {version}: {}", self.what),
            (0, None) => f.write_str(self.what),
            (line, None) => write!(f, "line {line}: {}", self.what),
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
        let lines = checked_lines(bytes)?;
        let manifest = Self::parse_lines(lines)?;
        // The only remaining difference is the form of line ends, which an editor changes.
        if manifest.encode().as_bytes() == bytes {
            Ok(manifest)
        } else {
            Err(whole("the manifest was edited: publish the set again"))
        }
    }

    fn parse_lines(text: &str) -> Result<Self, ManifestError> {
        let mut lines = (1..).zip(text.lines()).peekable();
        let mut field = |name: &str, what| {
            let (line, text) = lines.next().ok_or(whole(what))?;
            let rest = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
            rest.map(|rest| (line, rest)).ok_or(ManifestError::at(line, what))
        };
        let number = |(line, text), what| parse_decimal(text).ok_or(ManifestError::at(line, what));
        let what = "expected `handle snapshot set` and a version: this is not a manifest";
        let version = number(field("handle snapshot set", what)?, what)?;
        if !(VERSION_WITHOUT_NAMES..=VERSION).contains(&version) {
            let what = "this program reads versions 1 and 2 of the manifest; if a later program published the set, \
                        update this one, otherwise publish the set again";
            return Err(ManifestError { version: Some(version), ..ManifestError::at(1, what) });
        }
        let mut number_of = |name, what| number(field(name, what)?, what);
        let epoch = number_of("epoch", "expected `epoch` and a number")?;
        let generation = number_of("generation", "expected `generation` and a number")?;
        let created_unix_ms = number_of("created_unix_ms", "expected `created_unix_ms` and a number")?;
        let handles_count = number_of("handles", "expected `handles` and a number")?;
        let names = (version > VERSION_WITHOUT_NAMES).then(|| {
            let what = "expected `names` and a rule, `folded` or `exact`";
            let (line, word) = field("names", what)?;
            NameRule::parse(word).ok_or(ManifestError::at(line, what))
        });
        let names = names.transpose()?;
        let what = "expected `root` and a digest";
        let (line, root) = field("root", what)?;
        let root = Sha256Sum::parse(root).ok_or(ManifestError::at(line, what))?;
        let source = lines.next_if(|(_, text)| text.starts_with("source "));
        let source = source.map(|(line, text)| {
            let what = "expected `source`, the identity of a store and a transaction";
            SetOrigin::parse(text).ok_or(ManifestError::at(line, what))
        });
        let source = source.transpose()?;
        let mut layers = Vec::new();
        while let Some((line, text)) = lines.next_if(|(_, text)| !text.starts_with("signed ")) {
            let what = "expected `layer`, a file name, its length and its digest";
            layers.push(LayerEntry::parse(text).ok_or(ManifestError::at(line, what))?);
            if layers.len() > LAYERS_MAX {
                return Err(ManifestError::at(line, "too many layers"));
            }
        }
        if layers.is_empty() {
            return Err(whole("the manifest names no layer"));
        }
        let seal = lines.next().map(|(line, text)| {
            let what = "expected `signed`, a time, the digest of a key and a signature";
            ManifestSeal::parse(text).ok_or(ManifestError::at(line, what))
        });
        let seal = seal.transpose()?;
        if let Some((line, _)) = lines.next() {
            return Err(ManifestError::at(line, "a line after the signature"));
        }
        Ok(Self { epoch, generation, created_unix_ms, handles_count, names, root, source, layers, seal })
    }

    /// The text of the manifest.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = self.unsigned_lines();
        if let Some(ManifestSeal { signed_unix_ms, signer, signature }) = &self.seal {
            let signature = hex_text(signature);
            writeln!(text, "signed {signed_unix_ms} {signer} {signature}").expect(WRITES);
        }
        let sum = checksum(text.as_bytes());
        writeln!(text, "end {sum:016x}").expect(WRITES);
        text
    }

    /// The lines that the signature covers.
    fn unsigned_lines(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect(WRITES);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        match self.names {
            Some(_) => writeln!(text, "{MANIFEST_FIRST_LINE}")?,
            None => writeln!(text, "handle snapshot set {VERSION_WITHOUT_NAMES}")?,
        }
        writeln!(text, "epoch {}", self.epoch)?;
        writeln!(text, "generation {}", self.generation)?;
        writeln!(text, "created_unix_ms {}", self.created_unix_ms)?;
        writeln!(text, "handles {}", self.handles_count)?;
        if let Some(rule) = self.names {
            writeln!(text, "names {rule}")?;
        }
        writeln!(text, "root {}", self.root)?;
        if let Some(SetOrigin { store, transaction }) = self.source {
            writeln!(text, "source {store:016x} {transaction}")?;
        }
        for LayerEntry { file, len, digest } in &self.layers {
            writeln!(text, "layer {file} {len} {digest}")?;
        }
        Ok(())
    }

    /// The statement about the set for `signer` to sign at this time.
    #[must_use]
    pub fn state(&self, signed_unix_ms: u64, signer: Sha256Sum) -> SetStatement {
        SetStatement {
            epoch: self.epoch,
            generation: self.generation,
            created_unix_ms: self.created_unix_ms,
            handles_count: self.handles_count,
            names: self.names,
            root: self.root,
            set: Sha256Sum(Sha256::digest(self.unsigned_lines()).into()),
            signed_unix_ms,
            signer,
        }
    }

    /// The statement with which the set was published, with its signature; `None` if it is not
    /// signed.
    #[must_use]
    pub fn statement(&self) -> Option<SignedStatement> {
        let seal = self.seal.as_ref()?;
        let statement = self.state(seal.signed_unix_ms, seal.signer);
        Some(SignedStatement { statement, signature: seal.signature.clone() })
    }
}

/// Why a conversion to text cannot fail.
const WRITES: &str = "writing to a string does not fail";

const fn whole(what: &'static str) -> ManifestError {
    ManifestError::at(0, what)
}

/// The lines before the checksum, which is checked first, so that a torn file is reported as torn.
fn checked_lines(bytes: &[u8]) -> Result<&str, ManifestError> {
    if bytes.len() > MANIFEST_LEN_MAX {
        return Err(whole("the manifest is too long"));
    }
    let text = core::str::from_utf8(bytes).map_err(|_| whole("the manifest is not text"))?;
    let text = text.strip_suffix('\n').ok_or(whole("the manifest is cut short"))?;
    let last_at = text.rfind('\n').map_or(0, |at| at + 1);
    let sum = text[last_at..].strip_prefix("end ").and_then(hex);
    let sum = sum.ok_or(whole("the manifest is cut short: it does not end with its checksum"))?;
    if sum != checksum(&bytes[..last_at]) {
        return Err(whole("the manifest does not match its checksum"));
    }
    Ok(&text[..last_at])
}

impl SetOrigin {
    fn parse(line: &str) -> Option<Self> {
        let (store, transaction) = line.strip_prefix("source ")?.split_once(' ')?;
        Some(Self { store: hex(store)?, transaction: parse_decimal(transaction)? })
    }
}

impl ManifestSeal {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("signed ")?.split(' ');
        let (time, signer, signature) = (words.next()?, words.next()?, words.next()?);
        let signature = parse_hex(signature).filter(|it| it.len() <= SIGNATURE_LEN_MAX)?;
        let seal =
            Self { signed_unix_ms: parse_decimal(time)?, signer: Sha256Sum::parse(signer)?, signature };
        words.next().is_none().then_some(seal)
    }
}

impl LayerEntry {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("layer ")?.split(' ');
        let (file, len, digest) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !is_layer_file(file) {
            return None;
        }
        Some(Self { file: file.into(), len: parse_decimal(len)?, digest: Sha256Sum::parse(digest)? })
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

fn hex(text: &str) -> Option<u64> {
    let is_canonical = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned as _;
    use std::format;
    use std::string::ToString as _;

    fn manifest() -> Manifest {
        let layer = |n: u64| LayerEntry {
            file: format!("{n:010}-0.layer"),
            len: n * 1000,
            digest: Sha256Sum([7; 32]),
        };
        Manifest {
            epoch: 1,
            names: Some(NameRule::Folded),
            root: Sha256Sum([9; 32]),
            seal: None,
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
        let source = Some(SetOrigin { store: 0xabc, transaction: u64::MAX });
        let seal = ManifestSeal { signed_unix_ms: 5, signer: Sha256Sum([8; 32]), signature: std::vec![6; 9] };
        let manifest = Manifest { source, seal: Some(seal), ..manifest() };
        let text = manifest.encode();
        assert_eq!(Manifest::parse(text.as_bytes()), Ok(manifest));
        // The checksum is looked at first, so each of them is reported as torn.
        for len in 0..text.len() {
            assert_eq!(Manifest::parse(&text.as_bytes()[..len]).unwrap_err().line, 0, "cut to {len}");
        }
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::parse(&bytes).unwrap_err().line, 0, "bit {bit}");
        }
        for other in [format!("{text}\n"), text.replace('\n', "\r\n")] {
            assert_eq!(Manifest::parse(other.as_bytes()).unwrap_err().line, 0, "{other:?}");
        }
    }

    /// Adds a correct checksum, so that the lines themselves are checked.
    fn parse(lines: &[&str]) -> Result<Manifest, ManifestError> {
        let mut text = lines.join("\n") + "\n";
        text += &format!("end {:016x}\n", checksum(text.as_bytes()));
        Manifest::parse(text.as_bytes())
    }

    /// What programs wrote before version 2.
    #[test]
    fn a_manifest_of_version_1_survives() {
        let text = "handle snapshot set 1\nepoch 1\ngeneration 7\ncreated_unix_ms 1700000000000\nhandles 10000000\n\
                    root 8c1d5e0a77b3f2498c1d5e0a77b3f2498c1d5e0a77b3f2498c1d5e0a77b3f249\n\
                    source 6b1f0c2a9d3e4f58 123456\n\
                    layer 0000000007-4f1c0f6f2f0f8f3a4f1c0f6f2f0f8f3a.layer 163840 \
                    4f1c0f6f2f0f8f3a4f1c0f6f2f0f8f3a4f1c0f6f2f0f8f3a4f1c0f6f2f0f8f3a\n\
                    layer 0000000001-0123456789abcdef0123456789abcdef.layer 2026700000 \
                    0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n\
                    end dc064d5275f5a40d\n";
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        assert_eq!((manifest.names, manifest.generation), (None, 7));
        assert_eq!(manifest.encode(), text);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.pop();
        assert!(parse(&lines).is_ok());
        lines.insert(5, "names folded");
        assert_eq!(parse(&lines).unwrap_err().line, 6, "version 1 has no rule");
        let statement = manifest.state(5, Sha256Sum([8; 32])).encode();
        assert!(statement.starts_with("handle snapshot statement 1\nepoch 1\ngeneration 7\n"), "{statement}");
    }

    #[test]
    fn a_later_version_and_another_file_are_told_apart() {
        for (first, part) in [
            ("handle snapshot set 3", "unsupported version 3: this program reads versions 1 and 2"),
            ("handle snapshot set x", "this is not a manifest"),
        ] {
            let error = parse(&[first, "epoch 1"]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn names_the_line_that_is_wrong() {
        let digest = "0123456789abcdef".repeat(4);
        let root = format!("root {digest}");
        let names = "names exact";
        let good =
            [MANIFEST_FIRST_LINE, "epoch 1", "generation 7", "created_unix_ms 5", "handles 0", names, &root];
        let layer = format!("layer a.layer 5 {digest}");
        let layer = layer.as_str();
        let with = |at: usize, line: &str| {
            let mut lines: Vec<String> = good.iter().map(|line| (*line).to_owned()).collect();
            lines.push(layer.to_owned());
            line.clone_into(&mut lines[at]);
            parse(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert!(with(0, good[0]).is_ok());
        for (at, line) in [
            (0, "handle snapshot set 0"),
            (0, "handle snapshot set 3"),
            (0, "handle snapshot set 02"),
            (0, "something else"),
            (1, "epoch -1"),
            (5, "names"),
            (5, "names Exact"),
            (5, "names exact "),
            (5, &root),
            (6, "root 00"),
            (6, names),
            (2, "generation -1"),
            (2, "generation 07"),
            (2, "generation 18446744073709551616"),
            (3, "created_unix_ms"),
            (4, "handles +5"),
            (7, "source 0123456789abcdef"),
            (7, "source 0123456789abcdef -1"),
            (7, "source 0123456789abcdef 1 2"),
            (7, "source 123456789abcdef 1"),
            (7, &format!("layer ../a.layer 5 {digest}")),
            (7, &format!("layer .layer 5 {digest}")),
            (7, &format!("layer a/b.layer 5 {digest}")),
            (7, &format!("layer a.txt 5 {digest}")),
            (7, &format!("layer a.layer 5 {}", digest.to_uppercase())),
            (7, &format!("layer a.layer 5 {}", &digest[1..])),
            (7, &format!("layer a.layer 5 {digest} more")),
            (7, ""),
        ] {
            assert_eq!(with(at, line).unwrap_err().line, at + 1, "{line}");
        }
        let seal = format!("signed 5 {digest} 00ff");
        let with_last = |line: &str| parse(&[&good[..], &[layer, line]].concat());
        assert!(with_last(&seal).is_ok());
        for (line, at) in [
            (format!("{seal} more"), 9),
            (format!("{seal}0"), 9),
            (format!("signed 5 {digest} "), 9),
            (format!("signed 05 {digest} 00"), 9),
            (format!("signed 5 {digest} {}", "0".repeat(2 * SIGNATURE_LEN_MAX + 2)), 9),
            (format!("{seal}\nlayer"), 10),
        ] {
            assert_eq!(with_last(&line).unwrap_err().line, at, "{line}");
        }
        assert_eq!(parse(&good).unwrap_err().what, "the manifest names no layer");
        let mut many = good.to_vec();
        many.resize(good.len() + LAYERS_MAX, layer);
        assert!(parse(&many).is_ok());
        many.push(layer);
        assert_eq!(parse(&many).unwrap_err().what, "too many layers");
        assert_eq!(Manifest::parse(&[b'\n'; MANIFEST_LEN_MAX + 1]), Err(whole("the manifest is too long")));
        let long = "x".repeat(FILE_NAME_LEN_MAX - LAYER_SUFFIX.len()) + LAYER_SUFFIX;
        assert!(is_layer_file(&long) && !is_layer_file(&format!("x{long}")));
    }
}
