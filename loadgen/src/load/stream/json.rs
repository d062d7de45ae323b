//! The JSON API of handle servers: turns a JSON answer into the equivalent message.
//!
//! Answers can then be counted and verified byte for byte, like those of the handle protocol.

use handle_proto::json::record_from_json;
use handle_proto::wire::list::Values;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use serde_json::Value as Json;

/// The message that is equivalent to `body`, as the answer to `request_id`; `None` if the JSON is
/// not such an answer.
///
/// Contains values only with `with_values`.
#[must_use]
pub fn message(body: &[u8], request_id: i32, with_values: bool) -> Option<Vec<u8>> {
    let json: Json = serde_json::from_slice(body).ok()?;
    let code = ResponseCode(i32::try_from(json.get("responseCode")?.as_i64()?).ok()?);
    let mut content = Vec::new();
    if code == ResponseCode::SUCCESS && with_values {
        let record = record_from_json(&json).ok()?;
        let mut bytes = Vec::new();
        let views: Vec<_> = record.values.iter().map(|value| value.view()).collect();
        let values = Values::build(views, &mut bytes);
        QueryAnswer { handle: &record.handle, values }.encode(&mut content);
    }
    answer_message(code, &content, request_id)
}

/// A whole answer with this code and body; `None` if it is too long for a message.
pub(super) fn answer_message(code: ResponseCode, body: &[u8], request_id: i32) -> Option<Vec<u8>> {
    let len = u32::try_from(body.len()).ok()?;
    let header =
        Header { response_code: code, body_len: len, ..Header::request(OpCode::RESOLUTION, OpFlags(0), 0) };
    let message_len = u32::try_from(Header::LEN + body.len() + 4).ok()?;
    let envelope = Envelope { message_len, ..Envelope::request(request_id) };
    Some([&envelope.to_bytes()[..], &header.to_bytes(), body, &[0; 4]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::Message;

    #[test]
    fn json_becomes_the_equivalent_message() {
        let body = br#"{"responseCode":1,"handle":"10.1/a","values":[{"index":1,"type":"URL","data":{"format":"string","value":"http://x"},"ttl":86400,"timestamp":"2019-03-07T12:46:07Z"}]}"#;
        let bytes = message(body, 9, true).unwrap();
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        let decoded = Message::decode(rest).unwrap();
        let answer = QueryAnswer::decode(decoded.body).unwrap();
        assert_eq!((envelope.request_id, decoded.header.response_code), (9, ResponseCode::SUCCESS));
        assert_eq!((answer.handle, answer.values.len()), (&b"10.1/a"[..], 1));
        assert_eq!(answer.values.iter().next().map(|value| value.data), Some(&b"http://x"[..]));
        let absent = message(br#"{"responseCode":100,"handle":"10.1/a"}"#, 9, true).unwrap();
        let absent = Message::decode(&absent[Envelope::LEN..]).unwrap();
        assert_eq!(absent.header.response_code, ResponseCode::HANDLE_NOT_FOUND);
        for body in [&b""[..], b"{}", b"[]", br#"{"responseCode":1}"#, b"<html>"] {
            assert_eq!(message(body, 9, true), None, "{}", String::from_utf8_lossy(body));
        }
    }
}
