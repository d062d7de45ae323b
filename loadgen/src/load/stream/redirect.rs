//! Redirects: turns the answer of a proxy into an equivalent message.
//!
//! A redirect is an answer with one value, whose index is the status and whose data is the target.
//! Answers can then be counted and verified as those of the handle protocol.

use handle_proto::wire::list::Values;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::{ResponseCode, Value};

use super::json::answer_message;

/// The type of the value that represents a redirect.
pub const LOCATION: &[u8] = b"Location";

/// The response code for an answer with this status.
///
/// A page about a record means that it has no location, as RC 200 means that it has no such values.
#[must_use]
pub const fn response_code(status: u16, has_location: bool) -> ResponseCode {
    match status {
        301..=303 | 307 | 308 if has_location => ResponseCode::SUCCESS,
        200 => ResponseCode::VALUES_NOT_FOUND,
        400 => ResponseCode::SERVER_NOT_RESPONSIBLE,
        401 => ResponseCode::AUTHENTICATION_NEEDED,
        403 => ResponseCode::INSUFFICIENT_PERMISSIONS,
        404 | 410 => ResponseCode::HANDLE_NOT_FOUND,
        429 | 503 => ResponseCode::SERVER_BUSY,
        500..=599 => ResponseCode::ERROR,
        _ => ResponseCode::PROTOCOL_ERROR,
    }
}

/// The message that represents an answer about `handle`, as the answer to `request_id`; `None` if
/// it is too long for a message.
#[must_use]
pub fn message(status: u16, location: Option<&[u8]>, handle: &[u8], request_id: i32) -> Option<Vec<u8>> {
    let code = response_code(status, location.is_some());
    let mut body = Vec::new();
    if code == ResponseCode::SUCCESS {
        let mut bytes = Vec::new();
        let value = Value::new(i32::from(status), LOCATION, location.unwrap_or_default());
        QueryAnswer { handle, values: Values::build([value], &mut bytes) }.encode(&mut body);
    }
    answer_message(code, &body, request_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::{Envelope, Message};

    #[test]
    fn a_redirect_is_a_value_with_its_status_and_target() {
        let bytes = message(302, Some(b"https://example.org/"), b"10.1/a", 7).unwrap();
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        let answer = Message::decode(rest).unwrap();
        let body = QueryAnswer::decode(answer.body).unwrap();
        let value = body.values.iter().next().unwrap();
        assert_eq!((envelope.request_id, answer.header.response_code), (7, ResponseCode::SUCCESS));
        assert_eq!(
            (body.handle, value.index, value.data),
            (&b"10.1/a"[..], 302, &b"https://example.org/"[..])
        );
    }

    #[test]
    fn every_status_has_a_code() {
        for (status, code) in [
            (200, ResponseCode::VALUES_NOT_FOUND),
            (304, ResponseCode::PROTOCOL_ERROR),
            (400, ResponseCode::SERVER_NOT_RESPONSIBLE),
            (404, ResponseCode::HANDLE_NOT_FOUND),
            (500, ResponseCode::ERROR),
            (503, ResponseCode::SERVER_BUSY),
        ] {
            assert_eq!(response_code(status, true), code, "{status}");
        }
        assert_eq!(response_code(302, false), ResponseCode::PROTOCOL_ERROR, "a redirect to nowhere");
    }
}
