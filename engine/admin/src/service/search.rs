//! Searches for handles by the public values of their records.

use super::AdminService;
use super::decide::Decider;
use crate::audit::AuditLine;
use crate::index::config::IndexConfig;
use crate::operation::{OperationDecision, OperationRefusal, Requester};
use handle_local::bulk::BulkSearch;
use handle_proto::data::PREDEFINED_TYPES;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::printable::Printable;
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, OpCode, ResponseCode, fold};
use handle_store::{FoundHandles, SearchCondition, SearchError, StoreError, StoreSearch, ValuePattern};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most conditions of a search.
const CONDITIONS_MAX: usize = 16;

/// A search as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandleSearch<'a> {
    /// Types and patterns.
    pub conditions: Vec<(&'a [u8], &'a [u8])>,
    /// Only handles with this prefix; empty for all.
    pub prefix: &'a [u8],
    /// Where an earlier answer ended; empty at the beginning.
    pub after: &'a [u8],
    /// Maximum number of handles.
    pub handles: usize,
}

/// A part of what was found.
pub type FoundPage = Result<FoundHandles, OperationRefusal>;

impl<'a> From<&BulkSearch<'a>> for HandleSearch<'a> {
    fn from(search: &BulkSearch<'a>) -> Self {
        Self {
            conditions: search.conditions.clone(),
            prefix: search.prefix,
            after: search.after,
            handles: usize::try_from(search.handles).unwrap_or(usize::MAX),
        }
    }
}

impl HandleSearch<'_> {
    fn parse(&self, config: &IndexConfig) -> Result<StoreSearch, OperationRefusal> {
        let refuse =
            |text: String| OperationRefusal { code: ResponseCode::PROTOCOL_ERROR, text: text.into() };
        if self.conditions.len() > CONDITIONS_MAX {
            return Err(refuse(format!("A search has at most {CONDITIONS_MAX} conditions.")));
        }
        let mut conditions = Vec::with_capacity(self.conditions.len());
        for (kind, pattern) in &self.conditions {
            if !is_type(kind, config) {
                let (name, types) =
                    (Printable(&Handle(kind).to_string()).to_string(), config.types.join(", "));
                return Err(refuse(format!(
                    "{name} is neither a parameter of a search nor a known type; types with an index: {types}."
                )));
            }
            let pattern = ValuePattern::new(pattern).map_err(|error| refuse(sentence(&error.to_string())))?;
            conditions.push(SearchCondition { kind: kind.to_vec(), pattern });
        }
        let prefix = self.prefix.strip_prefix(PREFIX_RECORDS).unwrap_or(self.prefix);
        Ok(StoreSearch { conditions, prefix: Some(prefix.to_vec()).filter(|it| !it.is_empty()) })
    }
}

/// Whether a parameter names a type: one with an index, one that is predefined, or one
/// that is registered under a handle. Anything else is more likely a parameter of another server,
/// for which nothing would be found.
fn is_type(name: &[u8], config: &IndexConfig) -> bool {
    let is = |kind: &[u8]| fold::eq(kind, name);
    config.types.iter().any(|kind| is(kind.as_bytes()))
        || PREDEFINED_TYPES.iter().any(|predefined| is(predefined.name))
        || fold::starts_with(name, b"HS_")
        || name.contains(&b'/')
}

/// The text of an error as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(std::iter::once('.')).collect()
}

/// The rights of a caller to see handles, by prefix.
struct VisibleHandles<'s, 'c> {
    decider: Decider<'s, 'static>,
    caller: Reference<'c>,
    prefixes: HashMap<Vec<u8>, bool>,
    prefixes_max: usize,
    /// Whether the rights under a further prefix would have been needed.
    has_too_many: bool,
}

impl VisibleHandles<'_, '_> {
    /// Whether the caller may list the handles with the prefix of `handle`.
    fn includes(&mut self, handle: &[u8]) -> Result<bool, StoreError> {
        let prefix = fold::folded(Handle(handle).naming_authority());
        if let Some(&is_visible) = self.prefixes.get(&prefix) {
            return Ok(is_visible);
        }
        if self.prefixes.len() == self.prefixes_max {
            self.has_too_many = true;
            return Ok(false);
        }
        let record = [PREFIX_RECORDS, &prefix].concat();
        let is_visible = self.decider.may_list(&record, self.caller)?;
        self.prefixes.insert(prefix, is_visible);
        Ok(is_visible)
    }
}

impl AdminService {
    /// Searches for the caller of `handle-gateway`, who is `None` if there are no credentials.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn find(
        &self,
        caller: Option<Reference<'_>>,
        search: &BulkSearch<'_>,
        config: &IndexConfig,
    ) -> FoundPage {
        let asked = HandleSearch::from(search);
        let is_open = config.open || self.decision.in_force().rules.anonymous_full_access;
        let found = match caller {
            _ if is_open => self.find_all(&asked, config),
            Some(caller) => self.find_visible(&asked, config, caller, search.source),
            None => Err(OperationRefusal::new(
                ResponseCode::AUTHENTICATION_NEEDED,
                "A search needs an identity that may list handles.",
            )),
        };
        self.record_search(caller, search.source, search.prefix, &found);
        found
    }

    /// Searches among all handles.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn find_all(&self, search: &HandleSearch<'_>, config: &IndexConfig) -> FoundPage {
        let parsed = search.parse(config)?;
        let snapshot = self.store.snapshot().map_err(|error| self.store_refusal(&error))?;
        let after = Some(search.after).filter(|after| !after.is_empty());
        let found = snapshot.search(&parsed, after, config.bounds(search.handles), |_| Ok(true));
        found.map_err(|error| self.search_refusal(error))
    }

    /// Searches among the handles that `caller` may list.
    fn find_visible(
        &self,
        search: &HandleSearch<'_>,
        config: &IndexConfig,
        caller: Reference<'_>,
        source: IpAddr,
    ) -> FoundPage {
        let parsed = search.parse(config)?;
        if !self.decision.in_force().rules.lists_handles {
            let text = "This server does not list handles.";
            return Err(OperationRefusal::new(ResponseCode::OPERATION_NOT_SUPPORTED, text));
        }
        let decider = self.decider_without_request(source).map_err(|error| self.store_refusal(&error))?;
        let snapshot = Arc::clone(&decider.snapshot);
        let mut visible = VisibleHandles {
            decider,
            caller,
            prefixes: HashMap::new(),
            prefixes_max: config.prefixes,
            has_too_many: false,
        };
        let after = Some(search.after).filter(|after| !after.is_empty());
        let bounds = config.bounds(search.handles);
        let found = snapshot.search(&parsed, after, bounds, |handle| visible.includes(handle));
        let found = found.map_err(|error| self.search_refusal(error))?;
        if visible.has_too_many {
            let text = format!("The values are under more than {} prefixes: name one.", config.prefixes);
            return Err(OperationRefusal { code: ResponseCode::PROTOCOL_ERROR, text: text.into() });
        }
        Ok(found)
    }

    fn search_refusal(&self, error: SearchError) -> OperationRefusal {
        let code = match &error {
            SearchError::Store(error) => return self.store_refusal(error),
            SearchError::NoIndex(_) => ResponseCode::OPERATION_NOT_SUPPORTED,
            SearchError::Building(_) => ResponseCode::SERVER_BUSY,
            SearchError::NoCondition | SearchError::OtherSearch => ResponseCode::PROTOCOL_ERROR,
        };
        OperationRefusal { code, text: sentence(&error.to_string()).into() }
    }

    fn record_search(&self, caller: Option<Reference<'_>>, source: IpAddr, prefix: &[u8], found: &FoundPage) {
        let (code, text) = match found {
            Ok(_) => (ResponseCode::SUCCESS, ""),
            Err(refusal) => (refusal.code, &*refusal.text),
        };
        self.counters.searches.add();
        self.audit.write(&AuditLine {
            source: SocketAddr::new(source, 0),
            identity: caller,
            op_code: OpCode::LIST_HANDLES,
            handle: prefix,
            code,
            text,
            changed: false,
        });
    }
}

impl Decider<'_, '_> {
    /// Whether `caller` may list the handles of the prefix with this record.
    fn may_list(&mut self, record: &[u8], caller: Reference<'_>) -> Result<bool, StoreError> {
        let request = Request::ListHandles(HandleBody { handle: record });
        let decision = self.decide_other(request, Requester::Is(caller))?;
        Ok(matches!(decision, OperationDecision::List(_)))
    }
}
