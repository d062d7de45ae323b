//! Messages between `hdl reconcile` and `hdl reconcile --serve` on another machine: lines of JSON,
//! at its standard input and output. Handles, values and digests are hexadecimal, since they may be
//! any bytes.

use anyhow::{Context as _, ensure};
use handle_snapshot::Sha256Sum;
use handle_snapshot::comparison::{BucketRecord, ComparisonRules, ComparisonScope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read as _, Write};

/// The version, which both sides must have.
pub(super) const VERSION: u32 = 1;
/// Maximum length of a line.
const LINE_LEN_MAX: u64 = 256 << 20;
/// Length from which on a reply gets no further items. The other side asks for the rest again.
pub(super) const REPLY_LEN: usize = 4 << 20;
/// Most items of a request.
pub(super) const ITEMS_MAX: usize = 8192;

/// The first line of the side that serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerHello {
    /// [`VERSION`].
    pub(super) hdl_reconcile: u32,
    /// Whether local names are the same in every case.
    pub(super) folds: bool,
    /// Number of records in all layers, those that newer layers hide included.
    pub(super) records_count: u64,
    pub(super) has_names_only: bool,
    /// The homed prefixes, in hexadecimal; absent if it is not known which are.
    #[serde(default)]
    pub(super) homed: Option<Vec<String>>,
}

/// A request. Replies have the items in the order of the request, the first one always, and may
/// leave out the last ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerRequest {
    /// Make the tree; the first request.
    Begin { nonce: String, scope: String, bits: u32 },
    /// The nodes at these positions.
    Nodes(Vec<usize>),
    /// The records of these buckets.
    Buckets(Vec<u32>),
    /// The values of the records with these keys.
    Records(Vec<String>),
}

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerReply {
    Begun {
        root: String,
        records_count: u64,
    },
    Nodes(Vec<String>),
    Buckets(Vec<Vec<(String, String)>>),
    /// Number of values, and the values in wire form; `None` if there is no such record.
    Records(Vec<Option<(usize, String)>>),
    /// The request is refused, or failed.
    Failed(String),
}

/// Writes a message.
pub(super) fn write(out: &mut impl Write, message: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// Reads a message; `None` at the end.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_LEN_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    ensure!(line.ends_with(b"\n"), "a message is cut or too long");
    // The line itself may be anything, as the greeting of a login shell.
    serde_json::from_slice(&line).map(Some).with_context(|| {
        format!("not a message: {}", String::from_utf8_lossy(line.get(..80).unwrap_or(&line)))
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

pub(super) fn unhex(text: &str) -> anyhow::Result<Vec<u8>> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).ok().context("not hexadecimal")
}

pub(super) fn digest(text: &str) -> anyhow::Result<Sha256Sum> {
    Sha256Sum::parse(text).context("not a digest")
}

/// The request for a tree with these rules.
pub(super) fn begin(rules: &ComparisonRules) -> PeerRequest {
    let ComparisonRules { nonce, scope, bits } = rules;
    PeerRequest::Begin { nonce: hex(nonce), scope: scope.name().to_owned(), bits: *bits }
}

/// The rules of such a request.
pub(super) fn rules(nonce: &str, scope: &str, bits: u32) -> anyhow::Result<ComparisonRules> {
    let nonce = unhex(nonce)?.try_into().ok().context("the nonce has another length")?;
    let scope = ComparisonScope::parse(scope).context("unknown scope")?;
    ensure!(bits <= ComparisonRules::bits_for(u64::MAX), "too many levels");
    Ok(ComparisonRules { nonce, scope, bits })
}

pub(super) fn bucket(records: &[BucketRecord]) -> Vec<(String, String)> {
    records.iter().map(|record| (hex(&record.key), record.digest.to_string())).collect()
}
