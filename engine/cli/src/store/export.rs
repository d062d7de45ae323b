//! `hdl export`: writes all records of a store or a published set as lines of JSON, which `hdl
//! import` reads.

use crate::snapshot::OpenedSource;
use crate::{ExitOutcome, output, progress};
use anyhow::{Context as _, bail, ensure};
use handle_proto::json::{RecordLine, record_to_json};
use handle_proto::{Handle, Value};
use handle_store::{Store, StoreConfig};
use indicatif::ProgressBar;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Export all records of a store or of a published set as lines of JSON.
///
/// The homed prefixes come first, then the records with all their values. These include values that
/// are not public, so only the owner may read the file. A store cannot be read while handle-admin
/// has it open; its published set can, and is at most moments older.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl export store.redb backup.jsonl               while handle-admin is stopped
  hdl export /var/lib/handled/snapshot backup.jsonl    at any time
  hdl export store.redb - | zstd > backup.jsonl.zst
  hdl export store.redb export.json --format reference    then, with a reference server stopped:
      hdl-java net.handle.apps.tools.LoadHandlesIntoStorageFromJson -f export.json -h SERVER_DIRECTORY

A record that JSON cannot represent, as with a name that is not UTF-8, is an error; no file is written then.")]
pub(crate) struct Args {
    /// A store, as a file or the URL of a database, or the directory of a published set.
    source: PathBuf,
    /// New file to write; `-` is standard output.
    file: PathBuf,
    /// The format of the file.
    #[arg(long, value_enum, default_value_t)]
    format: ExportFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// Lines of JSON.
    #[default]
    Lines,
    /// The JSON export of a reference server, which its programs can load into its storage.
    Reference,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let is_database = StoreConfig::at(&args.source).is_in_database();
    ensure!(is_database || args.source.exists(), "{} does not exist", args.source.display());
    if args.file == Path::new("-") {
        let mut out = ExportWriter::new(std::io::stdout().lock(), args.format);
        records(&args.source, &mut out)?;
        out.end()?.flush()?;
        return Ok(ExitOutcome::Good);
    }
    ensure!(!args.file.exists(), "{} already exists: choose another file", args.file.display());
    let directory =
        args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only its owner may read it from the start, and it has a temporary name until it is complete.
    let file = NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let mut out = ExportWriter::new(BufWriter::with_capacity(64 << 10, file.reopen()?), args.format);
    records(&args.source, &mut out)?;
    let count = out.count;
    finish(out.end()?)?;
    file.persist_noclobber(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    File::open(directory)?.sync_all()?;
    eprintln!("wrote {} to {}", output::counted(count, "record", "records"), args.file.display());
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

/// The records of a set; the newest layer with a record counts.
fn published(opened: &OpenedSource, out: &mut ExportWriter<impl Write>) -> anyhow::Result<()> {
    let bar = progress::bar("records", None);
    opened.each_record(|record| {
        let values = record.values_in_order().collect::<Result<Vec<_>, _>>()?;
        out.record(record.key(), values, &bar)
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// Writes homed prefixes, then records, and reads each record back as a check.
struct ExportWriter<W> {
    out: W,
    format: ExportFormat,
    homed: Vec<String>,
    /// Number of records so far.
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
        // An import sets the timestamp of values without one, and JSON leaves out a timestamp of 0,
        // as the reference server does.
        for member in json["values"].as_array_mut().into_iter().flatten() {
            if self.format == ExportFormat::Lines && member.get("timestamp").is_none() {
                member["timestamp"] = "1970-01-01T00:00:00Z".into();
            }
        }
        let line = output::json_line(&json);
        self.encoded.clear();
        self.again.clear();
        values.into_iter().for_each(|value| value.encode(&mut self.encoded));
        // An incomplete backup would be noticed only when it is needed.
        match RecordLine::parse(&line, &mut self.again) {
            Ok(record) if record.handle.as_bytes() == handle && self.again == self.encoded => {}
            _ => bail!("{} cannot be represented as JSON", Handle(handle)),
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

    /// Writes the start of the file in the format of the reference server.
    fn begin(&mut self) -> anyhow::Result<()> {
        Ok(write!(self.out, "{{\"homedPrefixes\":{},\n\"handleRecords\":{{\n", json!(self.homed))?)
    }

    /// Writes the end of the file, and returns the output.
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
