//! Verification of layers while they are served, and the treatment of damaged layers.
//!
//! The start only reads the headers of layers, so that it is fast. One thread, which runs only when
//! nothing else needs the core, then reads every byte of the layers at a limited rate.
//!
//! - A layer whose bytes differ from what was written stays in use, but every record of it is
//!   compared with its checksum, and every bucket of its index before a handle counts as missing:
//!   lookups that meet damage are answered with an error, and all other answers are correct.
//! - A layer whose checksums are right but whose content is wrong was built incorrectly, perhaps on
//!   purpose. Every lookup that reaches it is answered with an error.

use crate::live::ServedSet;
use handle_daemon::priority::stand_back;
use handle_daemon::settings::SettingType;
use handle_snapshot::map::MappedFile;
use handle_snapshot::set::manifest::LayerEntry;
use handle_snapshot::verify::{self, LayerFault};
use handle_snapshot::{Layer, Trust};
use serde::{Deserialize, Serialize};
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When records are compared with their checksums before they are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordChecks {
    /// In sets that have non-public values.
    #[default]
    Auto,
    /// In every set.
    On,
    /// In none.
    Off,
}

impl SettingType for RecordChecks {
    fn type_name() -> String {
        "`auto`, `on`, `off`".to_owned()
    }
}

/// Verification state of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LayerState {
    /// Pending: only its header and its homed prefixes have been checked.
    #[default]
    Pending,
    /// The bytes are those that were published.
    Whole,
    /// The layer is damaged.
    Damaged(LayerFault),
}

impl LayerState {
    /// Its name in `status`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Whole => "whole",
            Self::Damaged(_) => "damaged",
        }
    }

    /// Description of the damage.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Self::Damaged(fault) => Some(fault.to_string()),
            Self::Pending | Self::Whole => None,
        }
    }
}

/// Verification state of the layers of the live set.
#[derive(Debug, Default)]
pub(crate) struct VerificationLedger {
    entries: Mutex<Entries>,
    /// Notified when a layer becomes pending, the rate changes, or verification must stop.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Entries {
    states: Vec<(LayerEntry, LayerState)>,
    /// Bytes per second; 0 disables verification.
    rate: u64,
    is_stopped: bool,
}

impl VerificationLedger {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts tracking the layers of another set. Layers that stay keep their state; all others are
    /// pending, except those that were `verified` just now.
    pub(crate) fn begin(&self, layers: &[LayerEntry], verified: impl Fn(&LayerEntry) -> bool) {
        let mut entries = self.lock();
        let known = std::mem::take(&mut entries.states);
        let state = |entry: &LayerEntry| match known.iter().find(|(known, _)| known == entry) {
            _ if verified(entry) => LayerState::Whole,
            Some((_, state)) => state.clone(),
            None => LayerState::Pending,
        };
        entries.states = layers.iter().map(|entry| (entry.clone(), state(entry))).collect();
        self.changed.notify_all();
    }

    /// The state of a layer.
    pub(crate) fn state(&self, entry: &LayerEntry) -> LayerState {
        let entries = self.lock();
        let found = entries.states.iter().find(|(known, _)| known == entry);
        found.map_or(LayerState::Pending, |(_, state)| state.clone())
    }

    /// Records the state of a layer. Returns false if the layer is no longer in the tracked set.
    pub(crate) fn conclude(&self, entry: &LayerEntry, state: LayerState) -> bool {
        let mut entries = self.lock();
        let found = entries.states.iter_mut().find(|(known, _)| known == entry);
        found.is_some_and(|(_, known)| {
            *known = state;
            true
        })
    }

    /// The damaged layers.
    pub(crate) fn damaged(&self) -> Vec<LayerEntry> {
        self.faults().into_iter().map(|(entry, _)| entry).collect()
    }

    /// The damaged layers with their faults.
    pub(crate) fn faults(&self) -> Vec<(LayerEntry, LayerFault)> {
        let entries = self.lock();
        let fault = |(entry, state): &(LayerEntry, LayerState)| match state {
            LayerState::Damaged(fault) => Some((entry.clone(), *fault)),
            LayerState::Pending | LayerState::Whole => None,
        };
        entries.states.iter().filter_map(fault).collect()
    }

    /// Number of layers that are verified and whole.
    pub(crate) fn whole_count(&self) -> usize {
        self.lock().states.iter().filter(|(_, state)| *state == LayerState::Whole).count()
    }

    /// The trust in a layer, depending on whether its set has private values.
    pub(crate) fn trust(&self, entry: &LayerEntry, checks: RecordChecks, has_private: bool) -> Trust {
        let is_checked = match checks {
            RecordChecks::Auto => has_private,
            RecordChecks::On => true,
            RecordChecks::Off => false,
        };
        match self.state(entry) {
            LayerState::Damaged(fault) if fault.is_damage() => Trust::Checked,
            LayerState::Damaged(_) => Trust::Refused,
            LayerState::Pending | LayerState::Whole if is_checked => Trust::Checked,
            LayerState::Pending | LayerState::Whole => Trust::Plain,
        }
    }

    /// Sets the maximum rate in bytes per second; 0 disables verification.
    pub(crate) fn set_rate(&self, bytes_per_s: u64) {
        self.lock().rate = bytes_per_s;
        self.changed.notify_all();
    }

    /// Stops verification.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits for a pending layer; `None` when verification must stop.
    fn next(&self) -> Option<LayerEntry> {
        let mut entries = self.lock();
        loop {
            if entries.is_stopped {
                return None;
            }
            let mut pending = entries.states.iter().filter(|(_, state)| *state == LayerState::Pending);
            if let Some((entry, _)) = pending.next().filter(|_| entries.rate > 0) {
                return Some(entry.clone());
            }
            entries = self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps for the time that `len` bytes may take at the set rate, less the time `took`. Breaks
    /// when verification must stop.
    fn rest(&self, len: u64, took: Duration) -> ControlFlow<()> {
        let mut entries = self.lock();
        let begun = Instant::now();
        loop {
            if entries.is_stopped || entries.rate == 0 {
                return ControlFlow::Break(());
            }
            let due = Duration::from_secs_f64(len as f64 / entries.rate as f64);
            let left = due.saturating_sub(took).saturating_sub(begun.elapsed());
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            let waited = self.changed.wait_timeout(entries, left);
            entries = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Verifies pending layers one after the other until the ledger is
/// [stopped](VerificationLedger::stop).
pub(crate) fn run(live: &ServedSet) {
    // If the kernel refuses, the rate still bounds the load.
    if let Err(error) = stand_back(true, 0) {
        tracing::debug!(%error, "the verification of layers runs with usual priority");
    }
    let ledger = &live.ledger;
    while let Some(entry) = ledger.next() {
        let set = live.current();
        let at = set.manifest().layers.iter().position(|layer| *layer == entry);
        let Some(layer) = at.and_then(|at| set.layers().get(at)) else { continue };
        let begun = Instant::now();
        let Some(result) = verify_slowly(layer, ledger).transpose() else { continue };
        let file = &entry.file;
        let state = match result {
            Ok(report) => {
                let (handles, seconds) = (report.handles_count, begun.elapsed().as_secs());
                tracing::info!(file, handles, seconds, "layer verified");
                LayerState::Whole
            }
            Err(fault) => {
                let path = set.dir().join(file);
                let path = path.display();
                let error = fault.to_string();
                match fault.is_damage() {
                    true => tracing::error!(
                        file,
                        error,
                        "a layer of the set is damaged: records of it that do not match their checksums are answered \
                         with an error; replace it (check: hdl snapshot verify {path}), then: hdl control reload"
                    ),
                    false => tracing::error!(
                        file,
                        error,
                        "a layer of the set was made wrongly: what would be answered from it is answered with an \
                         error; publish the records again (check: hdl snapshot verify {path})"
                    ),
                }
                LayerState::Damaged(fault)
            }
        };
        live.conclude(&entry, state);
    }
}

/// Verifies a layer with pauses; `None` when verification was stopped.
fn verify_slowly(
    layer: &Layer<MappedFile>,
    ledger: &VerificationLedger,
) -> Result<Option<verify::VerifyReport>, LayerFault> {
    let mut since = Instant::now();
    verify::layer_in_steps(layer, |range: Range<u64>| {
        let rested = ledger.rest(range.end - range.start, since.elapsed());
        since = Instant::now();
        rested
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_snapshot::verify::FaultKind;

    fn entry(name: &str) -> LayerEntry {
        LayerEntry { file: name.to_owned(), len: 1, digest: Default::default() }
    }

    #[test]
    fn what_is_known_of_a_layer_stays_with_it_from_set_to_set() {
        let ledger = VerificationLedger::default();
        let [a, b, c] = ["a", "b", "c"].map(entry);
        let damage = LayerState::Damaged(LayerFault { at: 9, kind: FaultKind::RecordsSum });
        ledger.begin(&[a.clone(), b.clone()], |_| false);
        assert!(ledger.conclude(&a, damage.clone()) && ledger.conclude(&b, LayerState::Whole));
        ledger.begin(&[c.clone(), a.clone()], |entry| *entry == c);
        assert_eq!((ledger.state(&a), ledger.state(&c)), (damage, LayerState::Whole));
        assert_eq!((ledger.whole_count(), ledger.damaged()), (1, vec![a.clone()]));
        assert!(!ledger.conclude(&b, LayerState::Whole), "it is gone");
        ledger.begin(std::slice::from_ref(&a), |_| true);
        assert_eq!(ledger.state(&a), LayerState::Whole, "replaced, and verified");
    }

    #[test]
    fn records_are_checked_where_private_values_are_and_in_damaged_layers_in_any_case() {
        let ledger = VerificationLedger::default();
        let [damaged, crafted, pending] = ["damaged", "crafted", "pending"].map(entry);
        ledger.begin(&[damaged.clone(), crafted.clone(), pending.clone()], |_| false);
        ledger.conclude(&damaged, LayerState::Damaged(LayerFault { at: 1, kind: FaultKind::IndexSum }));
        ledger.conclude(&crafted, LayerState::Damaged(LayerFault { at: 1, kind: FaultKind::Public }));
        use RecordChecks::{Auto, Off, On};
        for (checks, has_private, expected) in [
            (Auto, false, Trust::Plain),
            (Auto, true, Trust::Checked),
            (On, false, Trust::Checked),
            (Off, true, Trust::Plain),
        ] {
            assert_eq!(ledger.trust(&pending, checks, has_private), expected, "{checks:?} {has_private}");
            assert_eq!(ledger.trust(&damaged, checks, has_private), Trust::Checked);
            assert_eq!(ledger.trust(&crafted, checks, has_private), Trust::Refused);
        }
    }

    #[test]
    fn the_verification_rests_as_long_as_its_rate_says_and_stops_on_request() {
        let ledger = VerificationLedger::default();
        ledger.begin(&[entry("a")], |_| false);
        ledger.set_rate(1 << 20);
        let begun = Instant::now();
        assert_eq!(ledger.rest(1 << 17, Duration::ZERO), ControlFlow::Continue(()));
        assert!(begun.elapsed() >= Duration::from_millis(125));
        assert_eq!(
            ledger.rest(1 << 17, Duration::from_secs(1)),
            ControlFlow::Continue(()),
            "it took long enough"
        );
        assert_eq!(ledger.next(), Some(entry("a")));
        std::thread::scope(|scope| {
            let rests = scope.spawn(|| ledger.rest(1 << 40, Duration::ZERO));
            ledger.stop();
            assert_eq!(rests.join().unwrap(), ControlFlow::Break(()));
        });
        assert_eq!(ledger.next(), None);
    }
}
