//! Statements, which a publisher signs: the set with these records is current at this time.
//!
//! A MANIFEST has the statement that was made when the set was published. The file HEARTBEAT has a
//! later statement about the same set, which the publisher renews, so that a reader knows the age
//! of its set even if nothing changes.
//!
//! This crate has no keys: the caller signs and verifies.

use super::manifest::{MANIFEST, Manifest};
use super::{SetError, SetErrorKind, read_small};
use crate::format::Sha256Sum;
use crate::lines::{LineReader, hex_text, parse_decimal, parse_hex};
use crate::names::NameRule;
use core::fmt;
use core::fmt::Write as _;
use handle_proto::limit::CLOCK_AHEAD_MS_MAX;
use std::boxed::Box;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// Name of the file with the newest statement about the published set.
pub const HEARTBEAT: &str = "HEARTBEAT";
/// First line of a statement; the number is the version of the format.
pub const STATEMENT_FIRST_LINE: &str = "handle snapshot statement 2";
/// First line of a statement about a set whose MANIFEST does not have the rule for names.
const FIRST_LINE_WITHOUT_NAMES: &str = "handle snapshot statement 1";
/// The newest version of the format that is read.
pub const STATEMENT_VERSION: u64 = 2;
/// Maximum length of a statement with its signature, in bytes.
pub const STATEMENT_LEN_MAX: usize = 4096;
/// Maximum length of a signature, in bytes.
pub const SIGNATURE_LEN_MAX: usize = 1024;

/// A statement of a publisher about a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetStatement {
    /// The epoch of the publisher.
    pub epoch: u64,
    /// The generation.
    pub generation: u64,
    /// When the set was published, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Number of handles in the set.
    pub handles_count: u64,
    /// How names become keys in the set; `None` if its MANIFEST does not say it.
    pub names: Option<NameRule>,
    /// Root of the tree over its records.
    pub root: Sha256Sum,
    /// Digest of the MANIFEST, without its signature.
    pub set: Sha256Sum,
    /// When the statement was made, Unix milliseconds.
    pub signed_unix_ms: u64,
    /// The key of the publisher: SHA-256 of the record of the public key.
    pub signer: Sha256Sum,
}

/// A statement and its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedStatement {
    /// The statement.
    pub statement: SetStatement,
    /// The signature over [`SetStatement::encode`].
    pub signature: Vec<u8>,
}

/// Signs statements with the key of a publisher.
pub trait StatementSigner: fmt::Debug + Send + Sync {
    /// SHA-256 of the record of the public key.
    fn signer(&self) -> Sha256Sum;
    /// The signature over `message`.
    ///
    /// # Errors
    /// A description of the failure.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String>;
}

impl SetStatement {
    /// The text that the signature covers.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string does not fail");
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let first = if self.names.is_some() { STATEMENT_FIRST_LINE } else { FIRST_LINE_WITHOUT_NAMES };
        writeln!(text, "{first}")?;
        writeln!(text, "epoch {}", self.epoch)?;
        writeln!(text, "generation {}", self.generation)?;
        writeln!(text, "created_unix_ms {}", self.created_unix_ms)?;
        writeln!(text, "handles {}", self.handles_count)?;
        if let Some(rule) = self.names {
            writeln!(text, "names {rule}")?;
        }
        writeln!(text, "root {}", self.root)?;
        writeln!(text, "set {}", self.set)?;
        writeln!(text, "signed_unix_ms {}", self.signed_unix_ms)?;
        writeln!(text, "signer {}", self.signer)
    }

    /// The statement with its signature.
    ///
    /// # Errors
    /// When the key does not sign.
    pub fn sign(self, signer: &dyn StatementSigner) -> Result<SignedStatement, String> {
        Ok(SignedStatement { statement: self, signature: signer.sign(self.encode().as_bytes())? })
    }
}

impl SignedStatement {
    /// The text of the statement, with its signature as the last line.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = self.statement.encode();
        writeln!(text, "signature {}", hex_text(&self.signature)).expect("writing to a string does not fail");
        text
    }

    /// Parses a statement; `None` for anything but the bytes that [`encode`](Self::encode) writes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > STATEMENT_LEN_MAX {
            return None;
        }
        let mut lines = LineReader::new(bytes)?;
        let statement = Self::read(&mut lines)?;
        lines.is_at_end().then_some(statement)
    }

    /// The version in the first line of a statement that [`parse`](Self::parse) does not read
    /// because it is later; `None` for anything else.
    #[must_use]
    pub fn later_version(bytes: &[u8]) -> Option<u64> {
        let first = core::str::from_utf8(bytes.split(|&byte| byte == b'\n').next()?).ok()?;
        let version = parse_decimal(first.strip_prefix("handle snapshot statement ")?)?;
        (version > STATEMENT_VERSION).then_some(version)
    }

    pub(crate) fn read(lines: &mut LineReader<'_>) -> Option<Self> {
        let has_names = match lines.next()? {
            STATEMENT_FIRST_LINE => true,
            FIRST_LINE_WITHOUT_NAMES => false,
            _ => return None,
        };
        let statement = SetStatement {
            epoch: lines.decimal("epoch")?,
            generation: lines.decimal("generation")?,
            created_unix_ms: lines.decimal("created_unix_ms")?,
            handles_count: lines.decimal("handles")?,
            names: if has_names { Some(NameRule::parse(lines.field("names")?)?) } else { None },
            root: lines.digest("root")?,
            set: lines.digest("set")?,
            signed_unix_ms: lines.decimal("signed_unix_ms")?,
            signer: lines.digest("signer")?,
        };
        let signature = parse_hex(lines.field("signature")?).filter(|it| it.len() <= SIGNATURE_LEN_MAX)?;
        Some(Self { statement, signature })
    }
}

/// Verifies a signature over a message: the SHA-256 of the record of the public key, the message,
/// the signature.
pub type VerifySignature = dyn Fn(&Sha256Sum, &[u8], &[u8]) -> bool + Send + Sync;

/// The publishers whose sets a reader accepts.
pub struct AcceptedPublishers(Box<VerifySignature>);

impl fmt::Debug for AcceptedPublishers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AcceptedPublishers")
    }
}

impl AcceptedPublishers {
    /// Accepts the statements whose signatures `verify` accepts.
    #[must_use]
    pub fn new(verify: Box<VerifySignature>) -> Self {
        Self(verify)
    }

    /// Whether the statement has the signature of an accepted publisher.
    #[must_use]
    pub fn has_made(&self, signed: &SignedStatement) -> bool {
        (self.0)(&signed.statement.signer, signed.statement.encode().as_bytes(), &signed.signature)
    }

    /// Checks that an accepted publisher published the set of `manifest` in `dir`, and returns the
    /// time of the newest valid statement about it.
    ///
    /// # Errors
    /// When the manifest has no signature of an accepted publisher, is older than `previous`, or is
    /// signed too far ahead of `now_unix_ms`.
    pub fn check(
        &self,
        dir: &Path,
        manifest: &Manifest,
        previous: Option<&Manifest>,
        now_unix_ms: u64,
    ) -> Result<NewestStatement, SetError> {
        let refused = |kind| SetError::new(dir.join(MANIFEST), kind);
        let signed = manifest.statement().ok_or_else(|| refused(SetErrorKind::Unsigned))?;
        if !self.has_made(&signed) {
            return Err(refused(SetErrorKind::Foreign));
        }
        let order = |manifest: &Manifest| (manifest.epoch, manifest.generation);
        if let Some(previous) = previous.filter(|previous| order(manifest) < order(previous)) {
            let (found, served) = (manifest.generation, previous.generation);
            return Err(refused(SetErrorKind::Older { found, served }));
        }
        // Last, so that every other fault is reported first.
        match ahead_ms(signed.statement.signed_unix_ms, now_unix_ms) {
            0 => Ok(self.newest(dir, &signed, now_unix_ms)),
            ahead_ms => Err(refused(SetErrorKind::Ahead(ahead_ms))),
        }
    }

    /// The statement in the HEARTBEAT, if it is about the same set, valid and not too far ahead of
    /// the clock; otherwise that of the MANIFEST.
    fn newest(&self, dir: &Path, signed: &SignedStatement, now_unix_ms: u64) -> NewestStatement {
        let bytes = read_small(&dir.join(HEARTBEAT), STATEMENT_LEN_MAX);
        let heartbeat = bytes.ok().and_then(|bytes| SignedStatement::parse(&bytes));
        let is_renewal = |heartbeat: &SignedStatement| {
            let (old, new) = (&signed.statement, &heartbeat.statement);
            (new.set, new.epoch, new.generation) == (old.set, old.epoch, old.generation)
                && new.signed_unix_ms > old.signed_unix_ms
                && self.has_made(heartbeat)
        };
        let of_manifest = signed.statement.signed_unix_ms;
        let renewed = heartbeat.filter(is_renewal).map_or(of_manifest, |it| it.statement.signed_unix_ms);
        match ahead_ms(renewed, now_unix_ms) {
            0 => NewestStatement { signed_unix_ms: renewed, refused_ahead_ms: 0 },
            refused_ahead_ms => NewestStatement { signed_unix_ms: of_manifest, refused_ahead_ms },
        }
    }
}

/// The newest statement about a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestStatement {
    /// When it was made, Unix milliseconds.
    pub signed_unix_ms: u64,
    /// By how many milliseconds a later one is ahead of the clock, which is refused for this; 0 if
    /// there is none.
    pub refused_ahead_ms: u64,
}

/// By how many milliseconds a statement is ahead of the clock, if that is more than a clock that is
/// right can be; otherwise 0. Such a statement says nothing about the age of a set: it would be
/// fresh until its time has come and gone, and later statements would count as older.
#[must_use]
pub const fn ahead_ms(signed_unix_ms: u64, now_unix_ms: u64) -> u64 {
    let ahead_ms = signed_unix_ms.saturating_sub(now_unix_ms);
    if ahead_ms > CLOCK_AHEAD_MS_MAX { ahead_ms } else { 0 }
}

/// The newest statement about the set of `manifest` in `dir`, without verifying it; `None` if the
/// set is not signed.
#[must_use]
pub fn newest_statement(dir: &Path, manifest: &Manifest) -> Option<SignedStatement> {
    let published = manifest.statement()?;
    let bytes = read_small(&dir.join(HEARTBEAT), STATEMENT_LEN_MAX);
    let heartbeat = bytes.ok().and_then(|bytes| SignedStatement::parse(&bytes));
    let is_same = |it: &SignedStatement| {
        it.statement.set == published.statement.set && it.statement.signer == published.statement.signer
    };
    Some(heartbeat.filter(is_same).unwrap_or(published))
}
