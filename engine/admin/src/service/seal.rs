//! Step 5: the response becomes messages.

use super::open::{OpenedRequest, OpeningFailure, ReplyLimits};
use super::reply::{ReplyTarget, unreadable};
use super::response::PreparedResponse;
use super::{AdminService, ListPages, ReplyMessages, forwarded};
use crate::operation::OperationAnswer;
use handle_proto::wire::session::SessionAnswer;
use handle_proto::{OpCode, OpFlags};
use std::sync::Arc;

impl AdminService {
    /// The messages that answer the request `opened`, within the limits of the way to the client.
    pub(super) fn seal(
        self: &Arc<Self>,
        opened: &OpenedRequest<'_>,
        to: ReplyTarget,
        response: PreparedResponse,
        limits: ReplyLimits,
        now_unix_s: u32,
    ) -> ReplyMessages {
        let keeps_connection = opened.flags().has(OpFlags::KEEP_CONNECTION);
        let to = to.showing(|| self.store.position());
        let response = match limits.resolves_referrals {
            true => self.resolve_referral(opened, to.origin().ip, response),
            false => response,
        };
        let (site, bounded) = (&self.decision.site(), limits.datagrams_max.map(|most| (most, to.clone())));
        let mut stream = None;
        let (mut first, mut rest) = match response {
            PreparedResponse::Answer(answer) => (self.sealer.answer(&to, site, &answer, now_unix_s), None),
            PreparedResponse::Challenge(id, pending) => {
                (self.sealer.challenge(&to, site, id, &pending, now_unix_s), None)
            }
            PreparedResponse::Session(id, mode, data) => {
                let answer = SessionAnswer { mode, data: &data };
                (self.sealer.session(&to, site, id, answer, now_unix_s), None)
            }
            PreparedResponse::Unreadable(refused) => {
                return ReplyMessages::last(unreadable(OpCode::RESERVED, &refused, now_unix_s));
            }
            PreparedResponse::Stream(begun) => {
                stream = Some(begun);
                (self.sealer.stream(&to, site, now_unix_s), None)
            }
            PreparedResponse::List(lister, snapshot) => {
                let mut pages = ListPages { service: Arc::clone(self), snapshot, lister, to, has_more: true };
                (pages.next_page().unwrap_or_default(), Some(pages))
            }
        };
        if let Some((most, to)) = bounded
            && forwarded::is_too_long(&first, rest.as_ref(), most)
        {
            let answer = OperationAnswer::Refused(forwarded::TOO_MANY_DATAGRAMS);
            (first, rest) = (self.sealer.answer(&to, site, &answer, now_unix_s), None);
        }
        ReplyMessages { first, rest, stream, keeps_connection }
    }

    /// The answer to a message that cannot be opened.
    pub(super) fn seal_failure(&self, failure: OpeningFailure, now_unix_s: u32) -> ReplyMessages {
        match failure {
            OpeningFailure::Dropped => ReplyMessages::last(Vec::new()),
            OpeningFailure::Answered(op_code, refused) => {
                self.counters.answered(OpCode::RESERVED, refused.code);
                ReplyMessages::last(unreadable(op_code, &refused, now_unix_s))
            }
        }
    }
}
