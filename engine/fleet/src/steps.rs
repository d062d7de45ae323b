//! The steps that a publisher ships beside its sets, so that machines with an earlier set need not
//! download what they have.

use crate::store::{FleetStore, FleetStoreError, PutCondition};
use bytes::Bytes;
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::steps::{STEPS_MAX, SetStep, between, object_name, window};
use std::collections::VecDeque;
use std::path::Path;

/// Number of the last sets whose objects with steps stay in the store. A machine that has read an
/// older MANIFEST downloads whole layers.
const OBJECTS_KEPT: usize = 32;

/// The last steps of a publisher, and the objects that it has put into the store.
#[derive(Debug, Default)]
pub(crate) struct StepsWindow {
    /// Newest first.
    steps: VecDeque<SetStep>,
    /// Names of objects, newest first.
    objects: VecDeque<String>,
}

/// What was put into the store for a set whose MANIFEST is not there yet.
#[derive(Debug, Default)]
pub(crate) struct NewSteps {
    step: Option<SetStep>,
    object: Option<String>,
}

impl StepsWindow {
    /// Compares two sets in `dir`, puts an object with the steps to the new one into the store, and
    /// removes one that is no longer kept. Machines do without the object, so errors are only
    /// logged.
    pub(crate) fn put(
        &self,
        store: &dyn FleetStore,
        dir: &Path,
        old: &Manifest,
        new: &Manifest,
        len_max: usize,
    ) -> NewSteps {
        let Some(step) = between(dir, old, new, len_max) else { return NewSteps::default() };
        if step.described_count == 0 {
            return NewSteps { step: Some(step), object: None };
        }
        let object = window(&step, &self.steps, len_max);
        let name = object_name(new);
        let put = store.put(&name, Bytes::from(object), &PutCondition::Always);
        let object = log_error(put).map(|_| name);
        if let Some(last) = self.objects.get(OBJECTS_KEPT - 1) {
            log_error(store.remove(last));
        }
        NewSteps { step: Some(step), object }
    }

    /// Notes that the MANIFEST of the set is in the store.
    pub(crate) fn note_shipped(&mut self, new: NewSteps, len_max: usize) {
        if let Some(object) = new.object {
            self.objects.push_front(object);
            self.objects.truncate(OBJECTS_KEPT);
        }
        let Some(step) = new.step else {
            self.steps.clear();
            return;
        };
        self.steps.push_front(step);
        self.steps.truncate(STEPS_MAX);
        let mut len = 0;
        self.steps.retain(|step| {
            len += step.bytes.len();
            len <= len_max
        });
    }
}

fn log_error<T>(done: Result<T, FleetStoreError>) -> Option<T> {
    done.inspect_err(|error| tracing::debug!(%error, "steps are not shipped")).ok()
}
