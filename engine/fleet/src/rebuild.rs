//! Builds layers from those of the set in the directory and the steps of the publisher, instead of
//! downloading them.
//!
//! Steps are not trusted and not needed: without usable ones, layers are downloaded.

use crate::download::PART_SUFFIX;
use crate::error::FetchError;
use crate::fetch::{FetchCounters, SetFetcher};
use crate::store::FleetStore;
use handle_snapshot::set::LayerChecks;
use handle_snapshot::set::manifest::{LayerEntry, Manifest};
use handle_snapshot::set::steps::{
    LayerRecipes, STEPS_HEAD_LEN, SetId, StepsHead, object_name, set_id, split,
};

/// Bytes of missing layers from which on steps are read. For fewer, requests would cost more than
/// they save.
const MISSING_LEN_MIN: u64 = 2 << 10;

impl SetFetcher {
    /// Builds those of the missing layers of a set for which there are steps from the set in the
    /// directory. Of each set, steps are read once.
    ///
    /// # Errors
    /// When the process is to stop.
    pub(crate) fn rebuild_layers(
        &mut self,
        manifest: &Manifest,
        missing: &[&LayerEntry],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), FetchError> {
        let missing_len = missing.iter().fold(0_u64, |len, entry| len.saturating_add(entry.len));
        let Some(held) = self.manifest().filter(|_| self.limits.rebuilds_layers) else { return Ok(()) };
        let to = set_id(manifest);
        if missing_len <= MISSING_LEN_MIN || self.stepped_to == Some(to) {
            return Ok(());
        }
        let from = set_id(held);
        let bytes = read_steps(&*self.source, &object_name(manifest), from, to, missing_len, &self.counters);
        let steps = bytes.as_ref().and_then(|bytes| split(bytes, from));
        if let Some(recipes) = steps.and_then(|steps| LayerRecipes::new(held, &steps)) {
            for entry in missing {
                self.rebuild_layer(entry, &recipes, is_stopped)?;
            }
        }
        self.stepped_to = Some(to);
        Ok(())
    }

    fn rebuild_layer(
        &self,
        entry: &LayerEntry,
        recipes: &LayerRecipes<'_>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), FetchError> {
        let Some(recipe) = recipes.find(entry) else { return Ok(()) };
        // Not the name of a download, which would go on from there.
        let part = format!("{}.built{PART_SUFFIX}", entry.file);
        let publisher = &self.publisher.0;
        let checks = LayerChecks { records: self.limits.checks_records, reads_back: true };
        let built = publisher.rebuild_layer(&part, entry, &recipe, is_stopped);
        match built.and_then(|()| publisher.take_layer(&part, entry, checks)) {
            Ok(()) => self.counters.layers_rebuilt.add(),
            Err(_) if is_stopped() => return Err(FetchError::Stopped),
            Err(error) => {
                tracing::debug!(%error, "a layer is downloaded instead of built");
                self.counters.rebuilds_failed.add();
            }
        }
        Ok(())
    }
}

/// Reads the start of an object with steps, up to the step from the set `from`. Returns `None` if
/// there is no such step, it has more than `len_max` bytes, or the store fails.
fn read_steps(
    store: &dyn FleetStore,
    name: &str,
    from: SetId,
    to: SetId,
    len_max: u64,
    counters: &FetchCounters,
) -> Option<Vec<u8>> {
    let read = |range| {
        let bytes = store.read_range(name, range);
        let bytes = bytes.inspect_err(|error| tracing::debug!(%error, "there are no steps")).ok()?;
        counters.step_bytes.add_many(bytes.len() as u64);
        Some(bytes)
    };
    let mut bytes = read(0..STEPS_HEAD_LEN as u64)?.to_vec();
    let head = StepsHead::parse(&bytes).filter(|head| head.to == to)?;
    let is_short = |end: &u64| *end < len_max;
    let end = match head.find(from, &[]) {
        Some(end) => end,
        None if head.table().is_empty() => return None,
        None => head.find(from, &read(head.table())?)?,
    };
    let end = Some(end).filter(is_short)?;
    bytes.extend_from_slice(&read(STEPS_HEAD_LEN as u64..end)?);
    Some(bytes)
}
