//! Reads records from files, one JSON object per line or one JSON array, and tracks the origin of
//! each record.

use anyhow::{Context as _, anyhow, bail};
use handle_proto::Values;
use handle_proto::json::{RecordLine, record_from_json_dated};
use handle_snapshot::BuildError;
use indicatif::ProgressBar;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Stdin};
use std::path::{Path, PathBuf};

/// The origin of a record as a number: the file in the upper bits, the line in the lower ones.
const LINE_BITS: u32 = 40;
/// If this bit is set, the lower bits are the position in an array instead of a line.
const IN_ARRAY: u64 = 1 << (LINE_BITS - 1);
/// Maximum length of a line in bytes. The largest possible record is shorter as JSON.
const LINE_LEN_MAX: u64 = 16 << 20;
/// Buffer for reading files.
const BUFFER_LEN: usize = 1 << 20;

/// The content of a line.
pub(crate) enum InputEntry<'a> {
    /// The record of a handle.
    Record(&'a str, Values<'a>),
    /// The handle is deleted.
    Deleted(&'a str),
    /// The prefix is homed.
    Homed(&'a str),
}

/// The input files; `-` is standard input.
pub(crate) struct ValueInputs<'a> {
    paths: &'a [PathBuf],
    default_timestamp: u32,
}

#[derive(Deserialize)]
struct Deletion {
    handle: String,
    deleted: bool,
}

#[derive(Deserialize)]
struct HomedPrefix {
    homed: String,
}

impl<'a> ValueInputs<'a> {
    /// These files, in this order.
    pub(crate) const fn new(paths: &'a [PathBuf]) -> Self {
        Self { paths, default_timestamp: 0 }
    }

    /// Gives values without a timestamp this one, in Unix seconds, instead of 0.
    pub(crate) const fn dated(self, default_timestamp: u32) -> Self {
        Self { default_timestamp, ..self }
    }

    /// Total bytes of all files, if known.
    pub(crate) fn len(&self) -> Option<u64> {
        self.paths.iter().map(|path| Some(std::fs::metadata(path).ok()?.len())).sum()
    }

    /// Passes every entry with its origin to `take`, and advances `bar` by the bytes read.
    ///
    /// # Errors
    /// If a file cannot be read or a line is not a record, with file, line and reason; and those of
    /// `take`.
    pub(crate) fn each(
        &self,
        bar: &ProgressBar,
        mut take: impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (file_at, path) in self.paths.iter().enumerate() {
            let shown = path.display();
            let mut reader = open(path).with_context(|| format!("cannot read {shown}"))?;
            let is_array = reader
                .fill_buf()
                .with_context(|| format!("cannot read {shown}"))?
                .trim_ascii_start()
                .starts_with(b"[");
            if is_array {
                each_of_array(reader, file_at, path, self.default_timestamp, &mut take)?;
            } else {
                each_line(reader, file_at, path, self.default_timestamp, bar, &mut take)?;
            }
        }
        Ok(())
    }

    /// The place of an origin as `file:line`, or `file: record N` in an array.
    pub(crate) fn place(&self, origin: u64) -> String {
        let file_at = usize::try_from(origin >> LINE_BITS).unwrap_or(usize::MAX);
        place(self.paths.get(file_at).map_or(Path::new("?"), PathBuf::as_path), origin)
    }

    /// Formats an error of the builder, with places instead of origins.
    pub(crate) fn explain(&self, error: BuildError) -> anyhow::Error {
        match error {
            BuildError::Record { handle, origin, why } => {
                anyhow!("{}: {}: {why}", self.place(origin), handle_proto::Handle(&handle))
            }
            BuildError::Duplicate { key, origins: [first, second] } => anyhow!(
                "{}: duplicate handle {}, first at {}",
                self.place(second),
                handle_proto::Handle(&key),
                self.place(first)
            ),
            error => error.into(),
        }
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::<Stdin>::with_capacity(BUFFER_LEN, std::io::stdin())));
    }
    Ok(Box::new(BufReader::with_capacity(BUFFER_LEN, File::open(path)?)))
}

fn origin(file_at: usize, line: u64) -> u64 {
    ((file_at as u64) << LINE_BITS) | line
}

fn place(path: &Path, origin: u64) -> String {
    let number = origin & (IN_ARRAY - 1);
    match origin & IN_ARRAY {
        0 => format!("{}:{number}", path.display()),
        _ => format!("{}: record {number}", path.display()),
    }
}

fn each_line(
    mut reader: Box<dyn BufRead>,
    file_at: usize,
    path: &Path,
    default_timestamp: u32,
    bar: &ProgressBar,
    take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut line, mut values) = (String::new(), Vec::new());
    for number in 1.. {
        line.clear();
        let at = || format!("{}:{number}", path.display());
        let len = (&mut reader).take(LINE_LEN_MAX).read_line(&mut line).with_context(at)?;
        if len == 0 {
            return Ok(());
        }
        if len as u64 == LINE_LEN_MAX {
            bail!("{}: line too long: the maximum is {LINE_LEN_MAX} bytes", at());
        }
        bar.inc(len as u64);
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        values.clear();
        match RecordLine::parse_dated(text, &mut values, default_timestamp) {
            Ok(record) => {
                let values = Values::from_encoded(record.values_count, &values).with_context(at)?;
                take(origin(file_at, number), InputEntry::Record(&record.handle, values))?;
            }
            Err(error) => {
                if let Ok(Deletion { handle, deleted: true }) = serde_json::from_str(text) {
                    take(origin(file_at, number), InputEntry::Deleted(&handle))?;
                } else if let Ok(HomedPrefix { homed }) = serde_json::from_str(text) {
                    take(origin(file_at, number), InputEntry::Homed(&homed))?;
                } else {
                    bail!("{}: {}{error}", at(), handle_in(text));
                }
            }
        }
    }
    Ok(())
}

/// The handle in an invalid line, for the error message.
fn handle_in(text: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    match json.as_ref().and_then(|json| json["handle"].as_str()) {
        Some(handle) => format!("{handle}: "),
        None => String::new(),
    }
}

/// Reads the whole array into memory, so that an error can name the position of the record.
fn each_of_array(
    reader: Box<dyn BufRead>,
    file_at: usize,
    path: &Path,
    default_timestamp: u32,
    take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let records: Vec<serde_json::Value> = serde_json::from_reader(reader)
        .with_context(|| format!("{} is not an array of records", path.display()))?;
    let mut encoded = Vec::new();
    for (json, number) in records.iter().zip(1..) {
        let origin = origin(file_at, IN_ARRAY | number);
        if let Ok(Deletion { handle, deleted: true }) = Deletion::deserialize(json) {
            take(origin, InputEntry::Deleted(&handle))?;
            continue;
        }
        if let Ok(HomedPrefix { homed }) = HomedPrefix::deserialize(json) {
            take(origin, InputEntry::Homed(&homed))?;
            continue;
        }
        let at = || format!("{}: {}", place(path, origin), json["handle"].as_str().unwrap_or("no handle"));
        let record = record_from_json_dated(json, default_timestamp).with_context(at)?;
        encoded.clear();
        record.values.iter().for_each(|value| encoded.extend_from_slice(value.as_bytes()));
        let handle = std::str::from_utf8(&record.handle).with_context(at)?;
        let values = Values::from_encoded(record.values.len(), &encoded).with_context(at)?;
        take(origin, InputEntry::Record(handle, values))?;
    }
    Ok(())
}
