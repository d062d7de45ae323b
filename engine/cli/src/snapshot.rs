//! `hdl snapshot`: builds layer files, publishes sets, and inspects both.

use crate::homed_prefixes::{self, HomedCollector};
use crate::input::{InputEntry, RecordInputs, SortingSpace};
use crate::secret::PassphraseArgs;
use crate::share::ShareArgs;
use crate::store::export::line_of;
use crate::{ExitOutcome, output, progress, proof};
use anyhow::{Context as _, bail, ensure};
use handle_daemon::clock::now_unix_ms;
use handle_proto::{Handle, Value};
use handle_snapshot::builder::{BuildProgress, Builder};
use handle_snapshot::map::{LoadMode, MappedFile};
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::set::stager::{LayerPosition, NewLayer};
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::set::{PublishedSet, SetError, SetErrorKind, SetTree};
use handle_snapshot::writer::LayerOptions;
use handle_snapshot::{EncodedRecord, Layer, RecordSet, Trust, fold_key, format, hash_key, verify};
use serde_json::json;
use std::fs::File;
use std::io::{IsTerminal as _, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Build, publish, verify and inspect snapshots.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Build a layer file from records.
    ///
    /// Records are JSON: one object per line, {"handle": ..., "values": [...]}, as in the handle
    /// REST API, or one array of such objects; or any other form that `hdl import` reads. `-` is
    /// standard input. Records may be in any order. A duplicate handle, or a record that could not
    /// be served, is an error, and nothing is written. Memory use is bounded for any number of
    /// records.
    #[command(after_help = "Examples:
  hdl snapshot build set.layer records-*.jsonl --homed 10.1045 --homed 10.1016
  hdl snapshot build two.layer records.jsonl --site siteinfo.json --server 2")]
    Build(BuildArgs),
    /// Publish records or a layer file as the set that handled serves from a directory.
    ///
    /// Publishing is atomic: readers see either the old or the new set, also after a power failure.
    /// A running handled loads the new set within milliseconds.
    #[command(after_help = "Examples:
  hdl snapshot publish ./set records.jsonl             replace the set with these records
  hdl snapshot publish ./set few.jsonl --allow-removal     also if most handles vanish
  hdl snapshot publish ./set --layer set.layer         replace the set with a layer file
  hdl snapshot publish ./set --delta changes.jsonl     add changes to the set

In a delta, {\"handle\": \"10.1045/x\", \"deleted\": true} removes a handle.")]
    Publish(PublishArgs),
    /// Merge the layers of a published set, so that lookups search fewer layers.
    #[command(after_help = "Examples:
  hdl snapshot merge ./set             merge into one layer
  hdl snapshot merge ./set --deltas    keep the base, which is faster")]
    Merge(MergeArgs),
    /// Verify every byte of a published set or of a layer file.
    #[command(after_help = "Examples:
  hdl snapshot verify ./set
  hdl snapshot verify set.layer

Exit codes: 0 intact, 1 damaged or missing.")]
    Verify(VerifyArgs),
    /// Show the contents of a published set or of a layer file.
    #[command(after_help = "Examples:
  hdl snapshot inspect ./set
  hdl snapshot inspect set.layer --handles 10")]
    Inspect(InspectArgs),
    /// Print one record, including values that are not public.
    #[command(after_help = "Example:
  hdl snapshot get ./set 10.1045/july95-arms --json

Exit codes: 0 found, 3 no such handle, 1 failed.")]
    Get(GetArgs),
}

#[derive(clap::Args, Debug)]
struct RecordArgs {
    /// Files with records; `-` is standard input.
    #[arg(value_name = "RECORDS")]
    inputs: Vec<PathBuf>,
    /// Homed prefix, as 10.1045; may be given more than once. Default: every prefix that occurs. A
    /// delta can only add prefixes to those of the set below it.
    #[arg(long, value_name = "PREFIX")]
    homed: Vec<String>,
    /// Distinguish the case of local names.
    #[arg(long)]
    case_sensitive: bool,
    /// Memory for sorting, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=16384))]
    memory: u64,
    #[command(flatten)]
    share: ShareArgs,
}

#[derive(clap::Args, Debug)]
struct BuildArgs {
    /// The layer file to write.
    #[arg(value_name = "LAYER")]
    out: PathBuf,
    #[command(flatten)]
    records: RecordArgs,
    /// Build a delta for the set published in this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "case_sensitive")]
    delta_for: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct PublishArgs {
    /// Directory of the set; created if it does not exist.
    dir: PathBuf,
    #[command(flatten)]
    records: RecordArgs,
    /// Publish this layer file instead of records.
    #[arg(long, value_name = "LAYER", conflicts_with_all = ["inputs", "homed", "case_sensitive", "memory", "site"])]
    layer: Option<PathBuf>,
    /// Add a delta to the published set instead of replacing it.
    #[arg(long, conflicts_with = "case_sensitive")]
    delta: bool,
    /// Publish even if more than 100 handles, and more than a tenth of all, are not in the new set.
    /// Without it, this is asked on a terminal, and is an error elsewhere.
    #[arg(long, conflicts_with = "delta")]
    allow_removal: bool,
    #[command(flatten)]
    signing: SigningArgs,
    /// Keep files of older sets for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    grace: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The key that signs the published set.
#[derive(clap::Args, Debug)]
pub(crate) struct SigningArgs {
    /// Private key file with which to sign the set. Without it, the set is not signed.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

impl SigningArgs {
    /// Locks the directory for publishing, with the key.
    pub(crate) fn open(&self, dir: &Path) -> anyhow::Result<SetPublisher> {
        let mut publisher = SetPublisher::open(dir)?;
        if let Some(key) = &self.key {
            let passphrase = self.passphrase.read()?;
            publisher.sign_with(proof::signer(key, passphrase.as_deref().map(Vec::as_slice))?);
        }
        Ok(publisher)
    }
}

#[derive(clap::Args, Debug)]
struct MergeArgs {
    /// Directory of the set.
    dir: PathBuf,
    /// Merge only the deltas, not the base.
    #[arg(long)]
    deltas: bool,
    #[command(flatten)]
    signing: SigningArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct VerifyArgs {
    /// Directory of a set, or a layer file.
    path: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct InspectArgs {
    /// Directory of a set, or a layer file.
    path: PathBuf,
    /// List up to N handles, in the order of the file.
    #[arg(long, value_name = "N", default_value_t = 0)]
    handles: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct GetArgs {
    /// Directory of a set, or a layer file.
    path: PathBuf,
    /// The handle.
    handle: String,
    /// Print JSON on one line, as `build` reads it.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Build(args) => build(args),
        Command::Publish(args) => publish(args),
        Command::Merge(args) => merge(args),
        Command::Verify(args) => {
            let done = verify_all(args);
            if let (true, Err(error)) = (args.json, &done) {
                output::error_as_json(&format!("{error:#}"));
            }
            done
        }
        Command::Inspect(args) => inspect(args),
        Command::Get(args) => get(args),
    }
}

/// Number of layers from which all deltas are merged into one.
const LAYERS_BEFORE_MERGE: usize = 8;

/// Builds one layer from the records into `out`.
fn build_layer<W: Write + Seek>(
    args: &RecordArgs,
    options: LayerOptions,
    mut homed: HomedCollector<'_>,
    temp_dir: &Path,
    out: W,
) -> anyhow::Result<(W, format::LayerHeader)> {
    ensure!(!args.inputs.is_empty(), "no input: name at least one file of records, or - for standard input");
    let (inputs, share) = (RecordInputs::new(&args.inputs, None), args.share.read()?);
    let reading = progress::bar("reading", inputs.len());
    let writing = progress::bar("writing", Some(0));
    let memory_len = usize::try_from(args.memory << 20).unwrap_or(usize::MAX);
    let mut builder = Builder::new(temp_dir, options).memory_len_max(memory_len).on_progress(|at| {
        if let BuildProgress::Written { records, records_all } = at {
            writing.set_length(records_all);
            writing.set_position(records);
        }
    });
    let sorting = SortingSpace { temp_dir, memory_len, folds: options.folds };
    inputs.each(&reading, sorting, |origin, entry| {
        let added = match entry {
            // Every server of the site homes the prefix of its record.
            InputEntry::Record(handle, _) | InputEntry::Deleted(handle) if !share.has(Handle(handle)) => {
                homed.see(handle);
                return Ok(());
            }
            InputEntry::Record(handle, values) => {
                homed.see(handle);
                builder.add(origin, &Handle(handle).looked_up(), values)
            }
            InputEntry::Homed(prefix) => {
                return homed.home_stored(prefix).with_context(|| inputs.position(origin).to_string());
            }
            InputEntry::Deleted(handle) if homed.is_delta() => {
                builder.delete(origin, &Handle(handle).looked_up())
            }
            InputEntry::Deleted(handle) => {
                let (position, handle) = (inputs.position(origin), Handle(handle));
                bail!("{position}: {handle}: deletions are allowed only in a delta (--delta)")
            }
            InputEntry::Name(name) => bail!("{}: {name}: a name without a record", inputs.position(origin)),
            // These inputs stop at such a line.
            InputEntry::Refused(..) => return Ok(()),
        };
        added.map_err(|error| inputs.explain(error))
    })?;
    reading.finish_and_clear();
    if let Some((count, first)) = homed.outside() {
        eprintln!(
            "hdl: warning: {} will not be served, because the prefix is not homed: {first}{}",
            output::counted(*count, "record", "records"),
            if *count == 1 { "" } else { " and others" },
        );
    }
    if let Some(table) = homed.table() {
        builder = builder.homed(table);
    }
    let built = builder.finish(out).map_err(|error| inputs.explain(error))?;
    writing.finish_and_clear();
    Ok(built)
}

fn build(args: &BuildArgs) -> anyhow::Result<ExitOutcome> {
    let below = args.delta_for.as_ref().map(|dir| PublishedSet::open(dir, LoadMode::Map)).transpose()?;
    let prefixes = &args.records.homed;
    let (options, homed) = match below.as_ref().map(PublishedSet::records) {
        Some(below) => {
            let (seed, folds) = (below.seed(), below.folds());
            let options = LayerOptions { seed, folds, created_unix_ms: now_unix_ms() };
            (options, HomedCollector::delta(prefixes, below.homed_table())?)
        }
        None => (fresh_options(&args.records), HomedCollector::base(prefixes)?),
    };
    let started = std::time::Instant::now();
    let directory = match args.out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Written under a temporary name, so that a file with this name is always complete.
    let file = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let (file, header) = build_layer(&args.records, options, homed, directory, file)?;
    file.as_file().sync_all()?;
    file.persist(&args.out).with_context(|| format!("cannot write {}", args.out.display()))?;
    File::open(directory)?.sync_all()?;
    show_layer(&args.out, &header, Some(started.elapsed()), args.json);
    Ok(ExitOutcome::Good)
}

fn fresh_options(args: &RecordArgs) -> LayerOptions {
    LayerOptions { seed: rand::random(), folds: !args.case_sensitive, created_unix_ms: now_unix_ms() }
}

fn publish(args: &PublishArgs) -> anyhow::Result<ExitOutcome> {
    create_directory(&args.dir).with_context(|| format!("cannot create {}", args.dir.display()))?;
    let mut publisher = args.signing.open(&args.dir)?;
    if args.delta {
        merge_when_due(&mut publisher)?;
    }
    let started = std::time::Instant::now();
    let position = if args.delta { LayerPosition::Delta } else { LayerPosition::Base };
    let layer = if let Some(path) = &args.layer {
        let mut source = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let layer = Layer::open(MappedFile::open(path, LoadMode::Map)?)
            .with_context(|| format!("{} is not a layer file", path.display()))?;
        let header = *layer.header();
        if args.delta {
            homed_prefixes::check_delta(
                layer.homed(),
                publisher.records().and_then(|below| below.homed_table()),
            )
            .with_context(|| format!("cannot publish {} as a delta of the set", path.display()))?;
        }
        publisher.stager().stage(position, |mut file, _| {
            std::io::copy(&mut source, &mut file)?;
            Ok((file, header))
        })?
    } else {
        let options = match publisher.options(now_unix_ms()) {
            Some(options) if args.delta => options,
            None if args.delta => bail!("{}: no published set, which a delta needs", args.dir.display()),
            _ => fresh_options(&args.records),
        };
        stage_records(&publisher, args, options, position)?
    };
    if !args.delta && !args.allow_removal && publisher.manifest().is_some() {
        confirm_removals(&args.dir, &publisher, &layer)?;
    }
    publisher.publish(layer, now_unix_ms())?;
    let pruned = publisher.prune(SystemTime::now(), Duration::from_secs(args.grace))?;
    let manifest = publisher.manifest().context("a set was just published")?;
    show_published(&args.dir, manifest, started.elapsed(), pruned.files_count, args.json);
    Ok(ExitOutcome::Good)
}

/// Removals up to this number are published without a question, and so are those up to a tenth of
/// all handles: fewer are usual, and who names the wrong file removes more.
const REMOVALS_MAX: u64 = 100;

/// Asks whether to publish a set that lacks many of the handles that are published now.
///
/// # Errors
/// If the answer is no, or nobody can be asked.
fn confirm_removals(dir: &Path, publisher: &SetPublisher, new: &NewLayer) -> anyhow::Result<()> {
    let published = OpenedSource::Set(Box::new(PublishedSet::open(dir, LoadMode::Map)?));
    let layer = OpenedSource::open(&publisher.dir().join(&new.entry().file))?;
    let records = layer.records()?;
    let (mut all, mut gone, mut first) = (0_u64, 0_u64, None);
    published.each_record(|record| {
        all += 1;
        let mut key = record.key().to_vec();
        fold_key(&mut key, records.folds());
        if records.find(hash_key(records.seed(), &key), &key)?.is_none() {
            gone += 1;
            first.get_or_insert_with(|| Handle(record.key()).to_string());
        }
        Ok(())
    })?;
    let Some(first) = first.filter(|_| gone > REMOVALS_MAX && gone > all / 10) else { return Ok(()) };
    let text = format!(
        "{} of the {} that are published in {} are not in the new set, as {}",
        output::count(gone),
        output::counted(all, "handle", "handles"),
        dir.display(),
        output::printable(&first)
    );
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!(
            "{text}: to publish it all the same, add --allow-removal; --delta adds records to the published ones"
        );
    }
    eprint!("hdl: {text}. Publish it? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "not published");
    Ok(())
}

/// Builds in the directory of the set. Errors in the records name their positions.
fn stage_records(
    publisher: &SetPublisher,
    args: &PublishArgs,
    options: LayerOptions,
    position: LayerPosition,
) -> anyhow::Result<NewLayer> {
    let prefixes = &args.records.homed;
    let homed = match publisher.records() {
        Some(below) if args.delta => HomedCollector::delta(prefixes, below.homed_table())?,
        _ => HomedCollector::base(prefixes)?,
    };
    let mut problem = None;
    let staged = publisher.stager().stage(position, |file, temp_dir: &Path| {
        build_layer(&args.records, options, homed, temp_dir, file).map_err(|error| {
            problem = Some(error);
            std::io::Error::other("invalid records").into()
        })
    });
    match (staged, problem) {
        (_, Some(problem)) => Err(problem),
        (staged, None) => Ok(staged?),
    }
}

/// Merges the deltas once there are several, to limit their number.
fn merge_when_due(publisher: &mut SetPublisher) -> anyhow::Result<()> {
    let Some(manifest) = publisher.manifest().cloned() else { return Ok(()) };
    if manifest.layers.len() < LAYERS_BEFORE_MERGE {
        return Ok(());
    }
    merge_newest(publisher, &manifest, manifest.layers.len() - 1)
}

fn merge_newest(publisher: &mut SetPublisher, manifest: &Manifest, count: usize) -> anyhow::Result<()> {
    let bar = progress::bar("merging", None);
    let stager = publisher.stager();
    let layer = stager.stage_merge(manifest, 0..count, now_unix_ms(), |merging| {
        bar.set_position(merging.records_count());
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    publisher.publish(layer, now_unix_ms())?;
    Ok(())
}

fn merge(args: &MergeArgs) -> anyhow::Result<ExitOutcome> {
    let mut publisher = args.signing.open(&args.dir)?;
    let manifest = publisher
        .manifest()
        .cloned()
        .ok_or_else(|| SetError { path: args.dir.clone(), kind: SetErrorKind::NotPublished })?;
    let count = manifest.layers.len() - usize::from(args.deltas);
    let started = std::time::Instant::now();
    if count > 1 {
        merge_newest(&mut publisher, &manifest, count)?;
    }
    let manifest = publisher.manifest().context("a set was just published")?;
    show_published(&args.dir, manifest, started.elapsed(), 0, args.json);
    Ok(ExitOutcome::Good)
}

fn show_published(dir: &Path, manifest: &Manifest, took: Duration, pruned_count: usize, as_json: bool) {
    if as_json {
        let json = json!({
            "directory": dir, "generation": manifest.generation, "handles": manifest.handles_count,
            "layers": manifest.layers.iter().map(|layer| json!({ "file": layer.file, "bytes": layer.len })).collect::<Vec<_>>(),
            "seconds": took.as_secs_f64(), "files_removed": pruned_count,
        });
        println!("{json}");
        return;
    }
    println!(
        "published generation {} in {}: {} in {}, {}, {:.2} s",
        manifest.generation,
        dir.display(),
        output::counted(manifest.handles_count, "handle", "handles"),
        output::counted(manifest.layers.len() as u64, "layer", "layers"),
        output::bytes(manifest.layers.iter().map(|layer| layer.len).sum()),
        took.as_secs_f64(),
    );
}

fn layer_json(path: &Path, header: &format::LayerHeader) -> serde_json::Value {
    json!({
        "file": path, "bytes": header.file_len, "handles": header.handles_count,
        "tombstones": header.tombstones_count, "created_unix_ms": header.created_unix_ms,
        "folds": header.flags & format::FLAG_FOLDS != 0,
        "homed_prefixes": (header.flags & format::FLAG_HOMED != 0).then_some(header.homed_count),
        "records_bytes": header.records_len, "index_bytes": header.index_len,
    })
}

fn show_layer(path: &Path, header: &format::LayerHeader, took: Option<Duration>, as_json: bool) {
    if as_json {
        let mut json = layer_json(path, header);
        json["seconds"] = took.map(|took| took.as_secs_f64()).into();
        println!("{json}");
        return;
    }
    let handles = header.handles_count + header.tombstones_count;
    println!(
        "{}: {}, {}, {}; index {:.1} bytes per handle; {}; built {}{}",
        path.display(),
        output::counted(header.handles_count, "handle", "handles"),
        output::counted(header.tombstones_count, "deletion", "deletions"),
        output::bytes(header.file_len),
        if handles == 0 { 0.0 } else { header.index_len as f64 / handles as f64 },
        match header.flags & format::FLAG_HOMED != 0 {
            true => output::counted(header.homed_count, "homed prefix", "homed prefixes"),
            false => "homed prefixes of the layers below".to_owned(),
        },
        output::unix_time(i64::try_from(header.created_unix_ms / 1000).unwrap_or(0)),
        match took {
            Some(took) if took.as_secs_f64() > 0.0 =>
                format!(" in {:.2} s ({} records/s)", took.as_secs_f64(), output::rate(handles, took)),
            _ => String::new(),
        },
    );
}

/// A published set, or a single layer.
pub(crate) enum OpenedSource {
    Set(Box<PublishedSet>),
    Layer(Box<Layer<MappedFile>>),
}

impl OpenedSource {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Ok(Self::Set(Box::new(PublishedSet::open(path, LoadMode::Map)?)));
        }
        let bytes = MappedFile::open(path, LoadMode::Map)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let layer =
            Layer::open(bytes).with_context(|| format!("{} is not an intact layer", path.display()))?;
        Ok(Self::Layer(Box::new(layer)))
    }

    /// The same, with each record that is found compared with its checksum.
    pub(crate) fn checked(self) -> Self {
        match self {
            Self::Set(set) => Self::Set(Box::new(set.with_trust(|_| Trust::Checked))),
            Self::Layer(layer) => Self::Layer(Box::new(layer.with_trust(Trust::Checked))),
        }
    }

    pub(crate) fn layers(&self) -> &[Layer<MappedFile>] {
        match self {
            Self::Set(set) => set.layers(),
            Self::Layer(layer) => std::slice::from_ref(layer),
        }
    }

    pub(crate) fn records(&self) -> anyhow::Result<RecordSet<'_, MappedFile>> {
        Ok(RecordSet::new(self.layers())?)
    }

    /// Passes each record that a lookup finds to `take`: of several layers with a record, the
    /// newest counts.
    pub(crate) fn each_record(
        &self,
        mut take: impl FnMut(EncodedRecord<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let seed = self.records()?.seed();
        for (at, layer) in self.layers().iter().enumerate() {
            let newer = &self.layers()[..at];
            for record in layer.records() {
                let record = record?;
                let (key, hash) = (record.key(), hash_key(seed, record.key()));
                let is_covered = |layer: &Layer<_>| layer.find(hash, key).map(|found| found.is_some());
                let mut covered = newer.iter().map(is_covered);
                if !record.is_tombstone() && !covered.try_fold(false, |any, is| is.map(|is| any || is))? {
                    take(record)?;
                }
            }
        }
        Ok(())
    }

    /// The files, newest first.
    fn files(&self, path: &Path) -> Vec<PathBuf> {
        match self {
            Self::Set(set) => set.manifest().layers.iter().map(|layer| path.join(&layer.file)).collect(),
            Self::Layer(_) => vec![path.to_owned()],
        }
    }
}

fn verify_all(args: &VerifyArgs) -> anyhow::Result<ExitOutcome> {
    let started = std::time::Instant::now();
    let opened = OpenedSource::open(&args.path)?;
    let mut reports = Vec::new();
    for (file, layer) in opened.files(&args.path).iter().zip(opened.layers()) {
        let spinner = progress::bar("verifying", None);
        spinner.enable_steady_tick(Duration::from_millis(100));
        let report = verify::layer(layer).with_context(|| format!("{} is damaged", file.display()))?;
        spinner.finish_and_clear();
        reports.push((file.clone(), report));
    }
    let root = match &opened {
        OpenedSource::Set(set) => Some(SetTree::of(set)?.root()),
        OpenedSource::Layer(_) => None,
    };
    if args.json {
        let layers: Vec<_> = reports
            .iter()
            .map(|(file, report)| {
                json!({ "file": file, "handles": report.handles_count, "tombstones": report.tombstones_count,
                    "public_values": report.public_count, "private_values": report.private_count })
            })
            .collect();
        println!(
            "{}",
            json!({ "whole": true, "layers": layers, "root": root.map(|root| root.to_string()), "seconds": started.elapsed().as_secs_f64() })
        );
        return Ok(ExitOutcome::Good);
    }
    for (file, report) in &reports {
        println!(
            "{}: intact: {}, {}, {}, {}",
            file.display(),
            output::counted(report.handles_count, "handle", "handles"),
            output::counted(report.tombstones_count, "deletion", "deletions"),
            output::counted(report.public_count, "public value", "public values"),
            output::counted(report.private_count, "other value", "other values"),
        );
    }
    if let Some(root) = root {
        println!("root: intact: {root}");
    }
    Ok(ExitOutcome::Good)
}

fn inspect(args: &InspectArgs) -> anyhow::Result<ExitOutcome> {
    let opened = OpenedSource::open(&args.path)?;
    let files = opened.files(&args.path);
    let homed = opened.records()?.homed_table();
    let mut prefixes: Vec<String> =
        homed.into_iter().flatten().map(|prefix| Handle(prefix).to_string()).collect();
    prefixes.sort_unstable();
    let mut handles = Vec::new();
    for record in opened.layers().iter().flat_map(Layer::records).take(args.handles) {
        let record = record?;
        let mark = if record.is_tombstone() { " (deleted)" } else { "" };
        handles.push(format!("{}{mark}", Handle(record.key())));
    }
    if args.json {
        let layers: Vec<_> =
            files.iter().zip(opened.layers()).map(|(file, layer)| layer_json(file, layer.header())).collect();
        let mut json = json!({ "layers": layers, "homed": prefixes, "handles": handles });
        if let OpenedSource::Set(set) = &opened {
            json["generation"] = set.generation().into();
            json["created_unix_ms"] = set.created_unix_ms().into();
            json["handles_count"] = set.handles_count().into();
            json["root"] = set.manifest().root.to_string().into();
            json["signer"] = set.manifest().seal.as_ref().map(|seal| seal.signer.to_string()).into();
        }
        println!("{json}");
        return Ok(ExitOutcome::Good);
    }
    if let OpenedSource::Set(set) = &opened {
        println!(
            "generation {}, published {}, {}, {}, newest first:",
            set.generation(),
            output::unix_time(i64::try_from(set.created_unix_ms() / 1000).unwrap_or(0)),
            output::counted(set.handles_count(), "handle", "handles"),
            output::counted(set.layers().len() as u64, "layer", "layers"),
        );
    }
    for (file, layer) in files.iter().zip(opened.layers()) {
        show_layer(file, layer.header(), None, false);
    }
    const PREFIXES_SHOWN: usize = 20;
    let more = prefixes.len().saturating_sub(PREFIXES_SHOWN);
    let rest = if more > 0 { format!(" and {more} more (--json shows all)") } else { String::new() };
    println!("homed: {}{rest}", prefixes[..prefixes.len() - more].join(" "));
    handles.iter().for_each(|handle| println!("{handle}"));
    Ok(ExitOutcome::Good)
}

fn get(args: &GetArgs) -> anyhow::Result<ExitOutcome> {
    let opened = OpenedSource::open(&args.path)?;
    let records = opened.records()?;
    let mut key = Handle(args.handle.as_bytes()).looked_up();
    fold_key(&mut key, records.folds());
    let Some(record) = records.find(hash_key(records.seed(), &key), &key)? else {
        eprintln!("hdl: {} is not in {}", args.handle, args.path.display());
        return Ok(ExitOutcome::NotFound);
    };
    let values: Vec<Value<'_>> = record.values_in_order().collect::<Result<_, _>>()?;
    if args.json {
        println!("{}", line_of(args.handle.as_bytes(), &values));
    } else {
        println!("{}  {}", args.handle, output::counted(values.len() as u64, "value", "values"));
        output::lines(output::values(values));
    }
    Ok(ExitOutcome::Good)
}
