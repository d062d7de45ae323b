//! The data a decision reads: the records of the store, and the facts received from other services.
//!
//! A decision never asks other services. It notes each missing fact; the caller asks for it and
//! decides again. So the writer, and every other thread that decides, never waits for a network.

use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ValueBuf};
use handle_store::{RecordBuf, StoreError, StoreRecords, is_record_of_homed_prefix, is_responsible, key};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// A fact that only another service can provide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WantedFact {
    /// The value with this index, which may be a group.
    Group {
        /// The handle of the value.
        handle: Vec<u8>,
        /// The index of the value.
        index: i32,
    },
    /// The administrators of the prefix with this record.
    Administrators(Vec<u8>),
}

impl WantedFact {
    /// The handle that the fact is about.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        match self {
            Self::Group { handle, .. } | Self::Administrators(handle) => Handle(handle),
        }
    }
}

/// Facts received from other services: public values; an empty list if there are none or no service
/// answered.
#[derive(Clone, Debug, Default)]
pub struct RemoteFacts {
    answers: HashMap<WantedFact, Vec<ValueBuf>>,
    missing: RefCell<Vec<WantedFact>>,
    names_identity: Cell<bool>,
}

impl RemoteFacts {
    /// Stores the answer to `wanted`.
    pub fn learn(&mut self, wanted: WantedFact, values: Vec<ValueBuf>) {
        self.answers.insert(wanted, values);
    }

    /// The facts that decisions missed since the last call, each once.
    pub fn take_missing(&self) -> Vec<WantedFact> {
        self.missing.take()
    }

    /// Whether a decision came across a reference to any value of the requester's handle.
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

/// The data a decision reads.
pub struct DecisionView<'a, R> {
    /// The store.
    pub records: &'a R,
    /// Whether this server of the site is responsible for a handle.
    has: &'a dyn Fn(Handle<'_>) -> bool,
    remote_facts: &'a RemoteFacts,
}

impl<'a, R: StoreRecords> DecisionView<'a, R> {
    /// A view of the records for which `has` is true, and of the facts `known` about other records.
    pub const fn new(records: &'a R, has: &'a dyn Fn(Handle<'_>) -> bool, known: &'a RemoteFacts) -> Self {
        Self { records, has, remote_facts: known }
    }

    fn is_here(&self, handle: &[u8], key: &[u8]) -> Result<bool, StoreError> {
        Ok((self.has)(Handle(handle)) && is_responsible(self.records, key)?)
    }

    /// Calls `with` with the value that `reference` names, if the view has it. Read permissions of
    /// values in the store are ignored.
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
        // A stored copy of the record of a prefix may lack values that the registry has.
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

    /// The administrators in the record under `key`, which decides; for the record of a prefix that
    /// is not in the store, the values received from other services. A record in the store counts
    /// wherever its prefix is homed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn administrators(&self, key: &[u8], is_prefix: bool) -> Result<AdministratorValues<'a>, StoreError> {
        if let Some(record) = self.records.record(key)? {
            return Ok(AdministratorValues::Stored(record));
        }
        match is_prefix && !self.is_here(key, key)? {
            true => Ok(AdministratorValues::Remote(
                self.remote_facts.get(WantedFact::Administrators(key.to_vec())),
            )),
            false => Ok(AdministratorValues::Remote(&[])),
        }
    }

    /// Notes a reference to a value of the requester's handle.
    pub(super) fn note_named(&self, reference: &Reference<'_>, identity: Reference<'_>) {
        if Handle(reference.handle).is_same(Handle(identity.handle), false) {
            self.remote_facts.names_identity.set(true);
        }
    }
}

/// Values that may include administrators.
pub enum AdministratorValues<'a> {
    /// The values of a record in the store.
    Stored(RecordBuf),
    /// The values received from another service.
    Remote(&'a [ValueBuf]),
}

impl AdministratorValues<'_> {
    /// The values.
    pub fn values(&self) -> impl Iterator<Item = handle_proto::Value<'_>> {
        let (stored, remote) = match self {
            Self::Stored(record) => (Some(record.view().values), &[][..]),
            Self::Remote(values) => (None, *values),
        };
        stored.into_iter().flatten().chain(remote.iter().map(ValueBuf::view))
    }
}
