//! Reads records from files: lines of JSON, exports and SQL tables of reference servers, and lists
//! of names.

use crate::input::{InputEntry, InputPlace, ValueInputs};
use crate::progress;
use anyhow::{Context as _, bail, ensure};
use handle_formats::dump::{self, Dump};
use handle_formats::export::{self, Export};
use handle_proto::json::RecordLine;
use handle_proto::wire::list::Values;
use handle_proto::{Handle, ValueBuf};
use handle_store::key;
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// The format of files with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RecordFormat {
    /// Lines of JSON, or an array of records.
    Lines,
    /// The JSON export of a reference server.
    Export,
    /// The SQL tables of a reference server.
    Sql,
    /// One name per line: for an import, of a prefix to home, as 10.1045 or 0.NA/10.1045.
    #[value(alias = "prefixes")]
    Names,
}

/// Takes what is read from files.
pub(crate) trait RecordSink {
    /// Takes a record; `place` tells its origin.
    fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        place: &dyn Fn() -> InputPlace,
    ) -> anyhow::Result<()>;

    /// Whether entries that cannot be read are passed on instead of being errors.
    fn refuses(&self) -> bool {
        false
    }

    /// Takes note of an entry that cannot be read, of `handle` if it names one.
    fn refused(&mut self, place: &InputPlace, handle: Option<&str>, why: &str) -> anyhow::Result<()> {
        let handle = handle.map(|handle| format!("{handle}: ")).unwrap_or_default();
        bail!("{place}: {handle}{why}")
    }

    /// Takes a homed prefix.
    fn homed(&mut self, prefix: &[u8]);

    /// Takes a line of a list, which is a prefix or a handle.
    fn name(&mut self, name: &str) -> anyhow::Result<()>;
}

/// Files of one format.
pub(crate) struct RecordFiles<'a> {
    pub(crate) paths: &'a [PathBuf],
    pub(crate) format: RecordFormat,
    /// Timestamp of values without one, in Unix seconds.
    pub(crate) default_timestamp: u32,
    /// Whether handles that differ in the letter case of local names are the same.
    pub(crate) folds: bool,
}

impl RecordFiles<'_> {
    /// Passes everything in the files to `sink`.
    ///
    /// # Errors
    /// When a file cannot be read, with its name and the place in it; and those of `sink`.
    pub(crate) fn read(&self, sink: &mut impl RecordSink) -> anyhow::Result<()> {
        match self.format {
            RecordFormat::Lines => self.lines(sink),
            RecordFormat::Export => self.paths.iter().try_for_each(|path| self.json_export(path, sink)),
            RecordFormat::Sql => self.sql(sink),
            RecordFormat::Names => self.paths.iter().try_for_each(|path| names(path, sink)),
        }
    }

    fn lines(&self, sink: &mut impl RecordSink) -> anyhow::Result<()> {
        let inputs = ValueInputs::new(self.paths).dated(self.default_timestamp).refusing(sink.refuses());
        let reading = progress::bar("reading", inputs.len());
        inputs.each(&reading, |origin, entry| match entry {
            InputEntry::Record(handle, values) => {
                sink.record(handle.as_bytes(), values, &|| inputs.place(origin))
            }
            InputEntry::Homed(prefix) => {
                sink.homed(prefix.as_bytes());
                Ok(())
            }
            InputEntry::Deleted(handle) => {
                sink.refused(&inputs.place(origin), Some(handle), "a deletion is not a record")
            }
            InputEntry::Refused(handle, why) => sink.refused(&inputs.place(origin), handle, &why),
        })?;
        reading.finish_and_clear();
        Ok(())
    }

    fn json_export(&self, path: &Path, sink: &mut impl RecordSink) -> anyhow::Result<()> {
        let mut export = Export::new(open(path)?);
        let mut encoded = Vec::new();
        let shown = path.display();
        let mut count = 0_u64;
        while let Some(item) = export.next().with_context(|| format!("{shown}"))? {
            match item {
                export::Item::Homed(prefix) => sink.homed(prefix.as_bytes()),
                export::Item::Record(text) => {
                    count += 1;
                    encoded.clear();
                    let place = || InputPlace::record(&shown, count);
                    match RecordLine::parse_dated(text, &mut encoded, self.default_timestamp) {
                        Ok(record) => {
                            let values = Values::from_encoded(record.values_count, &encoded)?;
                            sink.record(record.handle.as_bytes(), values, &place)?;
                        }
                        Err(error) => sink.refused(&place(), None, &error.to_string())?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a dump. All rows of a record have to be adjacent: later rows would replace earlier
    /// ones.
    fn sql(&self, sink: &mut impl RecordSink) -> anyhow::Result<()> {
        let hasher = RandomState::new();
        let mut seen = HashSet::new();
        let mut storage = Vec::new();
        for path in self.paths {
            let shown = path.display();
            let mut dump = Dump::new(open(path)?);
            while let Some(item) = dump.next().with_context(|| format!("{shown}"))? {
                let (handle, values) = match item {
                    dump::Item::Homed(prefix) => {
                        sink.homed(&prefix);
                        continue;
                    }
                    dump::Item::Record(handle, values) => (handle, values),
                };
                let line = dump.line();
                ensure!(
                    seen.insert(hasher.hash_one(key(&handle, self.folds))),
                    "{shown}:{line}: the values of {} are not adjacent: sort the rows by handle (mysqldump --order-by-primary; in \
                    PostgreSQL \\copy (SELECT * FROM handles ORDER BY handle, idx))",
                    Handle(&handle)
                );
                let values = Values::build(values.iter().map(ValueBuf::view), &mut storage);
                sink.record(&handle, values, &|| InputPlace::line(&shown, line))?;
            }
        }
        Ok(())
    }
}

/// Reads names, one per line.
fn names(path: &Path, sink: &mut impl RecordSink) -> anyhow::Result<()> {
    for (line, number) in open(path)?.lines().zip(1_u64..) {
        let at = || format!("{}:{number}", path.display());
        let line = line.with_context(at)?;
        let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line).trim();
        if !line.is_empty() && !line.starts_with('#') {
            sink.name(line).with_context(at)?;
        }
    }
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

/// Detects the format of a file from its beginning.
pub(crate) fn recognise(path: &Path) -> anyhow::Result<RecordFormat> {
    if path == Path::new("-") {
        return Ok(RecordFormat::Lines);
    }
    let mut begin = Vec::new();
    open(path)?
        .take(4096)
        .read_to_end(&mut begin)
        .with_context(|| format!("cannot read {}", path.display()))?;
    form_of(&begin).with_context(|| {
        format!(
            "{} has an unknown format: expected lines of JSON, a JSON export, a dump of mysqldump or pg_dump, or a list of \
             names (select the format with --from)",
            path.display()
        )
    })
}

/// Detects the format from the beginning of a file; `None` if it is unknown.
fn form_of(begin: &[u8]) -> Option<RecordFormat> {
    let begin = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin).trim_ascii_start();
    if begin.is_empty() || begin.starts_with(b"[") {
        return Some(RecordFormat::Lines);
    }
    if let Some(object) = begin.strip_prefix(b"{") {
        let is_export = ["\"homedPrefixes\"", "\"handleRecords\""]
            .iter()
            .any(|name| object.trim_ascii_start().starts_with(name.as_bytes()));
        return Some(if is_export { RecordFormat::Export } else { RecordFormat::Lines });
    }
    if is_sql(begin) {
        return Some(RecordFormat::Sql);
    }
    // The last line may be incomplete, except in a file shorter than the limit.
    is_list(begin.get(..LIST_LEN).unwrap_or(begin)).then_some(RecordFormat::Names)
}

/// Number of bytes from which a list is detected.
const LIST_LEN: usize = 1024;

/// Whether a dump can begin like this: with a comment, a command of psql, or a statement.
fn is_sql(begin: &[u8]) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b';' | b'(' | b'`' | b'"');
    let word = begin.split(is_end).next().unwrap_or_default();
    const WORDS: [&[u8]; 16] = [
        b"ALTER",
        b"BEGIN",
        b"COMMIT",
        b"COPY",
        b"CREATE",
        b"DELETE",
        b"DROP",
        b"INSERT",
        b"LOCK",
        b"PRAGMA",
        b"REPLACE",
        b"SELECT",
        b"SET",
        b"START",
        b"TRUNCATE",
        b"USE",
    ];
    begin.starts_with(b"--")
        || begin.starts_with(b"/*")
        || begin.starts_with(b"\\")
        || WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether each line is one word, as names are, or a comment. Invalid prefixes are rejected with
/// their line number when the list is read.
fn is_list(begin: &[u8]) -> bool {
    let is_word = |line: &[u8]| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte >= 0x80 || b"./-_:".contains(byte);
        line.is_empty() || line.starts_with(b"#") || line.iter().all(is_name)
    };
    begin.split(|&byte| byte == b'\n').all(|line| is_word(line.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_file_shows_at_its_beginning() {
        for (begin, form) in [
            ("\u{feff}{\"handle\":\"10/a\",\"values\":[]}\n", RecordFormat::Lines),
            ("{\"homed\":\"0.NA/10\"}\n", RecordFormat::Lines),
            ("[{\"handle\"", RecordFormat::Lines),
            ("", RecordFormat::Lines),
            (" {\n \"homedPrefixes\": []", RecordFormat::Export),
            ("{\"handleRecords\":{", RecordFormat::Export),
            ("-- MySQL dump", RecordFormat::Sql),
            ("--\n-- PostgreSQL database dump", RecordFormat::Sql),
            ("INSERT INTO handles", RecordFormat::Sql),
            ("insert into `handles`", RecordFormat::Sql),
            ("/*!40101 SET NAMES utf8 */;", RecordFormat::Sql),
            ("\\restrict x\n", RecordFormat::Sql),
            ("BEGIN;\n", RecordFormat::Sql),
            ("10.1045", RecordFormat::Names),
            ("# homed\n\n0.NA/10.1045\r\n0.na/20.500.12345\n", RecordFormat::Names),
            ("11404\nabc\n", RecordFormat::Names),
            ("10.1045/a\n10.1045/b\n", RecordFormat::Names),
        ] {
            assert_eq!(form_of(begin.as_bytes()), Some(form), "{begin}");
        }
        for begin in ["prefix,count\n10.1045,7\n", "these are words", "<records/>", "\0\x01"] {
            assert_eq!(form_of(begin.as_bytes()), None, "{begin}");
        }
    }
}
