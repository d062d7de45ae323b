//! Reads records from files, one JSON object per line or one JSON array, and tracks the origin of
//! each record.

use anyhow::{Context as _, anyhow, bail};
use handle_proto::Values;
use handle_proto::json::{RecordLine, record_from_json_dated};
use handle_snapshot::BuildError;
use indicatif::ProgressBar;
use serde::Deserialize;
use std::fmt;
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
    /// The line is none of these; only with [`ValueInputs::refusing`]. Its handle, if it names
    /// one, and the reason.
    Refused(Option<&'a str>, String),
}

/// The input files; `-` is standard input.
pub(crate) struct ValueInputs<'a> {
    paths: &'a [PathBuf],
    default_timestamp: u32,
    /// Whether lines that are not entries are passed on instead of being errors.
    refuses: bool,
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
        Self { paths, default_timestamp: 0, refuses: false }
    }

    /// Gives values without a timestamp this one, in Unix seconds, instead of 0.
    pub(crate) const fn dated(self, default_timestamp: u32) -> Self {
        Self { default_timestamp, ..self }
    }

    /// Passes lines that are not entries on, if `refuses` is true, instead of stopping at the
    /// first.
    pub(crate) const fn refusing(self, refuses: bool) -> Self {
        Self { refuses, ..self }
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
            let file =
                InputFile { file_at, path, default_timestamp: self.default_timestamp, refuses: self.refuses };
            if is_array {
                file.each_of_array(reader, &mut take)?;
            } else {
                file.each_line(reader, bar, &mut take)?;
            }
        }
        Ok(())
    }

    /// The place of an origin as `file:line`, or `file: record N` in an array.
    pub(crate) fn place(&self, origin: u64) -> InputPlace {
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

/// The place of an entry: a line, or the position in a file whose records are not lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputPlace {
    /// The file, or the server that sent the record.
    pub(crate) file: String,
    /// The line.
    pub(crate) line: Option<u64>,
    /// The position.
    pub(crate) record: Option<u64>,
}

impl InputPlace {
    /// A line.
    pub(crate) fn line(file: impl ToString, line: u64) -> Self {
        Self { file: file.to_string(), line: Some(line), record: None }
    }

    /// A position among the records.
    pub(crate) fn record(file: impl ToString, record: u64) -> Self {
        Self { file: file.to_string(), line: None, record: Some(record) }
    }
}

impl fmt::Display for InputPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.record) {
            (Some(line), _) => write!(f, "{}:{line}", self.file),
            (None, Some(record)) => write!(f, "{}: record {record}", self.file),
            (None, None) => f.write_str(&self.file),
        }
    }
}

fn place(path: &Path, origin: u64) -> InputPlace {
    let number = origin & (IN_ARRAY - 1);
    match origin & IN_ARRAY {
        0 => InputPlace::line(path.display(), number),
        _ => InputPlace::record(path.display(), number),
    }
}

/// A file that is read.
#[derive(Clone, Copy)]
struct InputFile<'a> {
    file_at: usize,
    path: &'a Path,
    default_timestamp: u32,
    refuses: bool,
}

/// What a line is besides a record; `None` if it is nothing.
fn other_entry(deletion: Option<Deletion>, homed: Option<HomedPrefix>) -> Option<(bool, String)> {
    match (deletion, homed) {
        (Some(Deletion { handle, deleted: true }), _) => Some((true, handle)),
        (_, Some(HomedPrefix { homed })) => Some((false, homed)),
        _ => None,
    }
}

impl InputFile<'_> {
    fn each_line(
        &self,
        mut reader: Box<dyn BufRead>,
        bar: &ProgressBar,
        take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (mut line, mut values) = (Vec::new(), Vec::new());
        for number in 1.. {
            line.clear();
            let at = || format!("{}:{number}", self.path.display());
            let len = (&mut reader).take(LINE_LEN_MAX).read_until(b'\n', &mut line).with_context(at)?;
            if len == 0 {
                return Ok(());
            }
            bar.inc(len as u64);
            let origin = origin(self.file_at, number);
            if len as u64 == LINE_LEN_MAX {
                let rest = if self.refuses { reader.skip_until(b'\n').with_context(at)? } else { 0 };
                bar.inc(rest as u64);
                let why = format!("line too long: the maximum is {LINE_LEN_MAX} bytes");
                self.refuse(origin, None, why, take)?;
                continue;
            }
            let Ok(text) = std::str::from_utf8(&line) else {
                self.refuse(origin, None, "the line is not UTF-8".to_owned(), take)?;
                continue;
            };
            let text = text.trim();
            if !text.is_empty() {
                values.clear();
                self.take_line(origin, text, &mut values, take)?;
            }
        }
        Ok(())
    }

    fn take_line(
        &self,
        origin: u64,
        text: &str,
        values: &mut Vec<u8>,
        take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let error = match RecordLine::parse_dated(text, values, self.default_timestamp) {
            Ok(record) => {
                let at = || place(self.path, origin).to_string();
                let values = Values::from_encoded(record.values_count, values).with_context(at)?;
                return take(origin, InputEntry::Record(&record.handle, values));
            }
            Err(error) => error,
        };
        match other_entry(serde_json::from_str(text).ok(), serde_json::from_str(text).ok()) {
            Some((true, handle)) => take(origin, InputEntry::Deleted(&handle)),
            Some((false, homed)) => take(origin, InputEntry::Homed(&homed)),
            None => self.refuse(origin, handle_in(text).as_deref(), error.to_string(), take),
        }
    }

    /// Passes an entry on that cannot be read, or stops.
    fn refuse(
        &self,
        origin: u64,
        handle: Option<&str>,
        why: String,
        take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if self.refuses {
            return take(origin, InputEntry::Refused(handle, why));
        }
        let handle = handle.map(|handle| format!("{handle}: ")).unwrap_or_default();
        bail!("{}: {handle}{why}", place(self.path, origin))
    }

    /// Reads the whole array into memory, so that an error can name the position of the record.
    fn each_of_array(
        &self,
        reader: Box<dyn BufRead>,
        take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let records: Vec<serde_json::Value> = serde_json::from_reader(reader)
            .with_context(|| format!("{} is not an array of records", self.path.display()))?;
        let mut encoded = Vec::new();
        for (json, number) in records.iter().zip(1..) {
            let origin = origin(self.file_at, IN_ARRAY | number);
            match other_entry(Deletion::deserialize(json).ok(), HomedPrefix::deserialize(json).ok()) {
                Some((true, handle)) => take(origin, InputEntry::Deleted(&handle))?,
                Some((false, homed)) => take(origin, InputEntry::Homed(&homed))?,
                None => {
                    encoded.clear();
                    match encode_record(json, self.default_timestamp, &mut encoded) {
                        Ok((handle, count)) => {
                            let values = Values::from_encoded(count, &encoded)?;
                            take(origin, InputEntry::Record(&handle, values))?;
                        }
                        Err(why) => self.refuse(
                            origin,
                            Some(json["handle"].as_str().unwrap_or("no handle")),
                            format!("{why:#}"),
                            take,
                        )?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Appends the values of a record, and returns its handle and their number.
fn encode_record(
    json: &serde_json::Value,
    default_timestamp: u32,
    encoded: &mut Vec<u8>,
) -> anyhow::Result<(String, usize)> {
    let record = record_from_json_dated(json, default_timestamp)?;
    record.values.iter().for_each(|value| encoded.extend_from_slice(value.as_bytes()));
    Ok((String::from_utf8(record.handle)?, record.values.len()))
}

/// The handle in an invalid line.
fn handle_in(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    json["handle"].as_str().map(str::to_owned)
}
