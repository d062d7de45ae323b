//! Records that can be read in order and found by handle: those of a set or layer, where they are,
//! or those of other files, sorted in a temporary layer.

use super::{Args, NamedIdentity};
use crate::input::{InputPosition, RecordInputs, SortingSpace};
use crate::snapshot::OpenedSource;
use crate::store::files::{RecordFormat, RecordSink, read_all};
use crate::store::remote::{RemoteListing, RemoteSink};
use crate::{exchange, output, progress};
use anyhow::{Context as _, anyhow, bail, ensure};
use handle_daemon::clock::now_unix_ms;
use handle_proto::Handle;
use handle_proto::wire::list::Values;
use handle_snapshot::builder::Builder;
use handle_snapshot::map::MappedFile;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_snapshot::{BuildError, EncodedRecord, HomedTable, Layer, RecordSet};
use handle_store::{Store, StoreConfig};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// First bytes of the file of a store.
const STORE_START: &[u8] = b"redb";
/// First bytes of a layer.
const LAYER_START: &[u8] = &handle_snapshot::format::MAGIC;

/// How files are read.
pub(super) struct TableOptions {
    pub(super) from: Option<RecordFormat>,
    /// Whether local names are the same in every case.
    pub(super) folds: bool,
    pub(super) memory_len: usize,
    pub(super) temp_dir: PathBuf,
}

/// The records, or the names alone.
pub(super) struct ReconcileTable {
    opened: OpenedSource,
    has_names_only: bool,
    has_public_values_only: bool,
    /// What a server listed, if it did.
    listing: Option<ListingScope>,
    /// Where the temporary layer is.
    _directory: Option<TempDir>,
}

/// The handles that a server listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingScope {
    /// Those of all its homed prefixes.
    Homed,
    /// Those of some prefixes. The others are not compared.
    Prefixes,
}

/// The kind of a path, from its first bytes.
enum PathKind {
    Published,
    Store,
    Records,
}

fn kind_of(path: &Path) -> anyhow::Result<PathKind> {
    if path.is_dir() {
        return Ok(PathKind::Published);
    }
    let mut start = Vec::new();
    // What is read of a pipe is gone, and sets and stores are not read from pipes.
    if path == Path::new("-") || path.exists() && !path.is_file() {
        return Ok(PathKind::Records);
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.take(8).read_to_end(&mut start).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(match start {
        start if start.starts_with(STORE_START) => PathKind::Store,
        start if start.starts_with(LAYER_START) => PathKind::Published,
        _ => PathKind::Records,
    })
}

/// Whether local names are folded in the set, layer or store at `path`; `None` for other files.
pub(super) fn folds(path: &Path) -> anyhow::Result<Option<bool>> {
    Ok(match kind_of(path)? {
        PathKind::Published => Some(OpenedSource::open(path)?.records()?.folds()),
        PathKind::Store => Some(Store::open_to_read(&StoreConfig::at(path))?.folds()),
        PathKind::Records => None,
    })
}

impl ReconcileTable {
    /// Opens a set or layer, or sorts the records of another file.
    pub(super) fn open(path: &Path, options: &TableOptions) -> anyhow::Result<Self> {
        let kind = kind_of(path)?;
        if let PathKind::Published = kind {
            let opened = OpenedSource::open(path)?.checked();
            return Ok(Self {
                opened,
                has_names_only: false,
                has_public_values_only: false,
                listing: None,
                _directory: None,
            });
        }
        Self::sort(&path.display().to_string(), options, |sink| match kind {
            PathKind::Store => sink.store(path),
            _ => sink.file(path, options),
        })
    }

    /// Lists the handles of a server, and sorts their records.
    pub(super) fn of_server(
        server: &str,
        args: &Args,
        identity: &NamedIdentity,
        options: &TableOptions,
    ) -> anyhow::Result<Self> {
        let address = exchange::address(server)?;
        let listing = RemoteListing {
            server,
            prefixes: &args.prefix,
            parallel: args.parallel,
            list_mib: args.list_mib,
            connect: &|| {
                let mut client = args.server.anonymous(address)?;
                client.identify(identity.clone());
                Ok(client)
            },
        };
        let listed = Self::sort(server, options, |sink| {
            listing.each(false, sink)?;
            match sink.unreadable.take() {
                Some(why) => Err(anyhow!("{server}: {why}")),
                None => Ok(()),
            }
        })?;
        let scope = if args.prefix.is_empty() { ListingScope::Homed } else { ListingScope::Prefixes };
        Ok(Self { listing: Some(scope), ..listed })
    }

    /// Sorts what `read` adds in a temporary layer.
    fn sort(
        shown: &str,
        options: &TableOptions,
        read: impl FnOnce(&mut TableBuilder) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix_in("hdl-reconcile-", &options.temp_dir)
            .with_context(|| format!("cannot write to {}", options.temp_dir.display()))?;
        let layer = directory.path().join("records.layer");
        let mut sink = TableBuilder::new(directory.path(), options);
        read(&mut sink)?;
        let (has_names_only, has_public_values_only) = (sink.has_names, sink.withheld_count > 0);
        ensure!(!(sink.has_names && sink.has_records), "{shown} has both records and names");
        if has_public_values_only {
            eprintln!(
                "hdl: {shown} shows only the public values of {}: only public values are compared",
                output::counted(sink.withheld_count, "record", "records")
            );
        }
        let file = File::create_new(&layer).with_context(|| format!("cannot write {}", layer.display()))?;
        let builder = match sink.homed {
            Some(homed) => sink.builder.homed(homed),
            None => sink.builder,
        };
        builder.finish(file).map_err(|error| explain(shown, error))?;
        let opened = OpenedSource::open(&layer)?.checked();
        Ok(Self {
            opened,
            has_names_only,
            has_public_values_only,
            listing: None,
            _directory: Some(directory),
        })
    }

    /// Whether the values of the records are not known.
    pub(super) const fn has_names_only(&self) -> bool {
        self.has_names_only
    }

    /// Whether there may be further values that are not public.
    pub(super) const fn has_public_values_only(&self) -> bool {
        self.has_public_values_only
    }

    /// What a server listed; `None` if none did.
    pub(super) const fn listing(&self) -> Option<ListingScope> {
        self.listing
    }

    /// The table of homed prefixes; `None` if it is not known which are.
    pub(super) fn homed(&self) -> anyhow::Result<Option<HomedTable<'_>>> {
        Ok(self.records()?.homed_table().filter(|homed| !homed.is_empty()))
    }

    /// The layers with the records, newest first.
    pub(super) fn layers(&self) -> &[Layer<MappedFile>] {
        self.opened.layers()
    }

    pub(super) fn folds(&self) -> anyhow::Result<bool> {
        Ok(self.opened.records()?.folds())
    }

    /// Number of records in all layers, those that newer layers hide included.
    pub(super) fn count(&self) -> u64 {
        self.opened.layers().iter().map(|layer| layer.handles_count()).sum()
    }

    pub(super) fn records(&self) -> anyhow::Result<RecordSet<'_, MappedFile>> {
        self.opened.records()
    }

    /// Passes each record to `take`, after a comparison with its checksum.
    pub(super) fn each(
        &self,
        mut take: impl FnMut(EncodedRecord<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.opened.each_record(|record| {
            ensure!(record.is_whole(), "the record of {} is damaged", Handle(record.key()));
            take(record)
        })
    }
}

/// Sorts records into a layer.
struct TableBuilder {
    builder: Builder<'static>,
    has_records: bool,
    has_names: bool,
    /// Number of records of which a server shows only the public values.
    withheld_count: u64,
    /// The first handle or prefix that a server does not show, and why.
    unreadable: Option<String>,
    /// The homed prefixes; `None` if the file does not have any.
    homed: Option<HomedPrefixes>,
}

impl TableBuilder {
    fn new(directory: &Path, options: &TableOptions) -> Self {
        let layer =
            LayerOptions { seed: rand::random(), folds: options.folds, created_unix_ms: now_unix_ms() };
        let builder = Builder::new(directory, layer).memory_len_max(options.memory_len);
        Self {
            builder,
            has_records: false,
            has_names: false,
            withheld_count: 0,
            unreadable: None,
            homed: None,
        }
    }

    fn add(&mut self, handle: &[u8], values: Values<'_>) -> anyhow::Result<()> {
        let origin = self.builder.records_count() + 1;
        self.builder.add(origin, &Handle(handle).looked_up(), values.iter()).map_err(|error| match error {
            BuildError::Record { handle, why, .. } => anyhow!("{}: {why}", Handle(&handle)),
            error => error.into(),
        })
    }

    fn store(&mut self, path: &Path) -> anyhow::Result<()> {
        let store = Store::open_to_read(&StoreConfig::at(path))?;
        let snapshot = store.snapshot()?;
        for prefix in snapshot.homed()? {
            self.homed.get_or_insert_default().add(&prefix);
        }
        let bar = progress::bar("reading", Some(snapshot.records_count()?));
        for stored in snapshot.records()? {
            let stored = stored?;
            let record = stored.record().with_context(|| Handle(stored.handle()).to_string())?;
            self.add(stored.handle(), record.values)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn file(&mut self, path: &Path, options: &TableOptions) -> anyhow::Result<()> {
        let paths = [path.to_owned()];
        let inputs = RecordInputs::new(&paths, options.from.map(Into::into));
        let bar = progress::bar("reading", inputs.len());
        let sorting = SortingSpace {
            temp_dir: &options.temp_dir,
            memory_len: options.memory_len,
            folds: options.folds,
        };
        read_all(&inputs, &bar, sorting, self)
    }
}

impl RecordSink for TableBuilder {
    fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        position: &dyn Fn() -> InputPosition,
    ) -> anyhow::Result<()> {
        self.has_records = true;
        self.add(handle, values).with_context(position)
    }

    /// Files have the name of the record of the prefix.
    fn homed(&mut self, prefix: &[u8]) {
        self.homed.get_or_insert_default().add(Handle(prefix).homed_prefix());
    }

    fn name(&mut self, name: &str) -> anyhow::Result<()> {
        self.has_names = true;
        if !name.contains('/') {
            bail!("{name} is not a handle: expected PREFIX/NAME");
        }
        self.add(name.as_bytes(), Values::EMPTY)
    }
}

impl RemoteSink for TableBuilder {
    fn withheld(&mut self, _handle: &[u8], _count: usize, _why: &str) {
        self.withheld_count += 1;
    }

    fn unreadable(&mut self, name: &[u8], why: &str) {
        self.unreadable.get_or_insert_with(|| format!("cannot read {}: {why}", Handle(name)));
    }
}

fn explain(shown: &str, error: BuildError) -> anyhow::Error {
    match error {
        BuildError::Duplicate { key, origins: [first, second] } => {
            anyhow!("{shown}: {} is there twice, as record {first} and as record {second}", Handle(&key))
        }
        error => error.into(),
    }
}
