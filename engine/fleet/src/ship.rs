//! Ships the sets of a directory to a store.

use crate::error::ShipError;
use crate::probe::{PROBE_PREFIX, check_conditions};
use crate::record::ShippedRecord;
use crate::steps::StepsWindow;
use crate::store::{FleetStore, FleetStoreError, FleetStoreErrorKind, ObjectRow, ObjectTag, PutCondition};
use bytes::Bytes;
use handle_snapshot::Sha256Sum;
use handle_snapshot::format::HEADER_LEN;
use handle_snapshot::set::manifest::{LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, is_layer_file};
use handle_snapshot::set::statement::{HEARTBEAT, SignedStatement, newest_statement};
use handle_snapshot::set::steps::{STEPS_SUFFIX, object_name};
use handle_snapshot::set::{SetError, SetErrorKind, read_manifest};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// How often shipping starts again because the store or the directory has changed meanwhile.
const ATTEMPTS_MAX: usize = 5;
/// Layers of up to this length are uploaded without asking first whether they are there.
const SMALL_LAYER_LEN: u64 = 1 << 20;
/// Most objects that are removed at a time, all at once.
pub const REMOVALS_MAX: usize = 16;
/// Start of the names of files that a directory store is writing.
const TMP_PREFIX: &str = ".tmp-";

/// Bounds of shipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipLimits {
    /// Number of the last sets whose layers are kept in the store.
    pub sets_kept: usize,
    /// Time for which a layer is kept in the store after the last of these sets that names it.
    pub grace: Duration,
    /// Most bytes of the steps that are shipped beside each set; 0 for no steps.
    pub steps_len: usize,
}

impl Default for ShipLimits {
    fn default() -> Self {
        Self { sets_kept: 10, grace: Duration::from_secs(3600), steps_len: 64 << 10 }
    }
}

/// What shipping has changed in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShipOutcome {
    /// A set was shipped: the bytes of the layers that were uploaded.
    Shipped(u64),
    /// The set was there already.
    Unchanged,
}

/// The MANIFEST in a store.
#[derive(Clone, Debug)]
struct RemoteSet {
    manifest: Manifest,
    tag: ObjectTag,
}

/// Ships the sets of one directory to one store.
#[derive(Debug)]
pub struct SetShipper {
    store: Arc<dyn FleetStore>,
    dir: PathBuf,
    record: ShippedRecord,
    limits: ShipLimits,
    /// The MANIFEST of this publisher in the store, as last seen.
    shipped: Option<RemoteSet>,
    /// Whether the last attempt to ship succeeded, so that nothing of a later set is in the store.
    is_settled: bool,
    /// The statement that was last uploaded.
    stated: Option<SignedStatement>,
    steps: StepsWindow,
    /// Objects that the last collection found to be without use for the grace time, and that are
    /// still to be removed.
    unused: Vec<String>,
}

impl SetShipper {
    /// Checks that the store honours conditions, and reads what was shipped from `dir` to `url`.
    ///
    /// # Errors
    /// When the store fails or ignores conditions, or the record cannot be read.
    pub fn open(
        store: Arc<dyn FleetStore>,
        url: &str,
        dir: &Path,
        limits: ShipLimits,
    ) -> Result<Self, ShipError> {
        check_conditions(&*store)?;
        let record = ShippedRecord::open(dir, url)?;
        Ok(Self {
            store,
            dir: dir.to_owned(),
            record,
            limits,
            shipped: None,
            is_settled: false,
            stated: None,
            steps: StepsWindow::default(),
            unused: Vec::new(),
        })
    }

    /// The set of this publisher in the store, as last seen.
    #[must_use]
    pub fn shipped(&self) -> Option<&Manifest> {
        self.shipped.as_ref().map(|shipped| &shipped.manifest)
    }

    /// Puts other limits in force.
    pub const fn set_limits(&mut self, limits: ShipLimits) {
        self.limits = limits;
    }

    /// Ships the set in the directory, if it is not in the store yet.
    ///
    /// # Errors
    /// When the store fails, or has a set of another publisher or a later set of this one. Layers
    /// that were uploaded stay, and are used by the next attempt.
    pub fn ship(&mut self) -> Result<ShipOutcome, ShipError> {
        let mut is_settled = std::mem::replace(&mut self.is_settled, false);
        let mut uploaded = 0;
        let mut attempt = 1;
        loop {
            let manifest = read_manifest(&self.dir)?;
            // After a success, the MANIFEST in the store is known. If another process has replaced
            // it since, the condition below fails, and the next attempt looks.
            let known = self.shipped.clone().filter(|shipped| is_settled && shipped.manifest != manifest);
            let remote = match known {
                Some(known) => Some(known),
                None => self.look()?,
            };
            if let Some(remote) = &remote {
                if remote.manifest == manifest {
                    self.shipped = Some(remote.clone());
                    self.is_settled = true;
                    return Ok(if uploaded > 0 {
                        ShipOutcome::Shipped(uploaded)
                    } else {
                        ShipOutcome::Unchanged
                    });
                }
                self.judge(&remote.manifest, &manifest)?;
            }
            match self.put_set(&manifest, remote.as_ref(), is_settled, &mut uploaded) {
                Ok(tag) => {
                    self.shipped = Some(RemoteSet { manifest, tag });
                    self.is_settled = true;
                    return Ok(ShipOutcome::Shipped(uploaded));
                }
                // Another process was faster, or the store has repeated the request by itself.
                Err(ShipError::Store(error)) if error.is_condition() && attempt < ATTEMPTS_MAX => {}
                // The publisher has removed a layer that a newer set no longer names.
                Err(error) if attempt < ATTEMPTS_MAX && self.is_replaced(&manifest) => {
                    tracing::debug!(%error, "the set was replaced while it was shipped");
                }
                Err(error) => return Err(error),
            }
            is_settled = false;
            attempt += 1;
        }
    }

    /// Uploads what the store lacks of a set, and then replaces the MANIFEST of `remote` there.
    fn put_set(
        &mut self,
        manifest: &Manifest,
        remote: Option<&RemoteSet>,
        is_settled: bool,
        uploaded: &mut u64,
    ) -> Result<ObjectTag, ShipError> {
        let before = remote.map(|remote| &remote.manifest).filter(|_| self.limits.steps_len > 0);
        let shipper = &*self;
        let new_steps = std::thread::scope(|scope| {
            let new_steps = before.map(|before| {
                scope.spawn(move || {
                    let (store, len_max) = (&*shipper.store, shipper.limits.steps_len);
                    shipper.steps.put(store, &shipper.dir, before, manifest, len_max)
                })
            });
            let layers = shipper.put_layers(manifest, remote, is_settled, uploaded);
            let new_steps = new_steps.map(ScopedJoinHandle::join).transpose();
            let new_steps = new_steps.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            layers.map(|()| new_steps.unwrap_or_default())
        })?;
        self.record.note(manifest, self.limits.sets_kept.max(2))?;
        let condition = remote.map_or(PutCondition::Absent, |it| PutCondition::Unchanged(it.tag.clone()));
        let tag = self.store.put(MANIFEST, Bytes::from(manifest.encode()), &condition)?;
        self.steps.note_shipped(new_steps, self.limits.steps_len);
        Ok(tag)
    }

    /// Uploads the layers of a set that the store lacks.
    fn put_layers(
        &self,
        manifest: &Manifest,
        remote: Option<&RemoteSet>,
        is_settled: bool,
        uploaded: &mut u64,
    ) -> Result<(), ShipError> {
        let known = remote.map_or(&[][..], |remote| &remote.manifest.layers);
        for entry in manifest.layers.iter().filter(|entry| !known.contains(entry)) {
            let is_missing = is_settled && entry.len <= SMALL_LAYER_LEN;
            if is_missing || !self.has_layer(entry)? {
                self.upload(entry)?;
                *uploaded += entry.len;
            }
        }
        Ok(())
    }

    /// Whether the directory has another set than `manifest` now.
    fn is_replaced(&self, manifest: &Manifest) -> bool {
        read_manifest(&self.dir).is_ok_and(|now| now != *manifest)
    }

    /// The MANIFEST in the store.
    fn look(&self) -> Result<Option<RemoteSet>, ShipError> {
        let known = self.shipped.as_ref().map(|shipped| &shipped.tag);
        match self.store.read(MANIFEST, MANIFEST_LEN_MAX, known) {
            Ok(found) => {
                let manifest = Manifest::parse(&found.bytes);
                let manifest = manifest.map_err(|error| ShipError::Damaged(error.to_string()))?;
                Ok(Some(RemoteSet { manifest, tag: found.tag }))
            }
            Err(error) if error.is_not_modified() => Ok(self.shipped.clone()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Decides whether the set in the store may be replaced by `manifest`.
    fn judge(&mut self, remote: &Manifest, manifest: &Manifest) -> Result<(), ShipError> {
        if !self.record.has(remote) {
            // Another process may have shipped from this directory.
            self.record.reread()?;
        }
        let order = |manifest: &Manifest| (manifest.epoch, manifest.generation);
        if self.record.has(remote) {
            return match order(remote) < order(manifest) {
                true => Ok(()),
                false => Err(ShipError::Older { shipped: remote.generation, found: manifest.generation }),
            };
        }
        if remote.epoch < manifest.epoch {
            return Ok(());
        }
        let (epoch, generation, ours) = (remote.epoch, remote.generation, manifest.epoch);
        Err(ShipError::Fenced { epoch, generation, ours })
    }

    fn upload(&self, entry: &LayerEntry) -> Result<(), ShipError> {
        self.store.put_file(&entry.file, &self.dir.join(&entry.file), entry.len)?;
        Ok(())
    }

    /// Whether the store has the layer, by its length and header.
    fn has_layer(&self, entry: &LayerEntry) -> Result<bool, ShipError> {
        if self.store.len(&entry.file)? != Some(entry.len) {
            return Ok(false);
        }
        let header = self.store.read_range(&entry.file, 0..HEADER_LEN as u64)?;
        Ok(Sha256Sum(Sha256::digest(&header).into()) == entry.digest)
    }

    /// Uploads the newest statement about the shipped set, if there is a new one.
    ///
    /// # Errors
    /// When the store fails, or has a set of another publisher.
    pub fn ship_statement(&mut self) -> Result<bool, ShipError> {
        let Some(shipped) = &self.shipped else { return Ok(false) };
        let statement = newest_statement(&self.dir, &shipped.manifest);
        let Some(statement) = statement.filter(|it| self.stated.as_ref() != Some(it)) else {
            return Ok(false);
        };
        self.check_shipped()?;
        self.store.put(HEARTBEAT, Bytes::from(statement.encode()), &PutCondition::Always)?;
        self.stated = Some(statement);
        Ok(true)
    }

    /// Checks that the MANIFEST in the store is still the one that was shipped.
    ///
    /// # Errors
    /// When it is not, or the store fails.
    pub fn check_shipped(&mut self) -> Result<(), ShipError> {
        let Some(shipped) = self.shipped.clone() else { return Ok(()) };
        match self.look()? {
            Some(remote) if remote.manifest == shipped.manifest => Ok(()),
            Some(remote) => {
                self.shipped = None;
                self.record.reread()?;
                if self.record.has(&remote.manifest) {
                    return Ok(());
                }
                let (epoch, generation) = (remote.manifest.epoch, remote.manifest.generation);
                Err(ShipError::Fenced { epoch, generation, ours: shipped.manifest.epoch })
            }
            None => {
                self.shipped = None;
                Err(FleetStoreError::new(MANIFEST, FleetStoreErrorKind::NotFound).into())
            }
        }
    }

    /// The highest epoch of a set that another publisher has in the store, or 0.
    ///
    /// # Errors
    /// When the store fails.
    pub fn remote_epoch(&self) -> Result<u64, ShipError> {
        Ok(self.look()?.map_or(0, |remote| remote.manifest.epoch))
    }

    /// Looks for objects that neither the set in the store nor one of the last sets names, if this
    /// has been so for the grace time, and removes some of them
    /// ([`remove_unused`](Self::remove_unused)). Uploads layers that the set in the store names and
    /// that are missing there.
    ///
    /// # Errors
    /// When the store fails, or has a set of another publisher.
    pub fn collect(&mut self, now_unix_ms: u64) -> Result<usize, ShipError> {
        let Some(shipped) = self.shipped.clone() else { return Ok(0) };
        let objects = self.store.list()?;
        // After the listing: another publisher that has taken over since has uploaded its layers,
        // or found them in place.
        self.check_shipped()?;
        for entry in &shipped.manifest.layers {
            if !objects.iter().any(|object| object.name == entry.file && object.len == entry.len) {
                tracing::warn!(layer = entry.file, "the store has lost a layer; it is uploaded again");
                self.upload(entry)?;
            }
        }
        let needed = self.needed(&shipped.manifest);
        let unused = objects.iter().filter(|object| is_unused(&object.name, &needed));
        let unused: Vec<_> = unused.collect();
        let names = unused.iter().map(|object| object.name.as_str()).collect();
        let grace_ms = u64::try_from(self.limits.grace.as_millis()).unwrap_or(u64::MAX);
        let since = self.record.note_unneeded(&names, now_unix_ms)?;
        let is_old = |object: &ObjectRow| {
            let unneeded_unix_ms = since.get(&object.name).copied().unwrap_or(now_unix_ms);
            let last_used = unneeded_unix_ms.max(object.written_unix_ms);
            now_unix_ms.saturating_sub(last_used) >= grace_ms
        };
        let old = unused.into_iter().filter(|object| is_old(object));
        self.unused = old.map(|object| object.name.clone()).collect();
        self.remove_unused()
    }

    /// Removes up to [`REMOVALS_MAX`] of the objects that the last collection found, and returns
    /// how many; sets wait to be shipped meanwhile.
    ///
    /// # Errors
    /// When the store fails, or has a set of another publisher.
    pub fn remove_unused(&mut self) -> Result<usize, ShipError> {
        if self.unused.is_empty() {
            return Ok(0);
        }
        // Another publisher that has taken over may use them.
        self.check_shipped()?;
        let Some(shipped) = self.shipped.clone() else { return Ok(0) };
        let names = self.unused.split_off(self.unused.len().saturating_sub(REMOVALS_MAX));
        let needed = self.needed(&shipped.manifest);
        let unused: Vec<_> = names.iter().filter(|name| is_unused(name, &needed)).collect();
        std::thread::scope(|scope| {
            let removals: Vec<_> =
                unused.iter().map(|name| scope.spawn(|| self.store.remove(name))).collect();
            let mut removed = Ok(0);
            for removal in removals {
                let one = removal.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                removed = removed.and_then(|count| one.map(|()| count + 1));
            }
            Ok(removed?)
        })
    }

    /// The objects that the set in the store, or one of the last sets, needs.
    fn needed(&self, shipped: &Manifest) -> BTreeSet<String> {
        let last = self.record.sets().iter().rev().take(self.limits.sets_kept);
        let layers = last.flat_map(|set| set.layers.iter().cloned());
        let shipped_layers = shipped.layers.iter().map(|layer| layer.file.clone());
        layers.chain(shipped_layers).chain([object_name(shipped)]).collect()
    }
}

/// Whether an object is one that publishers put into a store, and none of those that are needed.
fn is_unused(name: &str, needed: &BTreeSet<String>) -> bool {
    (is_layer_file(name) || name.ends_with(STEPS_SUFFIX)) && !needed.contains(name)
        || name.starts_with(PROBE_PREFIX)
        || name.starts_with(TMP_PREFIX)
}

/// Whether the error only says that nothing is published in the directory yet.
#[must_use]
pub const fn is_unpublished(error: &ShipError) -> bool {
    matches!(error, ShipError::Set(SetError { kind: SetErrorKind::NotPublished, .. }))
}
