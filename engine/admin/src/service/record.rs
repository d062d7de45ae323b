//! Counters and audit log of answered requests.

use super::AdminService;
use super::case::RequestCase;
use super::response::{PreparedResponse, RequestIdentity};
use crate::audit::AuditLine;
use crate::operation::OperationAnswer;
use handle_proto::ResponseCode;

impl AdminService {
    /// Counts a response and writes it to the audit log.
    pub(super) fn record(
        &self,
        case: &RequestCase<'_>,
        identity: RequestIdentity<'_>,
        response: &PreparedResponse,
    ) {
        let op_code = case.opened.op_code();
        let (code, text) = match response {
            PreparedResponse::Answer(OperationAnswer::Refused(refused))
            | PreparedResponse::Unreadable(refused) => (refused.code, &*refused.text),
            PreparedResponse::Challenge(..) => (ResponseCode::AUTHENTICATION_NEEDED, ""),
            PreparedResponse::Answer(_)
            | PreparedResponse::List(..)
            | PreparedResponse::Stream(_)
            | PreparedResponse::Session(..) => (ResponseCode::SUCCESS, ""),
        };
        self.counters.answered(op_code, code);
        let (identity, is_of_interest) = match identity {
            // Refused anonymous requests could fill the disk with audit lines.
            RequestIdentity::Unidentified => (None, op_code.is_admin() && code == ResponseCode::SUCCESS),
            RequestIdentity::Known(identity) => (Some(identity), op_code.is_admin()),
            RequestIdentity::Claimed(identity) => (Some(identity), true),
        };
        let is_left_out = match response {
            PreparedResponse::Challenge(..) => true,
            PreparedResponse::Stream(stream) => stream.is_repeated(),
            _ => false,
        };
        if is_of_interest && !is_left_out {
            let handle = match response {
                PreparedResponse::Answer(OperationAnswer::Created(handle, _)) => handle,
                _ => case.opened.request.handle().unwrap_or_default(),
            };
            let changed = matches!(response, PreparedResponse::Answer(answer) if answer.effect().changed);
            let source = case.source;
            self.audit.write(&AuditLine { source, identity, op_code, handle, code, text, changed });
        }
    }
}
