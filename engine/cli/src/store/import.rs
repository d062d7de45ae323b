//! `hdl import`: writes records from files or another server directly into a store.

use super::foreign;
use super::remote::{self, RemoteArgs};
use crate::homed_prefixes::prefix_name;
use crate::input::{InputEntry, ValueInputs};
use crate::snapshot::now_unix_ms;
use crate::{ExitOutcome, output, progress};
use anyhow::{Context as _, bail, ensure};
use handle_admin::store::{Bulk, BulkCounts, Store, StoreConfig, check_record, key};
use handle_formats::dump::{self, Dump};
use handle_formats::export::{self, Export};
use handle_proto::json::RecordLine;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::list::Values;
use handle_proto::{Handle, ValueBuf, fold};
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Import records into a store.
///
/// The records are sorted and written directly into the file, not over the network: stop
/// handle-admin first. Nothing is written until all input has been read and is valid.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl import store.redb records.jsonl backup.jsonl
  hdl import store.redb export.json --create    the JSON export of a reference server
  hdl import store.redb handles.sql --home      its tables, from mysqldump or pg_dump
  hdl import store.redb --server 192.0.2.1 --prefix 10.1045 \\
      --auth 300:10.1045/ADMIN --key admin-private.bin

  hdl import store.redb prefixes.txt            a list of prefixes to home, one per line
  hdl import store.redb records.jsonl --homed 10.1045 --homed 20.500.12345

Lines are {\"handle\": ..., \"values\": [...]}, as in the handle REST API, or
{\"homed\": \"0.NA/10.1045\"}. Values without a timestamp get the time of the import.")]
pub(crate) struct Args {
    /// The file of the store.
    store: PathBuf,
    /// Files to read, all of one format; `-` is standard input.
    #[arg(value_name = "FILE", required_unless_present_any = ["server", "homed"], conflicts_with = "server")]
    files: Vec<PathBuf>,
    /// The format of the files. Default: detected from the first file.
    #[arg(long, value_enum)]
    from: Option<ImportFormat>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Create the store if it does not exist.
    #[arg(long)]
    create: bool,
    /// Distinguish the case of local names in the new store.
    #[arg(long, requires = "create")]
    case_sensitive: bool,
    /// Home this prefix, as 10.1045; may be given more than once.
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    homed: Vec<String>,
    /// Home the prefixes of all records.
    #[arg(long)]
    home: bool,
    /// Keep existing records instead of replacing them.
    #[arg(long)]
    keep_existing: bool,
    /// Skip records that exceed a limit, or that the other server does not release, instead of
    /// stopping.
    #[arg(long)]
    keep_going: bool,
    /// Memory for sorting, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16384))]
    memory: u32,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

/// The format of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ImportFormat {
    /// Lines of JSON, or an array of records.
    Lines,
    /// The JSON export of a reference server.
    Export,
    /// The SQL tables of a reference server.
    Sql,
    /// Prefixes to home, one per line, as 10.1045 or 0.NA/10.1045.
    Prefixes,
}

/// Parses a prefix on the command line.
fn parse_prefix(text: &str) -> Result<String, String> {
    prefix_name(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let started = Instant::now();
    args.files.iter().try_for_each(|path| foreign::refuse(path))?;
    // First, so that an unreadable input does not create a store.
    let form = match (args.from, args.files.first()) {
        (None, Some(first)) => Some(recognise(first)?),
        (given, _) => given,
    };
    let config = StoreConfig::at(&args.store);
    let store = match args.create && !args.store.exists() {
        true => Store::create(&config, !args.case_sensitive)?,
        false => Store::open(&config)?,
    };
    let directory =
        args.store.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut bulk = store.bulk(directory, usize::try_from(u64::from(args.memory) << 20)?);
    if args.keep_existing {
        bulk = bulk.keep_existing();
    }
    let folds = store.folds();
    let now_unix_s = u32::try_from(now_unix_ms() / 1000).unwrap_or(u32::MAX);
    let mut taken = ImportState {
        bulk,
        args,
        folds,
        now_unix_s,
        homed: HashSet::new(),
        read: 0,
        passed_over: 0,
        withheld: 0,
        unreadable: 0,
    };
    args.homed.iter().for_each(|prefix| taken.homed(prefix.as_bytes()));
    match form.filter(|_| !args.files.is_empty()) {
        None if args.remote.is_named() => remote::each(&args.remote, args.keep_going, &mut taken)?,
        None => {}
        Some(ImportFormat::Lines) => lines(args, &mut taken)?,
        Some(ImportFormat::Export) => args.files.iter().try_for_each(|path| json_export(path, &mut taken))?,
        Some(ImportFormat::Sql) => sql(args, &mut taken)?,
        Some(ImportFormat::Prefixes) => args.files.iter().try_for_each(|path| prefixes(path, &mut taken))?,
    }
    let ImportState { bulk, read, passed_over, homed, withheld, unreadable, .. } = taken;
    ensure!(read > 0 || !homed.is_empty(), "{}", nothing_read(form));
    let homed = homed.len() as u64;
    let writing = progress::bar("writing", Some(read));
    let counts = bulk.finish(|counts| writing.set_position(counts.written + counts.kept))?;
    writing.finish_and_clear();
    let summary =
        ImportSummary { read, passed_over, homed, withheld, unreadable, counts, took: started.elapsed() };
    summary.show(args.json);
    Ok(if passed_over + withheld + unreadable == 0 { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// The result of an import.
struct ImportSummary {
    read: u64,
    passed_over: u64,
    homed: u64,
    withheld: u64,
    unreadable: u64,
    counts: BulkCounts,
    took: Duration,
}

impl ImportSummary {
    fn show(&self, is_json: bool) {
        let Self { read, passed_over, homed, withheld, unreadable, counts, took } = self;
        if is_json {
            let json = serde_json::json!({
                "read": read, "written": counts.written, "kept": counts.kept, "passed_over": passed_over,
                "homed": homed, "public_values_only": withheld, "unreadable": unreadable,
                "seconds": took.as_secs_f64(),
            });
            println!("{json}");
            return;
        }
        let homed = output::counted(*homed, "prefix", "prefixes");
        if *read == 0 {
            println!("no records read, {homed} homed");
        } else {
            println!(
                "read {}: {} written, {} kept, {} skipped, {homed} homed, in {:.1} s ({}/s)",
                output::counted(*read, "record", "records"),
                output::count(counts.written),
                output::count(counts.kept),
                output::count(*passed_over),
                took.as_secs_f64(),
                output::rate(*read, *took),
            );
        }
        if withheld + unreadable > 0 {
            println!(
                "{} with only public values, {} not readable",
                output::counted(*withheld, "record", "records"),
                output::count(*unreadable),
            );
        }
    }
}

/// The records taken so far.
pub(super) struct ImportState<'a> {
    bulk: Bulk<'a>,
    args: &'a Args,
    /// Whether the store folds local names.
    folds: bool,
    /// The time of the import, for values without a timestamp.
    now_unix_s: u32,
    /// Prefixes homed by this import, folded and without 0.NA/.
    homed: HashSet<Vec<u8>>,
    read: u64,
    passed_over: u64,
    /// Number of records of another server whose private values are not readable.
    withheld: u64,
    /// Number of handles and prefixes of another server that are not readable at all.
    unreadable: u64,
}

impl ImportState<'_> {
    /// Takes a record; `place` tells its origin.
    pub(super) fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        place: impl Fn() -> String,
    ) -> anyhow::Result<()> {
        self.read += 1;
        if let Err(unfit) = check_record(handle, values.iter()) {
            let text = format!("{}: {}: {unfit}", place(), Handle(handle));
            ensure!(self.args.keep_going, "{text} (--keep-going skips it)");
            eprintln!("hdl: {text}");
            self.passed_over += 1;
            return Ok(());
        }
        if self.args.home {
            self.homed(Handle(handle).naming_authority());
        }
        Ok(self.bulk.add(handle, values)?)
    }

    /// Reports a record taken with only its `count` public values.
    pub(super) fn withheld(&mut self, handle: &[u8], count: usize, why: &str) {
        self.withheld += 1;
        eprintln!("hdl: {}: imported only the public values ({count}): {why}", Handle(handle));
    }

    /// Reports a handle or prefix that is not readable.
    pub(super) fn unreadable(&mut self, name: &[u8], why: &str) {
        self.unreadable += 1;
        eprintln!("hdl: {}: not imported: {why}", Handle(name));
    }

    pub(super) fn homed(&mut self, prefix: &[u8]) {
        let name =
            if fold::starts_with(prefix, PREFIX_RECORDS) { &prefix[PREFIX_RECORDS.len()..] } else { prefix };
        if self.homed.insert(fold::folded(name)) {
            self.bulk.home(prefix);
        }
    }
}

/// Why an import that read nothing fails. Otherwise it would look successful.
const fn nothing_read(form: Option<ImportFormat>) -> &'static str {
    match form {
        Some(ImportFormat::Sql) => {
            "no rows of the tables `handles` and `nas` were found: expected a dump of mysqldump or pg_dump, lines of JSON, \
             a JSON export, or a list of prefixes (select the format with --from)"
        }
        _ => "nothing to import: the input has no records and no prefixes",
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

/// Detects the format of a file from its beginning.
fn recognise(path: &Path) -> anyhow::Result<ImportFormat> {
    if path == Path::new("-") {
        return Ok(ImportFormat::Lines);
    }
    let mut begin = Vec::new();
    open(path)?
        .take(4096)
        .read_to_end(&mut begin)
        .with_context(|| format!("cannot read {}", path.display()))?;
    form_of(&begin).with_context(|| {
        format!(
            "{} has an unknown format: expected lines of JSON, a JSON export, a dump of mysqldump or pg_dump, or a list of \
             prefixes (select the format with --from)",
            path.display()
        )
    })
}

/// Detects the format from the beginning of a file; `None` if it is unknown.
fn form_of(begin: &[u8]) -> Option<ImportFormat> {
    let begin = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin).trim_ascii_start();
    if begin.is_empty() || begin.starts_with(b"[") {
        return Some(ImportFormat::Lines);
    }
    if let Some(object) = begin.strip_prefix(b"{") {
        let is_export = ["\"homedPrefixes\"", "\"handleRecords\""]
            .iter()
            .any(|name| object.trim_ascii_start().starts_with(name.as_bytes()));
        return Some(if is_export { ImportFormat::Export } else { ImportFormat::Lines });
    }
    if is_sql(begin) {
        return Some(ImportFormat::Sql);
    }
    // The last line may be incomplete, except in a file shorter than the limit.
    is_list(begin.get(..LIST_LEN).unwrap_or(begin)).then_some(ImportFormat::Prefixes)
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

/// Reads prefixes to home, one per line.
fn prefixes(path: &Path, taken: &mut ImportState<'_>) -> anyhow::Result<()> {
    for (line, number) in open(path)?.lines().zip(1_u64..) {
        let at = || format!("{}:{number}", path.display());
        let line = line.with_context(at)?;
        let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line).trim();
        if !line.is_empty() && !line.starts_with('#') {
            prefix_name(line).with_context(at)?;
            taken.homed(line.as_bytes());
        }
    }
    Ok(())
}

fn lines(args: &Args, taken: &mut ImportState<'_>) -> anyhow::Result<()> {
    let inputs = ValueInputs::new(&args.files).dated(taken.now_unix_s);
    let reading = progress::bar("reading", inputs.len());
    inputs.each(&reading, |origin, entry| match entry {
        InputEntry::Record(handle, values) => {
            taken.record(handle.as_bytes(), values, || inputs.place(origin))
        }
        InputEntry::Homed(prefix) => {
            taken.homed(prefix.as_bytes());
            Ok(())
        }
        InputEntry::Deleted(handle) => {
            bail!("{}: {handle}: an import cannot delete records", inputs.place(origin))
        }
    })?;
    reading.finish_and_clear();
    Ok(())
}

fn json_export(path: &Path, taken: &mut ImportState<'_>) -> anyhow::Result<()> {
    let mut export = Export::new(open(path)?);
    let mut encoded = Vec::new();
    let shown = path.display();
    let mut count = 0_u64;
    while let Some(item) = export.next().with_context(|| format!("{shown}"))? {
        match item {
            export::Item::Homed(prefix) => taken.homed(prefix.as_bytes()),
            export::Item::Record(text) => {
                count += 1;
                encoded.clear();
                let record = RecordLine::parse_dated(text, &mut encoded, taken.now_unix_s);
                let record = record.with_context(|| format!("{shown}: record {count}"))?;
                let values = Values::from_encoded(record.values_count, &encoded)?;
                taken.record(record.handle.as_bytes(), values, || format!("{shown}: record {count}"))?;
            }
        }
    }
    Ok(())
}

/// Reads a dump. All rows of a record have to be adjacent: later rows would replace earlier ones.
fn sql(args: &Args, taken: &mut ImportState<'_>) -> anyhow::Result<()> {
    let hasher = RandomState::new();
    let mut seen = HashSet::new();
    let mut storage = Vec::new();
    for path in &args.files {
        let shown = path.display();
        let mut dump = Dump::new(open(path)?);
        while let Some(item) = dump.next().with_context(|| format!("{shown}"))? {
            let (handle, values) = match item {
                dump::Item::Homed(prefix) => {
                    taken.homed(&prefix);
                    continue;
                }
                dump::Item::Record(handle, values) => (handle, values),
            };
            let line = dump.line();
            ensure!(
                seen.insert(hasher.hash_one(key(&handle, taken.folds))),
                "{shown}:{line}: the values of {} are not adjacent: sort the rows by handle (mysqldump --order-by-primary; in \
                PostgreSQL \\\\copy (SELECT * FROM handles ORDER BY handle, idx))",
                Handle(&handle)
            );
            let values = Values::build(values.iter().map(ValueBuf::view), &mut storage);
            taken.record(&handle, values, || format!("{shown}:{line}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_file_shows_at_its_beginning() {
        for (begin, form) in [
            ("\u{feff}{\"handle\":\"10/a\",\"values\":[]}\n", ImportFormat::Lines),
            ("{\"homed\":\"0.NA/10\"}\n", ImportFormat::Lines),
            ("[{\"handle\"", ImportFormat::Lines),
            ("", ImportFormat::Lines),
            (" {\n \"homedPrefixes\": []", ImportFormat::Export),
            ("{\"handleRecords\":{", ImportFormat::Export),
            ("-- MySQL dump", ImportFormat::Sql),
            ("--\n-- PostgreSQL database dump", ImportFormat::Sql),
            ("INSERT INTO handles", ImportFormat::Sql),
            ("insert into `handles`", ImportFormat::Sql),
            ("/*!40101 SET NAMES utf8 */;", ImportFormat::Sql),
            ("\\restrict x\n", ImportFormat::Sql),
            ("BEGIN;\n", ImportFormat::Sql),
            ("10.1045", ImportFormat::Prefixes),
            ("# homed\n\n0.NA/10.1045\r\n0.na/20.500.12345\n", ImportFormat::Prefixes),
            ("11404\nabc\n", ImportFormat::Prefixes),
            // Rejected because of its first line.
            ("10.1045/a\n10.1045/b\n", ImportFormat::Prefixes),
        ] {
            assert_eq!(form_of(begin.as_bytes()), Some(form), "{begin}");
        }
        for begin in ["prefix,count\n10.1045,7\n", "these are words", "<records/>", "\0\x01"] {
            assert_eq!(form_of(begin.as_bytes()), None, "{begin}");
        }
    }
}
