//! `hdl export`: writes all records of a store or a published set as lines of JSON, which `hdl
//! import` reads.

use crate::snapshot::OpenedSource;
use crate::{ExitOutcome, output, progress};
use anyhow::{Context as _, ensure};
use handle_formats::exact;
use handle_proto::json::{Json, RecordLine, data_to_json, record_to_json, value_to_json};
use handle_proto::name::PREFIX_RECORDS;
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

Lines carry every record. One that the JSON of the REST API cannot represent, as with a type that is
not UTF-8, has its bytes in a member `exact`, which hdl import reads. The form of a reference server
cannot carry such records: they are written to FILE.left-out.jsonl as lines.

Exit codes: 0 everything is in the file, 1 failed, or some records are left out.")]
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
        let mut out = ExportWriter::new(std::io::stdout().lock(), None, args.format);
        records(&args.source, &mut out)?;
        let left_out = out.left_out;
        out.end()?.flush()?;
        return Ok(report_left_out(left_out, None));
    }
    ensure!(!args.file.exists(), "{} already exists: choose another file", args.file.display());
    let directory =
        args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only its owner may read it from the start, and it has a temporary name until it is complete.
    let file = NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let rest = LeftOutFile::beside(&args.file, directory)?;
    let mut out =
        ExportWriter::new(BufWriter::with_capacity(64 << 10, file.reopen()?), Some(rest), args.format);
    records(&args.source, &mut out)?;
    let (count, left_out, rest) = (out.count, out.left_out, out.rest.take());
    finish(out.end()?)?;
    // First, so that an export is never without the list of what it lacks.
    let rest = rest.filter(|_| left_out > 0).map(LeftOutFile::finish).transpose()?;
    file.persist_noclobber(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    File::open(directory)?.sync_all()?;
    eprintln!("wrote {} to {}", output::counted(count, "record", "records"), args.file.display());
    Ok(report_left_out(left_out, rest.as_deref()))
}

/// Says how many records the form cannot carry, and where they are.
fn report_left_out(count: u64, file: Option<&Path>) -> ExitOutcome {
    if count == 0 {
        return ExitOutcome::Good;
    }
    let shown = match file {
        Some(file) => format!("; they are in {}, as lines that hdl import reads", file.display()),
        None => "; --format lines carries them".to_owned(),
    };
    eprintln!(
        "hdl: {} that the form of a reference server cannot carry {} left out{shown}",
        output::counted(count, "record", "records"),
        if count == 1 { "was" } else { "were" }
    );
    ExitOutcome::Failed
}

/// The file with the records that the form cannot carry. It has a temporary name until it is
/// complete, and is not kept if there are none.
struct LeftOutFile {
    path: PathBuf,
    file: NamedTempFile,
    out: BufWriter<File>,
}

impl LeftOutFile {
    fn beside(export: &Path, directory: &Path) -> anyhow::Result<Self> {
        let mut path = export.to_owned().into_os_string();
        path.push(".left-out.jsonl");
        let path = PathBuf::from(path);
        ensure!(!path.exists(), "{} already exists: choose another file", path.display());
        let file = NamedTempFile::new_in(directory)
            .with_context(|| format!("cannot write to {}", directory.display()))?;
        let out = BufWriter::new(file.reopen()?);
        Ok(Self { path, file, out })
    }

    fn finish(self) -> anyhow::Result<PathBuf> {
        finish(self.out)?;
        self.file
            .persist_noclobber(&self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.path)
    }
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

/// The JSON of a record, which reads back as the same bytes; `None` if there is none in the form of
/// the REST API. Data that their type does not represent are base64. With `dated`, each value has
/// its timestamp.
fn faithful_json(handle: &[u8], values: &[Value<'_>], dated: bool) -> Option<Json> {
    let json = |value: &Value<'_>, data: Json| {
        let mut json = value_to_json(value);
        json["data"] = data;
        // An import sets the timestamp of values without one, and JSON leaves out a timestamp of 0,
        // as the reference server does.
        if dated && json.get("timestamp").is_none() {
            json["timestamp"] = "1970-01-01T00:00:00Z".into();
        }
        json
    };
    let reads_back = |handle: &[u8], json: &Json, values: &[Value<'_>]| {
        let (mut encoded, mut again) = (Vec::new(), Vec::new());
        values.iter().for_each(|value| value.encode(&mut encoded));
        let line = output::json_line(json);
        let record = RecordLine::parse(&line, &mut again);
        // An incomplete backup would be noticed only when it is needed.
        record.is_ok_and(|record| record.handle.as_bytes() == handle) && again == encoded
    };
    let record = |values: Vec<Json>| {
        let mut record = record_to_json(handle, []);
        record["values"] = values.into();
        record
    };
    let plain = values.iter().map(|value| json(value, data_to_json(value.kind, value.data))).collect();
    let plain = record(plain);
    if reads_back(handle, &plain, values) {
        return Some(plain);
    }
    let faithful = |value: &Value<'_>| {
        let base64 = data_encoding::BASE64.encode(value.data);
        let forms = [data_to_json(value.kind, value.data), json!({ "format": "base64", "value": base64 })];
        let mut forms = forms.into_iter().map(|data| json(value, data));
        forms.find(|json| reads_back(b"", &json!({ "handle": "", "values": [json] }), &[*value]))
    };
    let faithful = record(values.iter().map(faithful).collect::<Option<_>>()?);
    reads_back(handle, &faithful, values).then_some(faithful)
}

/// A line of JSON that `hdl import` reads as this record, whatever bytes it has.
pub(crate) fn line_of(handle: &[u8], values: &[Value<'_>]) -> String {
    let json = faithful_json(handle, values, true);
    output::json_line(&json.unwrap_or_else(|| exact::record_to_json(handle, values.iter().copied())))
}

/// Writes homed prefixes, then records, each of which reads back as the same.
struct ExportWriter<W> {
    out: W,
    /// What the form cannot carry.
    rest: Option<LeftOutFile>,
    left_out: u64,
    format: ExportFormat,
    homed: Vec<String>,
    /// Number of records so far.
    count: u64,
}

impl<W: Write> ExportWriter<W> {
    const fn new(out: W, rest: Option<LeftOutFile>, format: ExportFormat) -> Self {
        Self { out, rest, left_out: 0, format, homed: Vec::new(), count: 0 }
    }

    fn homed(&mut self, prefix: &[u8]) -> anyhow::Result<()> {
        let whole = [PREFIX_RECORDS, prefix].concat();
        match (self.format, String::from_utf8(whole)) {
            (ExportFormat::Lines, Ok(name)) => {
                writeln!(self.out, "{}", output::json_line(&json!({ "homed": name })))?;
            }
            (ExportFormat::Lines, Err(name)) => {
                writeln!(self.out, "{}", exact::homed_to_json(name.as_bytes()))?;
            }
            (ExportFormat::Reference, Ok(name)) => self.homed.push(name),
            (ExportFormat::Reference, Err(name)) => {
                self.leave_out(name.as_bytes(), &exact::homed_to_json(name.as_bytes()).to_string())?;
            }
        }
        Ok(())
    }

    /// Takes note of what the form cannot carry.
    fn leave_out(&mut self, name: &[u8], line: &str) -> anyhow::Result<()> {
        self.left_out += 1;
        match &mut self.rest {
            Some(rest) => {
                let path = &rest.path;
                writeln!(rest.out, "{line}").with_context(|| format!("cannot write {}", path.display()))
            }
            None => {
                eprintln!("hdl: {}: left out", Handle(name));
                Ok(())
            }
        }
    }

    fn record<'v>(
        &mut self,
        handle: &[u8],
        values: impl IntoIterator<Item = Value<'v>>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let values: Vec<Value<'_>> = values.into_iter().collect();
        bar.inc(1);
        match self.format {
            ExportFormat::Lines => writeln!(self.out, "{}", line_of(handle, &values))?,
            ExportFormat::Reference => {
                let Some(json) = faithful_json(handle, &values, false) else {
                    return self.leave_out(handle, &line_of(handle, &values));
                };
                match self.count {
                    0 => self.begin()?,
                    _ => self.out.write_all(b",\n")?,
                }
                let name = output::json_line(&json!(Handle(handle).to_string()));
                write!(self.out, "{name}:{}", output::json_line(&json))?;
            }
        }
        self.count += 1;
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
