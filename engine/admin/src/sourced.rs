//! The records of the store together with those that sources have ([`handle_source`]). A record in
//! the store takes precedence.
//!
//! A decision never asks a source. It notes each record that it lacks; the thread of the request
//! asks for it and decides again. So the writer never waits for a source.

use crate::operation::OperationRefusal;
use handle_proto::ResponseCode;
use handle_source::{GuardedSource, RecordSources, SourceError};
use handle_store::{RecordBuf, StoreError, StoreRecords};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Records of sources that one request may need: that of its handle, and those of administrators
/// and groups.
const RECORDS_MAX: usize = 16;

/// What sources have said for one request.
#[derive(Clone, Debug, Default)]
pub struct SourceFacts {
    sources: Option<Arc<RecordSources>>,
    /// Records by name; `None` for handles that do not exist.
    records: HashMap<Vec<u8>, Option<RecordBuf>>,
    missing: RefCell<BTreeSet<Vec<u8>>>,
}

impl SourceFacts {
    /// No facts yet, from `sources`.
    #[must_use]
    pub fn new(sources: Option<Arc<RecordSources>>) -> Self {
        Self { sources, ..Self::default() }
    }

    /// Asks for the records that decisions have missed; false if they missed none.
    ///
    /// # Errors
    /// When a source does not say.
    pub fn fetch_missing(&mut self) -> Result<bool, SourceError> {
        let missing = self.missing.take();
        let Some(sources) = self.sources.as_ref().filter(|_| !missing.is_empty()) else { return Ok(false) };
        for key in missing {
            if self.records.len() >= RECORDS_MAX {
                return Err(SourceError::Refused("a request needs too many records".to_owned()));
            }
            let Some(source) = sources.of(&key) else { continue };
            let record = source.record(&key)?;
            self.records.insert(key, record);
        }
        Ok(true)
    }

    /// Whether the last decision lacked a record; what it lacked is forgotten.
    pub fn take_incomplete(&self) -> bool {
        !self.missing.take().is_empty()
    }

    /// Where a change of the record of `key` is made.
    #[must_use]
    pub fn destination_of_change(&self, key: &[u8]) -> ChangeDestination<'_> {
        match (self.records.get(key), self.source(key)) {
            (Some(_), Some(source)) if source.is_writable() => ChangeDestination::Source(source),
            (Some(Some(_)), _) => ChangeDestination::Nowhere,
            _ => ChangeDestination::Store,
        }
    }

    /// These facts, with `record` as that of `key`.
    #[must_use]
    pub fn with(&self, key: &[u8], record: Option<&RecordBuf>) -> Self {
        let mut facts = self.clone();
        facts.records.insert(key.to_vec(), record.cloned());
        facts
    }

    fn source(&self, key: &[u8]) -> Option<&GuardedSource> {
        self.sources.as_ref()?.of(key)
    }

    fn get(&self, key: &[u8]) -> Option<RecordBuf> {
        if let Some(record) = self.records.get(key) {
            return record.clone();
        }
        if self.source(key).is_some() {
            self.missing.borrow_mut().insert(key.to_vec());
        }
        None
    }
}

/// Where a change is made.
#[derive(Clone, Copy, Debug)]
pub enum ChangeDestination<'s> {
    /// In the store: it has the record, or no source has it.
    Store,
    /// At this source.
    Source(&'s GuardedSource),
    /// The record is that of a source that is changed elsewhere.
    Nowhere,
}

/// The records of `R`, and those that a source has.
#[derive(Clone, Copy, Debug)]
pub struct SourcedRecords<'r, R> {
    records: &'r R,
    facts: &'r SourceFacts,
}

impl<'r, R: StoreRecords> SourcedRecords<'r, R> {
    /// Adds the records in `facts` to `records`.
    pub const fn new(records: &'r R, facts: &'r SourceFacts) -> Self {
        Self { records, facts }
    }
}

impl<R: StoreRecords> StoreRecords for SourcedRecords<'_, R> {
    fn folds(&self) -> bool {
        self.records.folds()
    }

    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
        Ok(self.records.record(key)?.or_else(|| self.facts.get(key)))
    }

    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        self.records.is_homed(prefix)
    }
}

/// The refusal of a request that a source would have to answer.
#[must_use]
pub fn source_refusal(error: &SourceError) -> OperationRefusal {
    match error {
        SourceError::Busy => OperationRefusal::new(
            ResponseCode::SERVER_BUSY,
            "Too many requests wait for the source of this record; ask again later.",
        ),
        SourceError::Conflict => {
            OperationRefusal::new(ResponseCode::SERVER_BUSY, "The handle was changed meanwhile; ask again.")
        }
        error if error.is_temporary() => OperationRefusal::new(
            ResponseCode::SERVER_BUSY,
            "The source of this record does not answer; ask again later.",
        ),
        _ => OperationRefusal::new(
            ResponseCode::ERROR,
            "The source of this record has not given a valid answer.",
        ),
    }
}

/// The refusal of a change of a record that only its source can make.
pub const READ_ONLY_SOURCE: OperationRefusal = OperationRefusal::new(
    ResponseCode::OPERATION_NOT_SUPPORTED,
    "This record comes from a source that is changed elsewhere.",
);

/// The refusal of a record without values at a source.
pub const NO_EMPTY_RECORDS: OperationRefusal = OperationRefusal::new(
    ResponseCode::INVALID_VALUE,
    "The source of this record stores handles with at least one value.",
);

/// The refusal where facts would be needed that have not been gathered.
pub const NOT_GATHERED: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "A record of a source is needed that was not asked for; ask again later.",
);

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Values;
    use handle_source::SourceConfig;
    use handle_store::{Store, StoreConfig};

    #[test]
    fn records_of_the_store_come_first_and_others_are_noted() {
        let store = Store::in_memory(&StoreConfig::default(), true).unwrap();
        store.change(|transaction| transaction.put(b"10.1/STORED", Values::EMPTY)).unwrap();
        let config = SourceConfig {
            name: "away".to_owned(),
            prefixes: vec!["10.1".to_owned()],
            url: "http://127.0.0.1:9/".to_owned(),
            ..SourceConfig::default()
        };
        let sources = Arc::new(RecordSources::open(&[config], true).unwrap());
        let (snapshot, mut facts) = (store.snapshot().unwrap(), SourceFacts::new(Some(sources)));
        let has = |facts: &SourceFacts, key: &[u8]| {
            SourcedRecords::new(&snapshot, facts).record(key).unwrap().is_some()
        };
        assert!(has(&facts, b"10.1/STORED") && !has(&facts, b"10.2/OTHER"));
        assert_eq!(facts.fetch_missing(), Ok(false), "nothing was missing");
        assert!(!has(&facts, b"10.1/A") && facts.take_incomplete() && !facts.take_incomplete());
        assert!(!has(&facts, b"10.1/A"));
        assert!(facts.fetch_missing().is_err_and(|error| error.is_silence()));
        facts.records.insert(b"10.1/A".to_vec(), Some(RecordBuf::unlogged(Values::EMPTY)));
        facts.records.insert(b"10.1/B".to_vec(), None);
        assert!(has(&facts, b"10.1/A") && !has(&facts, b"10.1/B") && !facts.take_incomplete());
        assert!(matches!(facts.destination_of_change(b"10.1/A"), ChangeDestination::Nowhere));
        for key in [&b"10.1/B"[..], b"10.1/STORED", b"10.2/OTHER"] {
            assert!(matches!(facts.destination_of_change(key), ChangeDestination::Store));
        }
        assert!(facts.with(b"10.1/A", None).records[&b"10.1/A"[..]].is_none());
        for at in facts.records.len()..RECORDS_MAX {
            facts.records.insert(format!("10.1/{at}").into_bytes(), None);
        }
        assert!(!has(&facts, b"10.1/ONEMORE"));
        assert!(matches!(facts.fetch_missing(), Err(SourceError::Refused(_))));
    }

    #[test]
    fn clients_ask_again_after_silence_and_not_after_a_wrong_answer() {
        for error in [
            SourceError::Busy,
            SourceError::Paused,
            SourceError::Late,
            SourceError::Unreachable("refused by 10.0.0.1".to_owned()),
            SourceError::Refused("no".to_owned()),
            SourceError::Conflict,
            SourceError::TooLong,
            SourceError::Invalid("a secret".to_owned()),
        ] {
            let refused = source_refusal(&error);
            let expected = if error.is_temporary() { ResponseCode::SERVER_BUSY } else { ResponseCode::ERROR };
            assert_eq!(refused.code, expected, "{error}");
            assert!(!refused.text.contains("10.0.0.1") && !refused.text.contains("secret"), "{error}");
        }
    }
}
