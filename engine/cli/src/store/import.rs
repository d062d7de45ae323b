//! `hdl import`: records from whatever has them, straight into a store.

use super::remote::{self, RemoteArgs};
use crate::input::{Entry, Inputs};
use crate::{Outcome, output, progress};
use anyhow::{Context as _, bail, ensure};
use handle_admin::store::{Bulk, Store, StoreConfig, check_record, key};
use handle_formats::dump::{self, Dump};
use handle_formats::export::{self, Export};
use handle_proto::json::RecordLine;
use handle_proto::wire::list::Values;
use handle_proto::{Handle, ValueBuf};
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Take records into a store.
///
/// Records go straight into the file, sorted first, without the way over the network: stop handle-admin before.
/// Nothing is written until everything has been read and found good.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl import store.redb records.jsonl backup.jsonl
  hdl import store.redb export.json --create    the JSON export of a reference server
  hdl import store.redb handles.sql --home      its tables, from mysqldump or pg_dump
  hdl import store.redb --server 192.0.2.1 --prefix 10.1045 \\
      --auth 300:10.1045/ADMIN --key admin-private.bin

Lines are {\"handle\": ..., \"values\": [...]}, as the handle REST API shows records, or
{\"homed\": \"0.NA/10.1045\"}.")]
pub(crate) struct Args {
    /// The file of the store.
    store: PathBuf,
    /// Files to read; `-` is standard input. All of one form.
    #[arg(value_name = "FILE", required_unless_present = "server", conflicts_with = "server")]
    files: Vec<PathBuf>,
    /// The form of the files. Found out from the first of them unless given.
    #[arg(long, value_enum)]
    from: Option<From>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Make the store if it is not there.
    #[arg(long)]
    create: bool,
    /// Local names are told apart by case in the store that is made.
    #[arg(long, requires = "create")]
    case_sensitive: bool,
    /// Home the prefixes of all records.
    #[arg(long)]
    home: bool,
    /// Keep records that are there instead of replacing them.
    #[arg(long)]
    keep_existing: bool,
    /// Pass over records that break a bound instead of stopping.
    #[arg(long)]
    keep_going: bool,
    /// Memory for sorting, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16384))]
    memory: u32,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

/// What the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum From {
    /// Lines of JSON, or an array of records.
    Lines,
    /// The JSON export of a reference server.
    Export,
    /// The SQL tables of a reference server.
    Sql,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let started = Instant::now();
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
    let mut taken = Taken { bulk, args, folds, homed: HashSet::new(), read: 0, passed_over: 0 };
    match args.files.first() {
        None => remote::each(&args.remote, &mut taken)?,
        Some(first) => match args.from.map_or_else(|| recognise(first), Ok)? {
            From::Lines => lines(args, &mut taken)?,
            From::Export => args.files.iter().try_for_each(|path| json_export(path, &mut taken))?,
            From::Sql => sql(args, &mut taken)?,
        },
    }
    let Taken { bulk, read, passed_over, .. } = taken;
    let writing = progress::bar("writing", Some(read));
    let counts = bulk.finish(|counts| writing.set_position(counts.written + counts.kept))?;
    writing.finish_and_clear();
    let took = started.elapsed();
    if args.json {
        let json = serde_json::json!({
            "read": read, "written": counts.written, "kept": counts.kept, "passed_over": passed_over,
            "seconds": took.as_secs_f64(),
        });
        println!("{json}");
    } else {
        println!(
            "{} records read, {} written, {} kept, {} passed over, in {:.1} s ({}/s)",
            output::count(read),
            output::count(counts.written),
            output::count(counts.kept),
            output::count(passed_over),
            took.as_secs_f64(),
            output::rate(read, took),
        );
    }
    Ok(if passed_over == 0 { Outcome::Good } else { Outcome::Failed })
}

/// What has been taken in so far.
pub(super) struct Taken<'a> {
    bulk: Bulk<'a>,
    args: &'a Args,
    /// Whether the store folds local names.
    folds: bool,
    /// Prefixes that have been homed for the sake of a record.
    homed: HashSet<Vec<u8>>,
    read: u64,
    passed_over: u64,
}

impl Taken<'_> {
    /// Takes a record in; `place` says where it came from.
    pub(super) fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        place: impl Fn() -> String,
    ) -> anyhow::Result<()> {
        self.read += 1;
        if let Err(unfit) = check_record(handle, values.iter()) {
            let text = format!("{}: {}: {unfit}", place(), Handle(handle));
            ensure!(self.args.keep_going, "{text} (--keep-going passes over it)");
            eprintln!("hdl: {text}");
            self.passed_over += 1;
            return Ok(());
        }
        if self.args.home {
            let prefix = Handle(handle).naming_authority();
            if !self.homed.contains(prefix) {
                self.bulk.home(prefix);
                self.homed.insert(prefix.to_vec());
            }
        }
        Ok(self.bulk.add(handle, values)?)
    }

    pub(super) fn homed(&mut self, prefix: &[u8]) {
        self.bulk.home(prefix);
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

/// The form of a file, from its beginning.
fn recognise(path: &Path) -> anyhow::Result<From> {
    if path == Path::new("-") {
        return Ok(From::Lines);
    }
    let mut begin = Vec::new();
    open(path)?
        .take(4096)
        .read_to_end(&mut begin)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(form_of(&begin))
}

fn form_of(begin: &[u8]) -> From {
    let begin = begin.trim_ascii_start();
    let Some(object) = begin.strip_prefix(b"{") else {
        return if begin.is_empty() || begin.starts_with(b"[") { From::Lines } else { From::Sql };
    };
    let is_export = ["\"homedPrefixes\"", "\"handleRecords\""]
        .iter()
        .any(|name| object.trim_ascii_start().starts_with(name.as_bytes()));
    if is_export { From::Export } else { From::Lines }
}

fn lines(args: &Args, taken: &mut Taken<'_>) -> anyhow::Result<()> {
    let inputs = Inputs::new(&args.files);
    let reading = progress::bar("reading", inputs.len());
    inputs.each(&reading, |origin, entry| match entry {
        Entry::Record(handle, values) => taken.record(handle.as_bytes(), values, || inputs.place(origin)),
        Entry::Homed(prefix) => {
            taken.homed(prefix.as_bytes());
            Ok(())
        }
        Entry::Deleted(handle) => {
            bail!("{}: {handle} is to be deleted, but an import takes records in only", inputs.place(origin))
        }
    })?;
    reading.finish_and_clear();
    Ok(())
}

fn json_export(path: &Path, taken: &mut Taken<'_>) -> anyhow::Result<()> {
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
                let record = RecordLine::parse(text, &mut encoded);
                let record = record.with_context(|| format!("{shown}: record {count}"))?;
                let values = Values::from_encoded(record.values_count, &encoded)?;
                taken.record(record.handle.as_bytes(), values, || format!("{shown}: record {count}"))?;
            }
        }
    }
    Ok(())
}

/// All values of a record have to stand together: what came later would replace what came before.
fn sql(args: &Args, taken: &mut Taken<'_>) -> anyhow::Result<()> {
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
                "{shown}:{line}: values of {} stand apart from each other: sort the rows by handle (mysqldump \
                 --order-by-primary; in PostgreSQL \\copy (SELECT * FROM handles ORDER BY handle, idx))",
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
            ("{\"handle\":\"10/a\",\"values\":[]}\n", From::Lines),
            ("{\"homed\":\"0.NA/10\"}\n", From::Lines),
            ("[{\"handle\"", From::Lines),
            ("", From::Lines),
            (" {\n \"homedPrefixes\": []", From::Export),
            ("{\"handleRecords\":{", From::Export),
            ("-- MySQL dump", From::Sql),
            ("--\n-- PostgreSQL database dump", From::Sql),
            ("INSERT INTO handles", From::Sql),
        ] {
            assert_eq!(form_of(begin.as_bytes()), form, "{begin}");
        }
    }
}
