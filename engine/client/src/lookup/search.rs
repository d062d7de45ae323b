//! Gathers the sites of a service: from the record of a prefix or a referral, and from the records
//! that these name. RFC 3651 section 3.2.4 for services by reference.

use super::LookupError;
use super::context::{LookupContext, PartSignal, PartStep};
use crate::Question;
use crate::question::AnswerWants;
use crate::service::{Kinds, SITES_MAX, ServiceSites, SharedSite, add_once};
use crate::trace::QuestionReason;
use handle_proto::name::ROOT;
use handle_proto::wire::referral::Referral;
use handle_proto::{Handle, ResponseCode, fold};
use std::collections::VecDeque;

/// A query that a search needs.
#[derive(Debug)]
pub(super) struct NeededRecord {
    pub(super) question: Question,
    pub(super) reason: QuestionReason,
    pub(super) recursion_count: u8,
}

/// The search for the sites of a service.
#[derive(Debug)]
pub(super) struct ServiceSearch {
    /// The record that names the service: that of the prefix, or the handle of the referral.
    record: Vec<u8>,
    kinds: Kinds,
    wants: AnswerWants,
    recursion_count: u8,
    sites: Vec<SharedSite>,
    /// Records still to query, with their distance from the first.
    services: VecDeque<(Vec<u8>, usize)>,
    /// Records that were queried or will be.
    seen: Vec<Vec<u8>>,
    current: SearchStep,
    /// Whether the record was queried at a primary site, because the prefix may be new.
    tried_primary: bool,
    /// The response code for the record itself.
    code: Option<ResponseCode>,
    reason: QuestionReason,
    last: Option<LookupError>,
}

/// The current query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchStep {
    /// None: the record is known, or not needed.
    Nothing,
    /// The record.
    Record,
    /// A further record, with its distance from the first.
    Service(usize),
}

impl ServiceSearch {
    /// Searches for the service of a prefix.
    pub(super) fn of_prefix(record: Vec<u8>, wants: AnswerWants, recursion_count: u8) -> Self {
        Self::new(record, Kinds::Service, wants, recursion_count, QuestionReason::Prefix)
    }

    fn new(
        record: Vec<u8>,
        kinds: Kinds,
        wants: AnswerWants,
        recursion_count: u8,
        reason: QuestionReason,
    ) -> Self {
        Self {
            record,
            kinds,
            // Of the caller's wishes, only the signature matters for these queries.
            wants: AnswerWants { authoritative: false, public_only: true, ..wants },
            recursion_count: recursion_count.saturating_add(1),
            sites: vec![],
            services: VecDeque::new(),
            seen: vec![],
            current: SearchStep::Record,
            tried_primary: false,
            code: None,
            reason,
            last: None,
        }
    }

    /// Searches for the service that a referral names: by its values, or else by its handle. For a
    /// prefix referral plain sites count if there are none for prefixes.
    pub(super) fn of_referral(
        question: &Question,
        code: ResponseCode,
        referral: &Referral<'_>,
        recursion_count: u8,
    ) -> Self {
        let mut kinds = match code {
            ResponseCode::PREFIX_REFERRAL => Kinds::Delegation,
            _ => Kinds::Service,
        };
        let gather = |kinds| ServiceSites::gather(referral.values.into_iter().flatten(), kinds);
        let mut found = gather(kinds);
        if found.is_empty() && kinds == Kinds::Delegation && !gather(Kinds::Service).sites.is_empty() {
            kinds = Kinds::Service;
            found = gather(kinds);
        }
        let record = referral.handle.to_vec();
        let mut search = Self::new(record, kinds, question.wants, recursion_count, QuestionReason::Referral);
        if !found.is_empty() || referral.handle.is_empty() {
            search.current = SearchStep::Nothing;
        }
        search.add(found, 0);
        search
    }

    pub(super) fn record(&self) -> &[u8] {
        &self.record
    }

    /// Whether it searches for the service that `record` names. A referral without a handle has no
    /// record.
    pub(super) fn is_for(&self, record: &[u8]) -> bool {
        !record.is_empty() && Handle(record).is_same(Handle(&self.record), true)
    }

    fn add(&mut self, found: ServiceSites, depth: usize) {
        found.sites.into_iter().for_each(|site| add_once(&mut self.sites, site));
        for service in found.services {
            let folded = Handle(&service).prefix_folded();
            if self.seen.len() < SITES_MAX && !self.seen.contains(&folded) {
                self.seen.push(folded);
                self.services.push_back((service, depth));
            }
        }
    }

    pub(super) fn step(&mut self, lookup: &LookupContext, signal: PartSignal) -> PartStep<NeededRecord> {
        match signal {
            PartSignal::Begin | PartSignal::Sites(_) => {
                if self.current == SearchStep::Record {
                    return self.query_record();
                }
            }
            PartSignal::Answer(answer) => {
                if answer.code == ResponseCode::SUCCESS {
                    let found = ServiceSites::gather(answer.values(), self.kinds);
                    let depth = match self.current {
                        SearchStep::Service(depth) => depth + 1,
                        _ => 0,
                    };
                    if depth <= lookup.client.limits.nesting_max {
                        self.add(found, depth);
                    }
                }
                if !matches!(self.current, SearchStep::Service(_)) {
                    self.code = Some(answer.code);
                }
            }
            // A failure of the primary site matters less than the answers of the others.
            PartSignal::Failed(_) if self.tried_primary && self.current == SearchStep::Record => {}
            // A branch may fail if another one leads to sites.
            PartSignal::Failed(error) => self.last = Some(error),
        }
        self.next_query(lookup)
    }

    fn query_record(&mut self) -> PartStep<NeededRecord> {
        self.current = SearchStep::Record;
        let mut question = Question {
            handle: self.record.clone(),
            types: self.kinds.types(self.reason == QuestionReason::Prefix),
            wants: self.wants,
            indexes: vec![],
        };
        question.wants.authoritative = self.tried_primary;
        self.query(question, self.reason)
    }

    const fn query(&self, question: Question, reason: QuestionReason) -> PartStep<NeededRecord> {
        PartStep::After(NeededRecord { question, reason, recursion_count: self.recursion_count })
    }

    /// Queries the next record, or returns the sites when all are known.
    fn next_query(&mut self, lookup: &LookupContext) -> PartStep<NeededRecord> {
        while let Some((service, depth)) = self.services.pop_front() {
            if fold::eq(&service, ROOT) && self.kinds == Kinds::Service {
                let root = lookup.client.root.get();
                root.sites.iter().for_each(|site| add_once(&mut self.sites, site.clone()));
                continue;
            }
            self.current = SearchStep::Service(depth);
            let types = self.kinds.types(false);
            let question = Question { handle: service, types, wants: self.wants, indexes: vec![] };
            return self.query(question, QuestionReason::Service);
        }
        if !self.sites.is_empty() {
            return PartStep::Done(PartSignal::Sites(std::mem::take(&mut self.sites)));
        }
        // The prefix may be new, and a mirror may not have its record yet.
        if self.reason == QuestionReason::Prefix && self.code.is_some() && !self.tried_primary {
            self.tried_primary = true;
            return self.query_record();
        }
        PartStep::failed(self.last.take().unwrap_or_else(|| LookupError::NoService {
            record: std::mem::take(&mut self.record),
            code: self.code.filter(|&code| code != ResponseCode::SUCCESS),
        }))
    }
}
