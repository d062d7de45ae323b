//! `hdl import`: writes records from files or another server directly into a store.

use super::files::{RecordFormat, RecordSink, read_all};
use super::foreign;
use super::remote::{self, RemoteArgs, RemoteSink};
use crate::homed_prefixes::prefix_name;
use crate::input::{InputPosition, RecordInputs, SortingSpace};
use crate::{ExitOutcome, UsageError, output, progress};
use anyhow::{Context as _, ensure};
use handle_daemon::clock::now_unix_ms;
use handle_formats::input::InputForm;
use handle_proto::wire::list::Values;
use handle_proto::{Handle, fold};
use handle_store::{Bulk, BulkCounts, Store, StoreConfig, StoreError, check_record};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Import records into a store.
///
/// The records are sorted and written directly into the file, not over the network: stop
/// handle-admin first. Nothing is written until all input has been read and is valid. In a
/// database, records are copied, and handle-admin may run.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl import store.redb records.jsonl backup.jsonl
  hdl import store.redb export.json --create    the JSON export of a reference server
  hdl import store.redb handles.sql --home      its tables, from mysqldump or pg_dump
  zcat handles.sql.gz | hdl import store.redb -       from a pipe, as also <(zcat handles.sql.gz)
  hdl import store.redb records.csv             handle, index, type, data, from a spreadsheet
  hdl import store.redb --server 192.0.2.1 --prefix 10.1045 \\
      --auth 300:10.1045/ADMIN --key admin-private.bin

  hdl import store.redb prefixes.txt            a list of prefixes to home, one per line
  hdl import store.redb records.jsonl --homed 10.1045 --homed 20.500.12345
  hdl import --into postgresql://handle@db.example/handles records.jsonl \\
      --skip-refused --report refused.jsonl
  hdl import store.redb records.jsonl --resume        after an interrupted import of the same file

Lines are {\"handle\": ..., \"values\": [...]}, as in the handle REST API, or
{\"homed\": \"0.NA/10.1045\"}. Batch files that create records are read as well, and every
form also in gzip and zstd. Values without a timestamp get the time of the import.

Exit codes: 0 everything is imported, 1 failed, or some records were refused, 6 the other server
refuses.")]
pub(crate) struct Args {
    /// The store, a file or the URL of a database of PostgreSQL, unless --into names it; then files
    /// to read, each once, from its start to its end. `-` is standard input.
    #[arg(value_name = "STORE] [FILE", required_unless_present = "into")]
    paths: Vec<PathBuf>,
    /// The store: a file, or the URL of a database of PostgreSQL.
    #[arg(long, value_name = "STORE")]
    into: Option<PathBuf>,
    /// The format of the files. Default: detected from the beginning of each.
    #[arg(long, value_enum)]
    from: Option<RecordFormat>,
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
    /// Skip lines that are not records, records that exceed a limit, and those that the other
    /// server does not release, instead of stopping.
    #[arg(long, visible_alias = "skip-refused")]
    keep_going: bool,
    /// Write a line of JSON about each record that is skipped into this new file: `file`, `line` or
    /// `record`, `handle` and `reason`.
    #[arg(long, value_name = "FILE", requires = "keep_going")]
    report: Option<PathBuf>,
    /// Go on with an interrupted import of the same input: records that it has written are not
    /// written again.
    #[arg(long)]
    resume: bool,
    /// Records in one commit, in MiB. An interrupted import loses at most one commit.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    commit: u32,
    /// Memory for sorting, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16384))]
    memory: u32,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

/// Parses a prefix on the command line.
fn parse_prefix(text: &str) -> Result<String, String> {
    prefix_name(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let started = Instant::now();
    let (store_path, files) = args.store_and_files()?;
    files.iter().try_for_each(|path| foreign::refuse(path))?;
    let inputs = RecordInputs::new(files, args.from.map(InputForm::from)).refusing(args.keep_going);
    let reading = progress::bar("reading", inputs.len());
    // First, so that an unreadable input does not create a store.
    let form = inputs.begin(&reading)?;
    let report = args.report.as_deref().map(RefusalReport::create).transpose()?;
    let config = StoreConfig::at(store_path);
    let store = match Store::open(&config) {
        Err(StoreError::Missing(_)) if args.create => Store::create(&config, !args.case_sensitive)?,
        opened => opened?,
    };
    let directory = match config.is_in_database() {
        true => std::env::temp_dir(),
        false => match store_path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        },
    };
    let folds = store.folds();
    // Rows that may stand apart are sorted twice.
    let is_sorted_twice = matches!(form, Some(InputForm::Sql | InputForm::Csv));
    let memory_len = usize::try_from(u64::from(args.memory) << 20)? / if is_sorted_twice { 2 } else { 1 };
    let (bulk, dated_unix_s) = args.bulk(&store, &directory, memory_len)?;
    let mut taken = ImportState {
        bulk,
        args,
        homed: HashSet::new(),
        read: 0,
        passed_over: 0,
        withheld: 0,
        unreadable: 0,
        report,
    };
    args.homed.iter().for_each(|prefix| taken.homed(prefix.as_bytes()));
    let read = if form.is_some() {
        let sorting = SortingSpace { temp_dir: &directory, memory_len, folds };
        read_all(&inputs.dated(dated_unix_s), &reading, sorting, &mut taken)
    } else if args.remote.is_named() {
        remote::each(&args.remote, args.keep_going, &mut taken)
    } else {
        Ok(())
    };
    read.context("nothing was written")?;
    let ImportState { bulk, read, passed_over, homed, withheld, unreadable, report, .. } = taken;
    ensure!(read > 0 || passed_over > 0 || !homed.is_empty(), "{}", nothing_read(form));
    // Complete before anything is written, so that an import that is interrupted then has it too.
    report.map_or(Ok(()), RefusalReport::finish)?;
    let homed = homed.len() as u64;
    let writing = progress::bar("writing", Some(read));
    let mut written = 0;
    let counts = bulk.finish(|counts| {
        written = counts.written + counts.kept + counts.resumed;
        writing.set_position(written);
    });
    writing.finish_and_clear();
    let counts = counts.with_context(|| {
        format!(
            "interrupted after {} of {}: go on with the same input and --resume",
            output::count(written),
            output::counted(read, "record", "records")
        )
    })?;
    let summary =
        ImportSummary { read, passed_over, homed, withheld, unreadable, counts, took: started.elapsed() };
    summary.show(args.json);
    Ok(if passed_over + withheld + unreadable == 0 { ExitOutcome::Good } else { ExitOutcome::Failed })
}

impl Args {
    /// The store, and the files to read.
    fn store_and_files(&self) -> anyhow::Result<(&Path, &[PathBuf])> {
        let usage = |text: &str| anyhow::Error::from(UsageError(text.to_owned()));
        let (store, files) = match (&self.into, self.paths.split_first()) {
            (Some(store), _) => (store, &*self.paths),
            (None, Some((store, files))) => (store, files),
            (None, None) => return Err(usage("no store is named")),
        };
        match (files.is_empty(), self.remote.is_named()) {
            (false, true) => Err(usage("name files or --server, not both")),
            (true, false) if self.homed.is_empty() => {
                Err(usage("no input: name files behind the store, or --server, or --homed"))
            }
            _ => Ok((store, files)),
        }
    }

    /// The load into `store`, and the timestamp of values without one: that of the import to
    /// resume.
    fn bulk<'s>(
        &self,
        store: &'s Store,
        directory: &Path,
        memory_len: usize,
    ) -> anyhow::Result<(Bulk<'s>, u32)> {
        let mut bulk = store.bulk(directory, memory_len);
        bulk = bulk.commit_bytes(usize::try_from(u64::from(self.commit) << 20)?);
        if self.keep_existing {
            bulk = bulk.keep_existing();
        }
        let mut dated_unix_s = u32::try_from(now_unix_ms() / 1000).unwrap_or(u32::MAX);
        let unfinished = store.unfinished_import()?;
        if self.resume {
            bulk = bulk.resume();
            match unfinished {
                Some(unfinished) => dated_unix_s = unfinished.dated_unix_s,
                None => eprintln!("hdl: no interrupted import: everything is imported"),
            }
        } else if let Some(unfinished) = unfinished {
            eprintln!(
                "hdl: an import into this store was interrupted after {}; this one begins anew (--resume goes on with it, \
                 if it has the same input)",
                output::counted(unfinished.records, "record", "records")
            );
        }
        Ok((bulk.dated(dated_unix_s), dated_unix_s))
    }
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
                "read": read, "written": counts.written, "kept": counts.kept, "resumed": counts.resumed,
                "passed_over": passed_over,
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
        if counts.resumed > 0 {
            println!("{} before the interruption", output::counted(counts.resumed, "record", "records"));
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
    /// Prefixes homed by this import, folded and without 0.NA/.
    homed: HashSet<Vec<u8>>,
    read: u64,
    passed_over: u64,
    /// Number of records of another server whose private values are not readable.
    withheld: u64,
    /// Number of handles and prefixes of another server that are not readable at all.
    unreadable: u64,
    report: Option<RefusalReport>,
}

/// The file with a line for each record that is skipped.
struct RefusalReport {
    path: PathBuf,
    out: BufWriter<File>,
}

impl RefusalReport {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file) })
    }

    fn add(&mut self, position: &InputPosition, handle: Option<&str>, reason: &str) -> anyhow::Result<()> {
        let line = serde_json::json!({
            "file": position.file, "line": position.line, "record": position.record, "handle": handle, "reason": reason,
        });
        writeln!(self.out, "{line}").with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn finish(self) -> anyhow::Result<()> {
        let Self { path, out } = self;
        let written = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        let written = written.and_then(|file| file.sync_all());
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

impl ImportState<'_> {
    /// Skips a record.
    fn pass_over(&mut self, position: &InputPosition, handle: Option<&str>, why: &str) -> anyhow::Result<()> {
        let shown = handle.map(|handle| format!("{handle}: ")).unwrap_or_default();
        let text = format!("{position}: {shown}{why}");
        ensure!(self.args.keep_going, "{text} (--keep-going skips it)");
        self.passed_over += 1;
        match &mut self.report {
            Some(report) => report.add(position, handle, why),
            None => {
                eprintln!("hdl: {text}");
                Ok(())
            }
        }
    }
}

impl RecordSink for ImportState<'_> {
    fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        position: &dyn Fn() -> InputPosition,
    ) -> anyhow::Result<()> {
        self.read += 1;
        if let Err(unfit) = check_record(handle, values.iter()) {
            return self.pass_over(&position(), Some(&Handle(handle).to_string()), &unfit.to_string());
        }
        if self.args.home {
            self.homed(Handle(handle).naming_authority());
        }
        Ok(self.bulk.add(handle, values)?)
    }

    fn refused(&mut self, position: &InputPosition, handle: Option<&str>, why: &str) -> anyhow::Result<()> {
        self.read += 1;
        self.pass_over(position, handle, why)
    }

    fn homed(&mut self, prefix: &[u8]) {
        let prefix = Handle(prefix).homed_prefix();
        if self.homed.insert(fold::folded(prefix)) {
            self.bulk.home(prefix);
        }
    }

    /// In an import, a list has prefixes to home.
    fn name(&mut self, name: &str) -> anyhow::Result<()> {
        prefix_name(name)?;
        self.homed(name.as_bytes());
        Ok(())
    }
}

impl RemoteSink for ImportState<'_> {
    fn withheld(&mut self, handle: &[u8], count: usize, why: &str) {
        self.withheld += 1;
        eprintln!("hdl: {}: imported only the public values ({count}): {why}", Handle(handle));
    }

    fn unreadable(&mut self, name: &[u8], why: &str) {
        self.unreadable += 1;
        eprintln!("hdl: {}: not imported: {why}", Handle(name));
    }
}

/// Why an import that read nothing fails. Otherwise it would look successful.
const fn nothing_read(form: Option<InputForm>) -> &'static str {
    match form {
        Some(InputForm::Sql) => {
            "no rows of the tables `handles` and `nas` were found: expected a dump of mysqldump or pg_dump, lines of JSON, \
             a JSON export, or a list of prefixes (select the format with --from)"
        }
        _ => "nothing to import: the input has no records and no prefixes",
    }
}
