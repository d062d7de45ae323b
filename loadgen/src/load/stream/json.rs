//! The JSON API of handle servers: sends a message as a GET, and turns the JSON answer into the
//! equivalent message.
//!
//! Answers can then be counted and verified byte for byte, like those of the handle protocol.

use std::fmt::Write as _;

use handle_proto::json::record_from_json;
use handle_proto::wire::list::Values;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use percent_encoding::{AsciiSet, percent_encode};
use serde_json::Value as Json;

use super::http::{IN_PATH, connection};
use crate::load::question::GeneratedQuestion;

/// The slash of a handle is a path separator in this API.
const IN_API_PATH: &AsciiSet = &IN_PATH.remove(b'/');

/// Appends a GET that is equivalent to `message`.
pub(super) fn write_get(message: &[u8], host: &str, keeps: bool, out: &mut Vec<u8>) {
    let mut path = "/api/handles/".to_owned();
    if let Some(question) = GeneratedQuestion::of_message(message) {
        path.extend(percent_encode(question.handle, IN_API_PATH));
        let mut mark = '?';
        let mut parameter = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string does not fail.
            let _ = write!(path, "{mark}{name}={value}");
            mark = '&';
        };
        for index in question.indexes.iter() {
            parameter("index", &index);
        }
        for kind in question.types.iter() {
            parameter("type", &percent_encode(kind, IN_PATH));
        }
        if !question.flags.has(OpFlags::PUBLIC_ONLY) {
            parameter("publicOnly", &false);
        }
    }
    let connection = connection(keeps);
    out.extend(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n").bytes());
}

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
    let len = u32::try_from(content.len()).ok()?;
    let header =
        Header { response_code: code, body_len: len, ..Header::request(OpCode::RESOLUTION, OpFlags(0), 0) };
    let message_len = u32::try_from(Header::LEN + content.len() + 4).ok()?;
    let envelope = Envelope { message_len, ..Envelope::request(request_id) };
    Some([&envelope.to_bytes()[..], &header.to_bytes(), &content, &[0; 4]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::question::QuestionForm;
    use crate::load::workload::RequestSampler;
    use crate::random::RandomGenerator;
    use handle_proto::wire::Message;

    fn get(name: &[u8], form: &str) -> String {
        let forms: Vec<QuestionForm> = vec![form.parse().unwrap()];
        let mut sampler = RequestSampler::new(1, 1);
        sampler.for_forms(&forms, 512);
        sampler.offer(name);
        let workload = sampler.finish_as(&forms, OpFlags(0), 0).unwrap();
        let mut room = [0; 512];
        let len = workload.write_request(workload.ask(0, &mut RandomGenerator::new(1, 0)), 1, &mut room);
        let mut out = Vec::new();
        write_get(&room[..len], "host:1", true, &mut out);
        String::from_utf8(out).unwrap().lines().next().unwrap().to_owned()
    }

    #[test]
    fn what_a_message_asks_is_in_the_path() {
        assert_eq!(get(b"10.1/a b?c#d%e", "plain"), "GET /api/handles/10.1/a%20b%3Fc%23d%25e HTTP/1.1");
        assert_eq!(
            get("10.1/\u{e4}(x);y".as_bytes(), "plain"),
            "GET /api/handles/10.1/%C3%A4(x)%3By HTTP/1.1"
        );
        assert_eq!(
            get(b"10.1/a", "index:3+type:URL+type:A&B+all"),
            "GET /api/handles/10.1/a?index=3&type=URL&type=A%26B&publicOnly=false HTTP/1.1"
        );
    }

    #[test]
    fn json_becomes_the_message_it_stands_for() {
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
