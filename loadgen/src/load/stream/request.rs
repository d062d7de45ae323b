//! HTTP requests to a resolver or gateway for a question.

use std::fmt::Write as _;
use std::io::Write as _;

use handle_proto::OpFlags;
use handle_proto::wire::Envelope;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::load::question::GeneratedQuestion;
use crate::load::transport::Protocol;

/// The media type of the handle protocol.
pub(super) const MEDIA_TYPE: &str = "application/x-hdl-message";

/// Bytes that stay unencoded in a path; the slash of a handle is encoded where it would be a path
/// separator.
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'(').remove(b')');

/// The same where the slash of a handle is a path separator.
const IN_HANDLE_PATH: &AsciiSet = &IN_PATH.remove(b'/');

/// A request over any version of HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest<'a> {
    /// Path and query.
    pub(super) path: String,
    /// The body of a POST; without one it is a GET.
    pub(super) body: Option<&'a [u8]>,
}

impl<'a> HttpRequest<'a> {
    /// The request over `protocol` that is equivalent to `message`.
    pub(super) fn of(protocol: Protocol, message: &'a [u8]) -> Self {
        let question = GeneratedQuestion::of_message(message);
        match protocol {
            Protocol::Json => Self { path: path_of("/api/handles/", question), body: None },
            Protocol::Redirect => Self { path: path_of("/", question), body: None },
            Protocol::Http | Protocol::Tcp => {
                debug_assert!(message.len() >= Envelope::LEN, "a whole message has an envelope");
                let path = question.map_or_else(
                    || "/%2F".to_owned(),
                    |question| format!("/{}", percent_encode(question.handle, IN_PATH)),
                );
                Self { path, body: Some(message) }
            }
        }
    }

    /// Appends the request as HTTP/1.1.
    pub(super) fn write_http1(&self, host: &str, keeps: bool, out: &mut Vec<u8>) {
        let connection = if keeps { "keep-alive" } else { "close" };
        let path = &self.path;
        // Writing to a vector does not fail.
        let _ = match self.body {
            None => write!(out, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n"),
            Some(body) => write!(
                out,
                "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {MEDIA_TYPE}\r\n\
                 Content-Type: {MEDIA_TYPE}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
                body.len()
            ),
        };
        out.extend_from_slice(self.body.unwrap_or_default());
    }
}

/// The path of a handle below `base`, with the selected values in its query.
fn path_of(base: &str, question: Option<GeneratedQuestion<'_>>) -> String {
    let mut path = base.to_owned();
    let Some(question) = question else { return path };
    path.extend(percent_encode(question.handle, IN_HANDLE_PATH));
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
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::question::QuestionForm;
    use crate::load::workload::RequestSampler;
    use crate::random::RandomGenerator;

    fn first_line(protocol: Protocol, name: &[u8], form: &str) -> String {
        let forms: Vec<QuestionForm> = vec![form.parse().unwrap()];
        let mut sampler = RequestSampler::new(1, 1);
        sampler.for_forms(&forms, 512);
        sampler.offer(name);
        let workload = sampler.finish_as(&forms, OpFlags(0), 0).unwrap();
        let mut buffer = [0; 512];
        let len = workload.write_request(workload.choose(0, &mut RandomGenerator::new(1, 0)), 1, &mut buffer);
        let mut out = Vec::new();
        HttpRequest::of(protocol, &buffer[..len]).write_http1("host:1", true, &mut out);
        String::from_utf8_lossy(&out).lines().next().unwrap().to_owned()
    }

    #[test]
    fn the_question_is_in_the_path() {
        let get = |name, form| first_line(Protocol::Json, name, form);
        assert_eq!(get(b"10.1/a b?c#d%e", "plain"), "GET /api/handles/10.1/a%20b%3Fc%23d%25e HTTP/1.1");
        assert_eq!(
            get("10.1/\u{e4}(x);y".as_bytes(), "plain"),
            "GET /api/handles/10.1/%C3%A4(x)%3By HTTP/1.1"
        );
        assert_eq!(
            get(b"10.1/a", "index:3+type:URL+type:A&B+all"),
            "GET /api/handles/10.1/a?index=3&type=URL&type=A%26B&publicOnly=false HTTP/1.1"
        );
        assert_eq!(
            first_line(Protocol::Redirect, b"10.1/a b/c", "type:URL"),
            "GET /10.1/a%20b/c?type=URL HTTP/1.1"
        );
        assert_eq!(first_line(Protocol::Http, b"10.1/a b/c", "plain"), "POST /10.1%2Fa%20b%2Fc HTTP/1.1");
    }
}
