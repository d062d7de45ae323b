//! `hdl export`: all records of a store, or of a published set, as lines of JSON that `hdl import` takes in again.

use crate::snapshot::OpenedSource;
use crate::{ExitOutcome, output, progress};
use anyhow::{Context as _, bail, ensure};
use handle_admin::store::{Store, StoreConfig};
use handle_proto::json::{RecordLine, record_to_json};
use handle_proto::{Handle, Value};
use handle_snapshot::Layer;
use handle_snapshot::hash_key;
use indicatif::ProgressBar;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Write all records of a store, or of a published set, as lines of JSON.
///
/// The homed prefixes come first, then the records with all their values: also those that are not public, so the
/// file is for its owner alone. A store cannot be read while handle-admin has it open; the set that it publishes can,
/// and is at most some moments older.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl export store.redb backup.jsonl               with handle-admin stopped
  hdl export /var/lib/handled/snapshot backup.jsonl    at any time
  hdl export store.redb - | zstd > backup.jsonl.zst
  hdl export store.redb export.json --format reference    then, with a reference server stopped:
      hdl-java net.handle.apps.tools.LoadHandlesIntoStorageFromJson -f export.json -h SERVER_DIRECTORY

What JSON has no form for, as names that are not UTF-8, is an error; nothing is left behind then.")]
pub(crate) struct Args {
    /// The file of a store, or the directory of a published set.
    source: PathBuf,
    /// New file to write; `-` is standard output.
    file: PathBuf,
    /// The form of the file.
    #[arg(long, value_enum, default_value_t)]
    format: ExportFormat,
}

/// How records are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// Lines of JSON.
    #[default]
    Lines,
    /// The JSON export of a reference server, which its programs load into its storage: to go back there.
    Reference,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    ensure!(args.source.exists(), "there is no {}", args.source.display());
    if args.file == Path::new("-") {
        let mut out = ExportWriter::new(std::io::stdout().lock(), args.format);
        records(&args.source, &mut out)?;
        out.end()?.flush()?;
        return Ok(ExitOutcome::Good);
    }
    ensure!(!args.file.exists(), "{} is there already; it stays as it is", args.file.display());
    let directory =
        args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Its owner's alone from the beginning, and under another name until it is whole.
    let file = NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let mut out = ExportWriter::new(BufWriter::with_capacity(1 << 20, file.reopen()?), args.format);
    records(&args.source, &mut out)?;
    let count = out.count;
    finish(out.end()?)?;
    file.persist_noclobber(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    File::open(directory)?.sync_all()?;
    eprintln!("{} records in {}", output::count(count), args.file.display());
    Ok(ExitOutcome::Good)
}

fn finish(out: BufWriter<File>) -> anyhow::Result<()> {
    Ok(out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?)
}

fn records(source: &Path, out: &mut ExportWriter<impl Write>) -> anyhow::Result<()> {
    if source.is_dir() {
        let opened = OpenedSource::open(source)?;
        for prefix in opened.records()?.homed_table().into_iter().flatten() {
            out.homed(prefix)?;
        }
        return published(&opened, out);
    }
    let store = Store::open_to_read(&StoreConfig::at(source))?;
    let snapshot = store.snapshot()?;
    for prefix in snapshot.homed()? {
        out.homed(&prefix)?;
    }
    let bar = progress::bar("records", Some(snapshot.records_count()?));
    for stored in snapshot.records()? {
        let stored = stored?;
        let record = stored.record().with_context(|| Handle(stored.handle()).to_string())?;
        out.record(stored.handle(), record.values, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// The records of a set, each as the newest layer has it.
fn published(opened: &OpenedSource, out: &mut ExportWriter<impl Write>) -> anyhow::Result<()> {
    let records = opened.records()?;
    let bar = progress::bar("records", None);
    for (at, layer) in opened.layers().iter().enumerate() {
        let newer = &opened.layers()[..at];
        for record in layer.records() {
            let record = record?;
            let (key, hash) = (record.key(), hash_key(records.seed(), record.key()));
            let is_covered = |layer: &Layer<_>| layer.find(hash, key).map(|found| found.is_some());
            let mut covered = newer.iter().map(is_covered);
            if record.is_tombstone() || covered.try_fold(false, |any, is| is.map(|is| any || is))? {
                continue;
            }
            let values = record.values_in_order().collect::<Result<Vec<_>, _>>()?;
            out.record(key, values, &bar)?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Writes homed prefixes and then records, each of which has been read back before.
struct ExportWriter<W> {
    out: W,
    format: ExportFormat,
    homed: Vec<String>,
    /// Records so far.
    count: u64,
    encoded: Vec<u8>,
    again: Vec<u8>,
}

impl<W: Write> ExportWriter<W> {
    const fn new(out: W, format: ExportFormat) -> Self {
        Self { out, format, homed: Vec::new(), count: 0, encoded: Vec::new(), again: Vec::new() }
    }

    fn homed(&mut self, prefix: &[u8]) -> anyhow::Result<()> {
        let name = std::str::from_utf8(prefix).context("a homed prefix is not UTF-8")?;
        match self.format {
            ExportFormat::Lines => {
                writeln!(self.out, "{}", output::json_line(&json!({ "homed": format!("0.NA/{name}") })))?;
            }
            ExportFormat::Reference => self.homed.push(format!("0.NA/{name}")),
        }
        Ok(())
    }

    fn record<'v>(
        &mut self,
        handle: &[u8],
        values: impl IntoIterator<Item = Value<'v>> + Clone,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let mut json = record_to_json(handle, values.clone());
        // An import gives its own time to values without a time stamp, and JSON leaves out one of 0, as the reference does.
        for member in json["values"].as_array_mut().into_iter().flatten() {
            if self.format == ExportFormat::Lines && member.get("timestamp").is_none() {
                member["timestamp"] = "1970-01-01T00:00:00Z".into();
            }
        }
        let line = output::json_line(&json);
        self.encoded.clear();
        self.again.clear();
        values.into_iter().for_each(|value| value.encode(&mut self.encoded));
        // A backup that leaves something out would be found out when it is needed.
        match RecordLine::parse(&line, &mut self.again) {
            Ok(record) if record.handle.as_bytes() == handle && self.again == self.encoded => {}
            _ => bail!("{} has something that JSON has no form for", Handle(handle)),
        }
        if self.format == ExportFormat::Reference {
            match self.count {
                0 => self.begin()?,
                _ => self.out.write_all(b",\n")?,
            }
            write!(self.out, "{}:", output::json_line(&json!(Handle(handle).to_string())))?;
        }
        self.out.write_all(line.as_bytes())?;
        if self.format == ExportFormat::Lines {
            self.out.write_all(b"\n")?;
        }
        self.count += 1;
        bar.inc(1);
        Ok(())
    }

    /// What stands in front of the records in the form of the reference.
    fn begin(&mut self) -> anyhow::Result<()> {
        Ok(write!(self.out, "{{\"homedPrefixes\":{},\n\"handleRecords\":{{\n", json!(self.homed))?)
    }

    /// What stands behind the records; gives the output back.
    fn end(mut self) -> anyhow::Result<W> {
        if self.format == ExportFormat::Reference {
            if self.count == 0 {
                self.begin()?;
            }
            self.out.write_all(b"\n}}\n")?;
        }
        Ok(self.out)
    }
}
