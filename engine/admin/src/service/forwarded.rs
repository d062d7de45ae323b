//! Answers that depend on the way to the client: for clients behind `handled`, referrals are
//! resolved and answers over UDP are bounded.

use super::open::OpenedRequest;
use super::response::PreparedResponse;
use super::{AdminService, ListPages};
use crate::operation::{NO_VALUES, NOT_FOUND, OperationAnswer, OperationRefusal, encoded};
use crate::referral::{ReferralFailure, UNDERSTOOD_SINCE};
use handle_proto::limit::{SERVER_RECURSION_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::{Envelope, Request};
use handle_proto::{OpFlags, ResponseCode, ValueBuf, Values};
use std::net::IpAddr;

/// The answer if the real one takes too many datagrams.
pub(super) const TOO_MANY_DATAGRAMS: OperationRefusal = OperationRefusal::new(
    ResponseCode::ERROR,
    "The answer takes too many datagrams; ask over TCP, or by index or type.",
);
const TOO_MANY_RESOLUTIONS: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many handles of other services are being resolved; ask again later.",
);
const RECURSION_TOO_DEEP: OperationRefusal = OperationRefusal::new(
    ResponseCode::RECURSION_COUNT_TOO_HIGH,
    "The request has come through too many servers.",
);

impl AdminService {
    /// The response that replaces a referral which the client would not understand.
    pub(super) fn resolve_referral(
        &self,
        opened: &OpenedRequest<'_>,
        source: IpAddr,
        response: PreparedResponse,
    ) -> PreparedResponse {
        let (Some(referrals), PreparedResponse::Answer(OperationAnswer::Referral(count, bytes))) =
            (self.decision.referrals(), &response)
        else {
            return response;
        };
        let Request::Resolution(query) = opened.request else { return response };
        let needs_answer = opened.version < UNDERSTOOD_SINCE && opened.flags().has(OpFlags::RECURSIVE);
        let values = Values::from_encoded(*count, bytes).ok().filter(|_| needs_answer);
        let Some(values) = values else { return response };
        let recursion_count = opened.message.header.recursion_count;
        if recursion_count >= SERVER_RECURSION_MAX {
            return RECURSION_TOO_DEEP.into();
        }
        let values = values.iter().map(|value| ValueBuf::from(&value)).collect();
        match referrals.resolve(source, &query, values, recursion_count) {
            Ok(answer) if answer.code == ResponseCode::HANDLE_NOT_FOUND => NOT_FOUND.into(),
            Ok(answer) if answer.values().iter().next().is_none() => NO_VALUES.into(),
            Ok(answer) => {
                let (count, bytes) = encoded(answer.values().iter());
                OperationAnswer::Values(query.handle.to_vec(), count, bytes).into()
            }
            Err(ReferralFailure::Busy) => TOO_MANY_RESOLUTIONS.into(),
            Err(ReferralFailure::Unanswered) => response,
        }
    }
}

/// Whether an answer is too long for the `most` datagrams that are allowed.
pub(super) fn is_too_long(first: &[u8], rest: Option<&ListPages>, most: u16) -> bool {
    let datagrams = first.len().saturating_sub(Envelope::LEN).div_ceil(UDP_DATA_LEN_MAX);
    datagrams > most.into() || rest.is_some_and(ListPages::has_more)
}
