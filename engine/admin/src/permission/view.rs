//! What a decision sees: the records of the store, and what other services have said about records of theirs.
//!
//! A decision asks nobody. It takes note of what it would have to know, and who wants it decided asks for that and has
//! it decided again: so the writer, and everything else that decides, never waits for a network.

use crate::store::{RecordBuf, StoreError, StoreRecords, is_record_of_homed_prefix, is_responsible, key};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ValueBuf};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Something that another service would have to say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WantedFact {
    /// The value with this index, which may be a group.
    Group {
        /// The handle.
        handle: Vec<u8>,
        /// The index.
        index: i32,
    },
    /// The administrators of the prefix with this record.
    Administrators(Vec<u8>),
}

impl WantedFact {
    /// The handle that it is about.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        match self {
            Self::Group { handle, .. } | Self::Administrators(handle) => Handle(handle),
        }
    }
}

/// What other services have said: public values, none where there are none or nobody says.
#[derive(Clone, Debug, Default)]
pub struct RemoteFacts {
    answers: HashMap<WantedFact, Vec<ValueBuf>>,
    missing: RefCell<Vec<WantedFact>>,
    names_identity: Cell<bool>,
}

impl RemoteFacts {
    /// Takes in what was said.
    pub fn learn(&mut self, wanted: WantedFact, values: Vec<ValueBuf>) {
        self.answers.insert(wanted, values);
    }

    /// What decisions would have had to know since this was asked last, each once.
    pub fn take_missing(&self) -> Vec<WantedFact> {
        self.missing.take()
    }

    /// Whether a decision came across a reference to any value of the handle of who asks.
    #[must_use]
    pub fn names_identity(&self) -> bool {
        self.names_identity.get()
    }

    fn get(&self, wanted: WantedFact) -> &[ValueBuf] {
        if let Some(values) = self.answers.get(&wanted) {
            return values;
        }
        let mut missing = self.missing.borrow_mut();
        if !missing.contains(&wanted) {
            missing.push(wanted);
        }
        &[]
    }
}

/// What a decision sees.
pub struct DecisionView<'a, R> {
    /// The store.
    pub records: &'a R,
    /// Whether a handle is for this server of the service.
    has: &'a dyn Fn(Handle<'_>) -> bool,
    remote_facts: &'a RemoteFacts,
}

impl<'a, R: StoreRecords> DecisionView<'a, R> {
    /// The records of the store that `has` says are for this server, and what is `known` of others.
    pub const fn new(records: &'a R, has: &'a dyn Fn(Handle<'_>) -> bool, known: &'a RemoteFacts) -> Self {
        Self { records, has, remote_facts: known }
    }

    fn is_here(&self, handle: &[u8], key: &[u8]) -> Result<bool, StoreError> {
        Ok((self.has)(Handle(handle)) && is_responsible(self.records, key)?)
    }

    /// Calls `with` with the value that `reference` names, if it can be seen. In the store it counts whoever may read it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn value<T>(
        &self,
        reference: Reference<'_>,
        with: impl FnOnce(handle_proto::Value<'_>) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let key = key(reference.handle, self.records.folds());
        if self.is_here(reference.handle, &key)? {
            let record = self.records.record(&key)?;
            return Ok(record.and_then(|record| with(record.view().value(reference.index)?)));
        }
        // A copy of the record of a prefix need not have all that the registry has.
        if is_record_of_homed_prefix(self.records, &key)?
            && let Some(record) = self.records.record(&key)?
            && let Some(value) = record.view().value(reference.index)
        {
            return Ok(with(value));
        }
        let handle = Handle(reference.handle).prefix_folded();
        let values = self.remote_facts.get(WantedFact::Group { handle, index: reference.index });
        let value = values.iter().map(ValueBuf::view).find(|value| value.index == reference.index);
        Ok(value.and_then(with))
    }

    /// The record under `key`, whose administrators decide; of the record of a prefix that is not here, the values that
    /// are known. A record that is in the store counts, wherever its prefix is homed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn administrators(&self, key: &[u8], is_prefix: bool) -> Result<AdministratorValues<'a>, StoreError> {
        if let Some(record) = self.records.record(key)? {
            return Ok(AdministratorValues::Stored(record));
        }
        match is_prefix && !self.is_here(key, key)? {
            true => {
                Ok(AdministratorValues::Told(self.remote_facts.get(WantedFact::Administrators(key.to_vec()))))
            }
            false => Ok(AdministratorValues::Told(&[])),
        }
    }

    /// Takes note of a reference to a value of who asks.
    pub(super) fn note_named(&self, reference: &Reference<'_>, identity: Reference<'_>) {
        if Handle(reference.handle).is_same(Handle(identity.handle), false) {
            self.remote_facts.names_identity.set(true);
        }
    }
}

/// Values among which there may be administrators.
pub enum AdministratorValues<'a> {
    /// Those of a record of the store.
    Stored(RecordBuf),
    /// Those that another service has told.
    Told(&'a [ValueBuf]),
}

impl AdministratorValues<'_> {
    /// The values.
    pub fn values(&self) -> impl Iterator<Item = handle_proto::Value<'_>> {
        let (stored, told) = match self {
            Self::Stored(record) => (Some(record.view().values), &[][..]),
            Self::Told(values) => (None, *values),
        };
        stored.into_iter().flatten().chain(told.iter().map(ValueBuf::view))
    }
}
