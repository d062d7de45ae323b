//! Requests for records that are not in the cache: they wait, outside of all threads, until the
//! cache has asked other services, and are then answered as if the record had been there.

use super::SlowPath;
use super::job_context::JobContext;
use super::queue::SlowJob;
use super::resolution::{MissingState, Resolution};
use super::session_proof::SessionProof;
use crate::cache::{BatchCache, ServerCache};
use handle_daemon::clock::now_unix_s;
use handle_proto::limit::SERVER_RECURSION_MAX;
use handle_proto::wire::{Body, Envelope, Header, Message};
use handle_proto::{OpFlags, ResponseCode};
use handle_resolver::slow::SlowPathRequest;
use handle_resolver::{
    AnswerContext, CachedLookup, RecordCache, RefusalReason, ReplyParts, StagedCacheLookup, refuse_listing,
};
use handle_snapshot::EncodedRecord;
use handle_snapshot::map::MappedFile;
use std::sync::Arc;

/// What is known about the records of other services while one request is answered.
#[derive(Debug)]
pub(crate) enum RequestCache<'j> {
    /// The resolution of the one handle that the request is about.
    Resolved(&'j MissingState),
    /// What is in the cache.
    Cached(BatchCache<'j>),
}

impl<'j> RequestCache<'j> {
    /// For a request that goes on, or that is looked at for the first time; `None` without a cache.
    pub(crate) fn of(
        missing: Option<&'j MissingState>,
        cache: Option<&'j dyn ServerCache>,
        copies: &'j mut [u8],
    ) -> Option<Self> {
        match missing {
            Some(state) if state.resolution.is_some() => Some(Self::Resolved(state)),
            _ => cache.map(|cache| Self::Cached(BatchCache::new(cache, copies, now_unix_s()))),
        }
    }

    /// The state of a request that goes on.
    pub(crate) const fn resumed(&self) -> Option<&'j MissingState> {
        match self {
            Self::Resolved(state) => Some(state),
            Self::Cached(_) => None,
        }
    }
}

impl RecordCache for RequestCache<'_> {
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]) {
        if let Self::Cached(cached) = self {
            cached.prefetch(lookups);
        }
    }

    fn find<'c>(&'c self, lookups: &mut [StagedCacheLookup<'c>]) {
        let state = match self {
            Self::Resolved(state) => state,
            Self::Cached(cached) => return cached.find(lookups),
        };
        for lookup in lookups.iter_mut().filter(|lookup| lookup.handle.0 == &*state.handle) {
            lookup.known = match &state.resolution {
                Some(Resolution::Record { values, count }) => {
                    CachedLookup::Record(EncodedRecord::of_public_values(values, *count))
                }
                Some(Resolution::NoHandle) => CachedLookup::NoHandle,
                Some(Resolution::Failed(_) | Resolution::Relayed(_)) | None => CachedLookup::Unknown,
            };
        }
    }
}

impl SlowJob {
    /// The answer of the service to which the request was handed.
    pub(crate) fn relayed_answer(&self) -> Option<Arc<[u8]>> {
        match &self.missing.as_ref()?.resolution {
            Some(Resolution::Relayed(message)) => Some(Arc::clone(message)),
            _ => None,
        }
    }

    /// Stores this answer, with the signature of this server if the request asks for one.
    pub(crate) fn put_relayed(&mut self, relayed: &[u8], path: &SlowPath) {
        let header = |message: &[u8]| Some(Header::split(message.get(Envelope::LEN..)?).ok()?.0);
        self.missing = None;
        let mut message = relayed.to_vec();
        if header(&self.request).is_some_and(|header| header.flags.has(OpFlags::CERTIFY)) {
            path.sign_late(&mut message, self.route.origin());
        }
        let code = header(&message).map_or(ResponseCode::ERROR, |header| header.response_code);
        (self.code, self.refused) = (code, None);
        self.put_answer(&message);
    }
}

impl JobContext<'_> {
    /// Lets the request wait until the service that is responsible for `handle` has answered it,
    /// and returns why there is no other answer.
    pub(crate) fn relay(&self, handle: &[u8]) -> RefusalReason {
        match self.resumed {
            Some(MissingState { resolution: Some(Resolution::Failed(refused)), .. }) => return *refused,
            Some(_) => return RefusalReason::NotResolved,
            // What the client protects by its session with this server would travel on unprotected.
            None if self.session.is_some() => return RefusalReason::NotHomed,
            None if !self.origin.is_connected => return RefusalReason::OverTcp,
            None => {}
        }
        self.missing.set(Some(Box::new(MissingState {
            handle: handle.into(),
            is_authoritative: false,
            recursion_count: 0,
            is_relayed: true,
            proof: SessionProof::None,
            resolution: None,
        })));
        RefusalReason::NotResolved
    }

    /// Hands a request that changes records to the responsible service. The reply says why it is
    /// not handed over, if so.
    pub(crate) fn administer<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        envelope: Envelope,
        rest: &'a [u8],
    ) -> ReplyParts<'a> {
        let message = Message::decode(rest).ok();
        let body = message.and_then(|message| message.decode_body(envelope.version).ok());
        let refused = match (message, body) {
            (Some(message), Some(Body::Request(request))) if message.header.flags.has(OpFlags::RECURSIVE) => {
                self.relay(request.handle().unwrap_or_default())
            }
            _ => RefusalReason::NotHomed,
        };
        refuse_listing(context, envelope, rest, refused)
    }

    /// Lets the request wait for its record, or says why it does not.
    pub(crate) fn await_record<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
    ) -> ReplyParts<'a> {
        match self.resumed {
            Some(MissingState { resolution: Some(Resolution::Failed(refused)), .. }) => {
                return slow.refuse(context, *refused);
            }
            Some(_) => return slow.refuse(context, RefusalReason::NotResolved),
            // The client wants to ask other services itself.
            None if !slow.allows_recursion() => return slow.refuse(context, RefusalReason::NotHomed),
            None if !slow.is_public() => {
                let refused = self.relay(slow.handle());
                return slow.refuse(context, refused);
            }
            None if slow.recursion_count() >= SERVER_RECURSION_MAX => {
                return slow.refuse(context, RefusalReason::TooManyServers);
            }
            None => {}
        }
        self.missing.set(Some(Box::new(MissingState {
            handle: slow.handle().into(),
            is_authoritative: slow.is_authoritative(),
            recursion_count: slow.recursion_count(),
            is_relayed: false,
            proof: if self.has_mac.get() { SessionProof::Mac } else { SessionProof::None },
            resolution: None,
        })));
        slow.refuse(context, RefusalReason::NotResolved)
    }
}
