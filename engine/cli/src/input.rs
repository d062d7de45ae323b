//! Reads records from files, pipes and standard input, and tracks the origin of each record.
//!
//! The forms are those of `handle_formats::input`. Each input is opened once and read once.

use anyhow::{Context as _, anyhow, bail};
use handle_formats::batch::{BatchOperation, BatchValue};
use handle_formats::input::{
    InputEntry as FormatsEntry, InputForm, InputPosition as EntryPosition, InputReader, InputStream,
};
use handle_proto::wire::list::Values;
use handle_proto::{Value, ValueBuf};
use handle_snapshot::BuildError;
use handle_store::{Sorter, StoreError, key};
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The origin of a record as a number: the file in the upper bits, the line in the lower ones.
const LINE_BITS: u32 = 40;
/// If this bit is set, the lower bits are the position of the record instead of a line.
const IS_RECORD: u64 = 1 << (LINE_BITS - 1);

/// What an input has at one position.
pub(crate) enum InputEntry<'a> {
    /// The record of a handle.
    Record(&'a [u8], Values<'a>),
    /// The handle is deleted.
    Deleted(&'a [u8]),
    /// The prefix is homed.
    Homed(&'a [u8]),
    /// A line of a list.
    Name(&'a str),
    /// None of these; only with [`RecordInputs::refusing`]. The handle, if it names one, and the
    /// reason.
    Refused(Option<&'a str>, String),
}

/// Where to sort the records of inputs whose rows of one handle may stand apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SortingSpace<'a> {
    /// Directory of temporary files.
    pub(crate) temp_dir: &'a Path,
    pub(crate) memory_len: usize,
    /// Whether handles that differ in the letter case of local names are the same.
    pub(crate) folds: bool,
}

/// The inputs, all of one form unless none is given; `-` is standard input.
pub(crate) struct RecordInputs<'a> {
    paths: &'a [PathBuf],
    form: Option<InputForm>,
    default_timestamp: u32,
    /// Whether entries that cannot be read are passed on instead of being errors.
    refuses: bool,
    /// The first input, once its form has been recognised.
    first: RefCell<Option<(InputStream<'static>, InputForm)>>,
}

impl<'a> RecordInputs<'a> {
    /// These files, in this order. The form of each is recognised unless `form` names it.
    pub(crate) const fn new(paths: &'a [PathBuf], form: Option<InputForm>) -> Self {
        Self { paths, form, default_timestamp: 0, refuses: false, first: RefCell::new(None) }
    }

    /// Gives values without a timestamp this one, in Unix seconds, instead of 0.
    pub(crate) fn dated(self, default_timestamp: u32) -> Self {
        Self { default_timestamp, ..self }
    }

    /// Passes entries that cannot be read on, if `refuses` is true, instead of stopping at the
    /// first.
    pub(crate) fn refusing(self, refuses: bool) -> Self {
        Self { refuses, ..self }
    }

    /// Opens the first input, and returns its form.
    ///
    /// # Errors
    /// If it cannot be read, or its form is unknown.
    pub(crate) fn begin(&self, bar: &ProgressBar) -> anyhow::Result<Option<InputForm>> {
        let Some(path) = self.paths.first() else { return Ok(None) };
        let opened = open(path, self.form, bar)?;
        let form = opened.1;
        self.first.replace(Some(opened));
        Ok(Some(form))
    }

    /// Total bytes of all files, if known.
    pub(crate) fn len(&self) -> Option<u64> {
        let len = |path: &PathBuf| {
            std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
        };
        self.paths.iter().map(len).sum()
    }

    /// Passes every entry with its origin to `take`, and advances `bar` by the bytes read. Records
    /// whose rows may stand apart come last, in the order of their handles.
    ///
    /// # Errors
    /// If an input cannot be read or an entry is not one, with file, position and reason; and those
    /// of `take`.
    pub(crate) fn each(
        &self,
        bar: &ProgressBar,
        sorting: SortingSpace<'_>,
        mut take: impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut parts = None;
        for (file_at, path) in self.paths.iter().enumerate() {
            let opened = self.first.take().filter(|_| file_at == 0);
            let (stream, form) = opened.map_or_else(|| open(path, self.form, bar), Ok)?;
            let read = |error| anyhow!("{}: {error}", path.display());
            let mut reader = InputReader::new(stream, form).map_err(read)?.dated(self.default_timestamp);
            let has_parts = reader.has_parts();
            while let Some((position, entry)) = reader.next().map_err(read)? {
                let origin = origin(file_at, position);
                match entry {
                    FormatsEntry::Record(handle, values) if has_parts => {
                        parts.get_or_insert_with(|| RecordParts::new(sorting)).add(origin, handle, values)?;
                    }
                    entry => self.take_entry(origin, entry, &mut take)?,
                }
            }
            if reader.lacks_end() {
                eprintln!(
                    "hdl: warning: {} lacks the line with which the program that wrote it ends: it may be cut",
                    path.display()
                );
            }
        }
        match parts {
            Some(parts) => {
                parts.each(|origin, handle, values| take(origin, InputEntry::Record(handle, values)))
            }
            None => Ok(()),
        }
    }

    fn take_entry(
        &self,
        origin: u64,
        entry: FormatsEntry<'_>,
        take: &mut impl FnMut(u64, InputEntry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match entry {
            FormatsEntry::Record(handle, values) => take(origin, InputEntry::Record(handle, values)),
            FormatsEntry::Deleted(handle) => take(origin, InputEntry::Deleted(handle)),
            FormatsEntry::Homed(prefix) => take(origin, InputEntry::Homed(prefix)),
            FormatsEntry::Name(name) => take(origin, InputEntry::Name(name)),
            // These concern the connection to a server.
            FormatsEntry::Operation(BatchOperation::Authenticate(_) | BatchOperation::Session(_)) => Ok(()),
            FormatsEntry::Operation(BatchOperation::Replace(handle, values)) => {
                let values: Vec<ValueBuf> = values.iter().filter_map(whole).collect();
                let mut encoded = Vec::new();
                let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
                take(origin, InputEntry::Record(handle.as_bytes(), values))
            }
            FormatsEntry::Operation(operation) => {
                let why = match &operation {
                    BatchOperation::Create(..) => {
                        "a value is in another file, which only `hdl batch` reads".to_owned()
                    }
                    other => format!("{} is not a record: `hdl batch` carries it out", other.word()),
                };
                self.refuse(origin, operation.handle(), why, take)
            }
            FormatsEntry::Refused(handle, why) => self.refuse(origin, handle.as_deref(), why, take),
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
        bail!("{}: {handle}{why}", self.position(origin))
    }

    /// The position of an origin as `file:line`, or `file: record N` where records are not lines.
    pub(crate) fn position(&self, origin: u64) -> InputPosition {
        let file_at = usize::try_from(origin >> LINE_BITS).unwrap_or(usize::MAX);
        let file = self.paths.get(file_at).map_or(Path::new("?"), PathBuf::as_path).display();
        let number = origin & (IS_RECORD - 1);
        match origin & IS_RECORD {
            0 => InputPosition::line(file, number),
            _ => InputPosition::record(file, number),
        }
    }

    /// Formats an error of the builder, with positions instead of origins.
    pub(crate) fn explain(&self, error: BuildError) -> anyhow::Error {
        match error {
            BuildError::Record { handle, origin, why } => {
                anyhow!("{}: {}: {why}", self.position(origin), handle_proto::Handle(&handle))
            }
            BuildError::Duplicate { key, origins: [first, second] } => anyhow!(
                "{}: duplicate handle {}, first at {}",
                self.position(second),
                handle_proto::Handle(&key),
                self.position(first)
            ),
            error => error.into(),
        }
    }
}

fn whole(value: &BatchValue) -> Option<ValueBuf> {
    value.resolve(|_| Err(())).ok()
}

/// Opens an input, and recognises its form.
fn open(
    path: &Path,
    form: Option<InputForm>,
    bar: &ProgressBar,
) -> anyhow::Result<(InputStream<'static>, InputForm)> {
    let cannot_read = || format!("cannot read {}", path.display());
    let mut stream = InputStream::new(bar.wrap_read(open_bytes(path)?)).with_context(cannot_read)?;
    let form = match form {
        Some(form) => form,
        None => InputForm::recognise(&mut stream).with_context(cannot_read)?.with_context(|| {
            format!(
                "{} has an unknown format: expected lines of JSON, a JSON export, a dump of mysqldump or pg_dump, CSV with \
                 a column `handle`, a batch file, or a list of names (select the format with --from)",
                path.display()
            )
        })?,
    };
    Ok((stream, form))
}

/// The bytes of a file, a pipe or a device; `-` is standard input.
pub(crate) fn open_bytes(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    Ok(Box::new(File::open(path).with_context(|| format!("cannot open {}", path.display()))?))
}

fn origin(file_at: usize, position: EntryPosition) -> u64 {
    let number = match position {
        EntryPosition::Line(line) => line,
        EntryPosition::Record(record) => IS_RECORD | record,
    };
    ((file_at as u64) << LINE_BITS) | number
}

/// The position of an entry: a line, or the position in a file whose records are not lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputPosition {
    /// The file, or the server that sent the record.
    pub(crate) file: String,
    /// The line.
    pub(crate) line: Option<u64>,
    /// The position.
    pub(crate) record: Option<u64>,
}

impl InputPosition {
    /// A line.
    fn line(file: impl ToString, line: u64) -> Self {
        Self { file: file.to_string(), line: Some(line), record: None }
    }

    /// A position among the records.
    fn record(file: impl ToString, record: u64) -> Self {
        Self { file: file.to_string(), line: None, record: Some(record) }
    }
}

impl fmt::Display for InputPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.record) {
            (Some(line), _) => write!(f, "{}:{line}", self.file),
            (None, Some(record)) => write!(f, "{}: record {record}", self.file),
            (None, None) => f.write_str(&self.file),
        }
    }
}

/// Puts parts of records together that stand apart, as rows of a database do: sorts them in
/// temporary files.
struct RecordParts {
    sorter: Sorter,
    folds: bool,
    /// Number of parts so far.
    count: u64,
    entry: Vec<u8>,
}

/// A part as it is sorted: its origin, its handle and its values.
struct RecordPart<'e> {
    origin: u64,
    handle: &'e [u8],
    values: &'e [u8],
}

impl<'e> RecordPart<'e> {
    fn split(entry: &'e [u8]) -> Option<Self> {
        let (origin, rest) = entry.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (handle, values) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        Some(Self { origin: u64::from_be_bytes(*origin), handle, values })
    }
}

impl RecordParts {
    fn new(sorting: SortingSpace<'_>) -> Self {
        let sorter = Sorter::new(sorting.temp_dir, sorting.memory_len);
        Self { sorter, folds: sorting.folds, count: 0, entry: Vec::new() }
    }

    fn add(&mut self, origin: u64, handle: &[u8], values: Values<'_>) -> anyhow::Result<()> {
        // With its length in front, no name is the beginning of another one. The number keeps parts
        // of one record apart and in their order.
        let name = key(handle, self.folds);
        let mut sorted = u32::try_from(name.len())?.to_be_bytes().to_vec();
        sorted.extend_from_slice(&name);
        sorted.extend_from_slice(&self.count.to_be_bytes());
        self.count += 1;
        self.entry.clear();
        self.entry.extend_from_slice(&origin.to_be_bytes());
        self.entry.extend_from_slice(&u32::try_from(handle.len())?.to_be_bytes());
        self.entry.extend_from_slice(handle);
        values.iter().for_each(|value| value.encode(&mut self.entry));
        Ok(self.sorter.add(&sorted, &self.entry)?)
    }

    /// Passes whole records on. Values of parts that stand apart are in the order of their indexes.
    fn each(self, mut take: impl FnMut(u64, &[u8], Values<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut failure = None;
        let mut record: Option<(Vec<u8>, Vec<Vec<u8>>)> = None;
        let mut give = |entries: &[Vec<u8>]| {
            give_record(entries, &mut take).map_err(|error| {
                failure = Some(error);
                StoreError::from(std::io::Error::other("stopped"))
            })
        };
        let sorted = self.sorter.finish(|sorted, entry| {
            let name = &sorted[..sorted.len() - size_of::<u64>()];
            match &mut record {
                Some((same, entries)) if same == name => entries.push(entry.to_vec()),
                other => {
                    if let Some((_, entries)) = other.replace((name.to_vec(), vec![entry.to_vec()])) {
                        give(&entries)?;
                    }
                }
            }
            Ok(())
        });
        let sorted = sorted.and_then(|()| record.map_or(Ok(()), |(_, entries)| give(&entries)));
        match failure {
            Some(error) => Err(error),
            None => Ok(sorted?),
        }
    }
}

/// Passes the record of these parts on.
fn give_record(
    entries: &[Vec<u8>],
    take: &mut impl FnMut(u64, &[u8], Values<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let parts = entries.iter().map(|entry| RecordPart::split(entry)).collect::<Option<Vec<_>>>();
    let parts = parts.context("a sorted record does not decode")?;
    let mut values = Vec::new();
    for part in &parts {
        let mut rest = part.values;
        while !rest.is_empty() {
            let (value, after) = Value::split(rest)?;
            values.push(value);
            rest = after;
        }
    }
    if parts.len() > 1 {
        values.sort_by_key(|value| value.index);
    }
    let first = parts.first().context("a sorted record has a part")?;
    let mut encoded = Vec::new();
    take(first.origin, first.handle, Values::build(values, &mut encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_record_are_put_together_wherever_they_stand() {
        let directory = tempfile::tempdir().unwrap();
        let sorting = SortingSpace { temp_dir: directory.path(), memory_len: 100, folds: true };
        let mut parts = RecordParts::new(sorting);
        let mut add = |origin, handle: &[u8], indexes: &[i32]| {
            let mut encoded = Vec::new();
            let values = indexes.iter().map(|&index| Value::new(index, b"URL", handle));
            parts.add(origin, handle, Values::build(values, &mut encoded)).unwrap();
        };
        add(1, b"10.1/a", &[7, 3]);
        add(2, b"10.1/ab", &[2, 1]);
        add(3, b"10.1/A", &[5]);
        add(4, b"10.1/a\0\0", &[1]);
        add(5, b"10.1/a", &[1]);
        let mut found = Vec::new();
        parts
            .each(|origin, handle, values| {
                let indexes: Vec<i32> = values.iter().map(|value| value.index).collect();
                found.push((origin, String::from_utf8(handle.to_vec())?, indexes));
                Ok(())
            })
            .unwrap();
        found.sort();
        let record = |origin, handle: &str, indexes: &[i32]| (origin, handle.to_owned(), indexes.to_vec());
        assert_eq!(
            found,
            [
                record(1, "10.1/a", &[1, 3, 5, 7]),
                record(2, "10.1/ab", &[2, 1]),
                record(4, "10.1/a\0\0", &[1])
            ]
        );
    }
}
