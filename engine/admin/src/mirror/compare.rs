//! Compares the published set of a mirror with the records of its primaries: requests a dump, and
//! looks up each of its records in the set.
//!
//! Both sides may change meanwhile. What differs is therefore compared again for a while, with
//! newer sets; and what the primary has changed since its dump does not count.

use super::error::MirrorError;
use super::primary::{PrimaryServer, RequestLimits};
use anyhow::{Context as _, bail};
use handle_client::replication::StreamEvent;
use handle_proto::Handle;
use handle_proto::fold::folded;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::Request;
use handle_proto::wire::replication_stream::{
    DumpItem, TransactionAction, TransactionItem, TransactionStatus,
};
use handle_snapshot::set::PublishedSet;
use handle_snapshot::{LoadMode, MappedFile, RecordSet, hash_key};
use handle_store::{check_record, key};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Differences that are compared again. Further ones count at once.
const REPEATED_MAX: usize = 10_000;
/// Pause between two comparisons of what differs.
const PAUSE: Duration = Duration::from_millis(250);

/// How a mirror differs from its primary in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorDifference {
    /// The mirror does not have what the primary has.
    Missing,
    /// The mirror has other values.
    Different,
    /// The mirror has what the primary does not have.
    Extra,
}

impl MirrorDifference {
    const fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Different => "different",
            Self::Extra => "extra",
        }
    }
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComparedName {
    /// The record of this handle.
    Record(Vec<u8>),
    /// Whether this prefix is homed.
    Homed(Vec<u8>),
}

/// What was found for one server of a primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorComparison {
    /// The name of the primary, and the position of the server if there are several.
    pub name: String,
    /// The last transaction that the dump is certain to have.
    pub transaction: u64,
    /// Records of the dump that belong to this mirror.
    pub records: u64,
    /// Further records, which a mirror leaves out because they exceed a limit of the store.
    pub left_out: u64,
    /// Names that differ, and that the primary has changed since its dump.
    pub changed: u64,
    /// What differs.
    pub differences: BTreeMap<ComparedName, MirrorDifference>,
    /// Further differences, which were too many to be compared again.
    pub more: u64,
}

impl MirrorComparison {
    /// Whether the mirror has what the primary has.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty() && self.more == 0
    }

    /// All of it as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let described = |(name, difference): (&ComparedName, &MirrorDifference)| {
            let (kind, name) = match name {
                ComparedName::Record(handle) => ("handle", Handle(handle).to_string()),
                ComparedName::Homed(prefix) => ("homed", String::from_utf8_lossy(prefix).into_owned()),
            };
            json!({ kind: name, "difference": difference.word() })
        };
        json!({
            "primary": self.name,
            "agree": self.is_equal(),
            "transaction": self.transaction,
            "records": self.records,
            "left_out": self.left_out,
            "changed_meanwhile": self.changed,
            "differences": self.differences.iter().map(described).collect::<Vec<_>>(),
            "more_differences": self.more,
        })
    }
}

/// Gets the number of records received so far, and returns whether to go on.
pub type ComparisonProgress<'p> = dyn Fn(u64) -> bool + 'p;

/// Compares the published set in `directory` with all `servers`. What differs is compared again
/// until `timeout` is over.
///
/// # Errors
/// When the set cannot be read, a primary does not answer, the log of a primary does not reach back
/// to its dump, or `progress` ends the comparison.
pub fn compare(
    servers: &[Arc<PrimaryServer>],
    limits: RequestLimits,
    directory: &Path,
    timeout: Duration,
    progress: &ComparisonProgress<'_>,
) -> anyhow::Result<Vec<MirrorComparison>> {
    let compare_one = |server: &Arc<PrimaryServer>| {
        let failed = || format!("the primary {:?}", server.name);
        ServerComparison::new(server, limits, progress).run(directory, timeout).with_context(failed)
    };
    servers.iter().map(compare_one).collect()
}

/// What there should be under a name, and how the last set differed.
struct OpenDifference {
    /// The encoded values of a record, or nothing for a homed prefix; `None` if it should not be
    /// there.
    wanted: Option<Vec<u8>>,
    difference: MirrorDifference,
}

/// A comparison with one server.
struct ServerComparison<'s> {
    server: &'s PrimaryServer,
    limits: RequestLimits,
    progress: &'s ComparisonProgress<'s>,
    found: MirrorComparison,
    /// Whether the set has folded handles.
    folds: bool,
    /// The time of the dump, by the clock of the primary, in milliseconds since 1970.
    dumped_unix_ms: u64,
    /// Hashes of the handles in the dump, in order once it is complete.
    named: Vec<u64>,
    /// The homed prefixes in the dump.
    homed: BTreeSet<Vec<u8>>,
    /// What differs so far.
    open: BTreeMap<ComparedName, OpenDifference>,
    /// What the primary has changed since its dump.
    moved: BTreeSet<ComparedName>,
}

impl<'s> ServerComparison<'s> {
    fn new(server: &'s PrimaryServer, limits: RequestLimits, progress: &'s ComparisonProgress<'s>) -> Self {
        let found = MirrorComparison { name: server.name.clone(), ..MirrorComparison::default() };
        let (named, homed, open, moved) = Default::default();
        Self { server, limits, progress, found, folds: true, dumped_unix_ms: 0, named, homed, open, moved }
    }

    fn run(mut self, directory: &Path, timeout: Duration) -> anyhow::Result<MirrorComparison> {
        let set = PublishedSet::open(directory, LoadMode::Map)?;
        self.compare_dump(&set)?;
        self.find_extra(&set)?;
        drop(set);
        let deadline = Instant::now() + timeout;
        loop {
            let set = PublishedSet::open(directory, LoadMode::Map)?;
            self.compare_again(&set)?;
            // After the set, so that whatever it has beyond the dump is known.
            self.request_moved()?;
            let is_settled = self.open.keys().all(|name| self.moved.contains(name));
            if is_settled || Instant::now() >= deadline {
                return Ok(self.finish());
            }
            if !(self.progress)(self.found.records) {
                bail!("the comparison was ended");
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn finish(mut self) -> MirrorComparison {
        for (name, open) in self.open {
            if self.moved.contains(&name) {
                self.found.changed += 1;
            } else {
                self.found.differences.insert(name, open.difference);
            }
        }
        self.found
    }

    /// Sends a request to the first address that answers.
    fn receive(
        &self,
        request: &Request<'_>,
        mut take: impl FnMut(StreamEvent<'_>) -> Result<(), MirrorError>,
    ) -> Result<(), MirrorError> {
        let mut last = Err(MirrorError::Order("the primary has no address"));
        for &address in &self.server.addresses {
            last = self.server.receive(address, request, self.limits, &Arc::default(), &mut take);
            if !matches!(last, Err(MirrorError::Ask(_))) {
                break;
            }
        }
        last
    }

    fn compare_dump(&mut self, set: &PublishedSet) -> anyhow::Result<()> {
        let (records, server) = (set.records(), self.server);
        let request = server.dump(None);
        let mut taken = ServerComparison::new(server, self.limits, self.progress);
        taken.folds = records.folds();
        let mut damage = None;
        self.receive(&request, |event| {
            if let (StreamEvent::Dump(item), None) = (event, &damage) {
                damage = taken.take_dump_item(item, &records).err();
            }
            match (taken.progress)(taken.found.records) {
                true => Ok(()),
                false => Err(MirrorError::Stopped),
            }
        })?;
        if let Some(error) = damage {
            return Err(error);
        }
        taken.named.sort_unstable();
        *self = taken;
        Ok(())
    }

    fn take_dump_item(
        &mut self,
        item: DumpItem<'_>,
        records: &RecordSet<'_, MappedFile>,
    ) -> anyhow::Result<()> {
        match item {
            DumpItem::Source { unix_ms, txn_id } => {
                (self.dumped_unix_ms, self.found.transaction) = (unix_ms, txn_id);
                Ok(())
            }
            DumpItem::Handle { handle, values } if self.server.scope.has(handle) => {
                let key = key(handle, records.folds());
                self.named.push(hash_key(records.seed(), &key));
                if values.fault().is_some() || check_record(&key, values.iter()).is_err() {
                    self.found.left_out += 1;
                    return Ok(());
                }
                self.found.records += 1;
                let mut wanted = Vec::new();
                values.iter().for_each(|value| value.encode(&mut wanted));
                self.compare_one(ComparedName::Record(key), Some(wanted), records)
            }
            DumpItem::Homed(name) => match self.server.scope.homed_prefix(name) {
                Some(prefix) => {
                    self.homed.insert(prefix.clone());
                    self.compare_one(ComparedName::Homed(prefix), Some(Vec::new()), records)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Compares one name, and keeps it if it differs.
    fn compare_one(
        &mut self,
        name: ComparedName,
        wanted: Option<Vec<u8>>,
        records: &RecordSet<'_, MappedFile>,
    ) -> anyhow::Result<()> {
        let Some(difference) = difference(&name, wanted.as_deref(), records)? else { return Ok(()) };
        if self.open.len() < REPEATED_MAX {
            self.open.insert(name, OpenDifference { wanted, difference });
        } else {
            self.found.more += 1;
        }
        Ok(())
    }

    /// Finds the records and homed prefixes that the dump does not have.
    fn find_extra(&mut self, set: &PublishedSet) -> anyhow::Result<()> {
        let records = set.records();
        for layer in set.layers() {
            for record in layer.records() {
                let record = record?;
                let hash = hash_key(records.seed(), record.key());
                let is_here = !record.is_tombstone() && self.server.scope.owns(record.key());
                // An older layer may have a record that is deleted in a newer one, which is no
                // difference.
                if is_here && self.named.binary_search(&hash).is_err() {
                    self.compare_one(ComparedName::Record(record.key().to_vec()), None, &records)?;
                }
            }
        }
        for prefix in records.homed_table().into_iter().flatten() {
            let owns = self.server.scope.owns_prefix(&[PREFIX_RECORDS, prefix].concat());
            if owns && !self.homed.contains(prefix) {
                self.compare_one(ComparedName::Homed(prefix.to_vec()), None, &records)?;
            }
        }
        Ok(())
    }

    /// Compares what differs with a newer set.
    fn compare_again(&mut self, set: &PublishedSet) -> anyhow::Result<()> {
        let records = set.records();
        for (name, OpenDifference { wanted, .. }) in std::mem::take(&mut self.open) {
            self.compare_one(name, wanted, &records)?;
        }
        Ok(())
    }

    /// Requests what the primary has changed since its dump.
    fn request_moved(&mut self) -> anyhow::Result<()> {
        let request = self.server.transactions_after(self.found.transaction, self.dumped_unix_ms);
        let (mut moved, mut needs_dump) = (BTreeSet::new(), false);
        let folds = self.folds;
        self.receive(&request, |event| {
            match event {
                StreamEvent::Header(header) => needs_dump = header.status == TransactionStatus::NeedsDump,
                StreamEvent::Transaction(TransactionItem::Transaction { handle, action, .. }) => {
                    moved.insert(match action {
                        TransactionAction::Home | TransactionAction::Unhome => {
                            ComparedName::Homed(folded(Handle(handle).homed_prefix()))
                        }
                        _ => ComparedName::Record(key(handle, folds)),
                    });
                }
                _ => {}
            }
            Ok(())
        })?;
        if needs_dump {
            bail!("its log does not reach back to the dump, so that changes cannot be told from differences");
        }
        self.moved.append(&mut moved);
        Ok(())
    }
}

/// How a set differs from what there should be under a name.
fn difference(
    name: &ComparedName,
    wanted: Option<&[u8]>,
    records: &RecordSet<'_, MappedFile>,
) -> anyhow::Result<Option<MirrorDifference>> {
    let here = match name {
        ComparedName::Homed(prefix) => records.homed(prefix).then(Vec::new),
        ComparedName::Record(key) => {
            let record = records.find(hash_key(records.seed(), key), key)?;
            let mut here = Vec::new();
            record.map(|record| record.encode_values(&mut here)).transpose()?.map(|_| here)
        }
    };
    Ok(match (wanted, here.as_deref()) {
        (Some(wanted), Some(here)) => (wanted != here).then_some(MirrorDifference::Different),
        (Some(_), None) => Some(MirrorDifference::Missing),
        (None, Some(_)) => Some(MirrorDifference::Extra),
        (None, None) => None,
    })
}
