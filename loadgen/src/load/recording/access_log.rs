//! Access logs: one line per request, with its handle and its time.
//!
//! - Of handle servers: `<ip> <interface> "<time>" <opcode> <response code> <n>ms <adm> <handle>`;
//!   special bytes of the handle are percent-encoded. Resolutions over the handle protocol and over
//!   HTTP are used.
//! - Of `handle-gateway` and of web servers in front of a proxy: the combined format, and that of
//!   lines of JSON. Requests for records and redirects are used.
//!
//! Other lines have no handle, or not the one requested.

use std::borrow::Cow;
use std::io::{self, BufRead};

use percent_encoding::percent_decode;
use serde::Deserialize;

use super::{RecordedRequest, Recording};
use crate::read::LineReader;

/// Reads a whole log, and counts lines that are not requests.
///
/// # Errors
///
/// If it cannot be read, or a line is too long for a log.
pub fn read(input: impl BufRead) -> io::Result<Recording> {
    let (mut recording, mut lines) = (Recording::default(), LineReader::new(input));
    while let Some(line) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match request(line.strip_suffix(b"\r").unwrap_or(line)) {
            Some(request) if recording.requests.len() < Recording::REQUESTS_MAX => {
                recording.requests.push(request);
            }
            _ => recording.skipped += 1,
        }
    }
    Ok(recording)
}

fn request(line: &[u8]) -> Option<RecordedRequest> {
    match line.first()? {
        b'{' => of_json(line),
        _ => of_handle_server(line).or_else(|| of_web_server(line)),
    }
}

/// A line of a handle server.
fn of_handle_server(line: &[u8]) -> Option<RecordedRequest> {
    let (before, rest) = split(line, b" \"")?;
    let (time, rest) = split(rest, b"\" ")?;
    let (_, interface) = split(before, b" ")?;
    let mut fields = rest.splitn(5, |byte| *byte == b' ');
    let (op_code, _code, _took, _admin, handle) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_native = interface.windows(5).any(|part| part == b":HDL(");
    let is_http = interface.starts_with(b"HTTP:") || interface.starts_with(b"HTTPS:");
    if op_code != b"1" || !(is_native || is_http) || handle.is_empty() || handle == b"/" {
        return None;
    }
    let name: Vec<u8> = percent_decode(handle).collect();
    // A path of the proxy that is no handle, as `admin/`, has the form of one.
    if is_http && !is_handle(&name) {
        return None;
    }
    Some(RecordedRequest { at_ns: at_ns(std::str::from_utf8(time).ok()?.parse().ok()?)?, content: name })
}

/// A line in the combined format: `<ip> - - [<time>] "<method> <target> <version>" <status> ...`.
fn of_web_server(line: &[u8]) -> Option<RecordedRequest> {
    let (_, rest) = split(line, b" [")?;
    let (time, rest) = split(rest, b"] \"")?;
    let (request, _) = split(rest, b"\" ")?;
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next()?, words.next()?);
    let time = jiff::Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", std::str::from_utf8(time).ok()?).ok()?;
    Some(RecordedRequest { at_ns: at_ns(time)?, content: handle_of(method, &unescaped(target))? })
}

/// A line of JSON of `handle-gateway`.
fn of_json(line: &[u8]) -> Option<RecordedRequest> {
    #[derive(Deserialize)]
    struct RequestLine<'l> {
        #[serde(borrow)]
        time: Cow<'l, str>,
        #[serde(borrow)]
        method: Cow<'l, str>,
        #[serde(borrow)]
        path: Cow<'l, str>,
    }
    let RequestLine { time, method, path } = serde_json::from_slice(line).ok()?;
    Some(RecordedRequest {
        at_ns: at_ns(time.parse().ok()?)?,
        content: handle_of(method.as_bytes(), path.as_bytes())?,
    })
}

fn at_ns(time: jiff::Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond()).ok()
}

/// Paths of a gateway whose first part is not a prefix.
const OTHER_PATHS: [&[u8]; 8] =
    [b"api", b"admin", b"static", b"register", b"hrls", b"doiRA", b".well-known", b"metrics"];

/// The handle that is asked for with this target, by the API or by a redirect.
fn handle_of(method: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let path = target.split(|byte| matches!(byte, b'?' | b'#')).next()?;
    let name = match path.strip_prefix(b"/api/handles/") {
        Some(name) => name,
        None => path.strip_prefix(b"/")?,
    };
    let is_other = |first: &[u8]| OTHER_PATHS.iter().any(|other| first.eq_ignore_ascii_case(other));
    let name: Vec<u8> = percent_decode(name).collect();
    let first = name.split(|byte| *byte == b'/').next()?;
    let is_read = matches!(method, b"GET" | b"HEAD");
    (is_read && is_handle(&name) && !is_other(first)).then_some(name)
}

/// Whether there is a prefix and a local name.
fn is_handle(name: &[u8]) -> bool {
    name.iter().position(|byte| *byte == b'/').is_some_and(|at| at > 0 && at + 1 < name.len())
}

/// Text between quotation marks, with `\"`, `\\` and `\xNN` replaced by what they stand for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let hex = || {
            let digits = after.strip_prefix(b"x")?.get(..2)?;
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let (byte, len) = match (byte, after.first()) {
            (b'\\', Some(b'x')) if hex().is_some() => (hex().unwrap_or_default(), 3),
            (b'\\', Some(&escaped)) => (escaped, 1),
            _ => (byte, 0),
        };
        bytes.push(byte);
        rest = &after[len..];
    }
    bytes
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = bytes.windows(at.len()).position(|part| part == at)?;
    Some((&bytes[..found], &bytes[found + at.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_resolutions_with_their_times_and_counts_the_rest() {
        let log = "127.0.0.1 UDP:HDL(2.11) \"2026-11-20 08:31:04.689Z\" 1 1 1ms  20.500.1/hello\n\
            127.0.0.1 TCP:HDL(2.11) \"2026-11-20 08:31:36.608Z\" 100 1 3ms adm=300:20.500.1/ADMIN 20.500.1/c3\n\
            127.0.0.1 HTTP:HDLApi \"2026-11-20 08:31:36.943Z\" 302 1 1ms adm=301:20.500.1/ADMIN /\n\
            127.0.0.1 HTTP:HDLProxy \"2026-11-20 08:28:05.214Z\" 1 301 0ms admin/\n\
            127.0.0.1 UDP:HDL(2.11) \"2026-11-20 09:31:05.690+0100\" 1 100 0ms  10.1/weird%20%2525%20\u{e4}+b%20c\r\n\
            \n\
            nonsense\n";
        let recording = read(log.as_bytes()).unwrap();
        assert_eq!(recording.skipped, 4);
        let names: Vec<_> = recording.requests.iter().map(|request| &request.content[..]).collect();
        assert_eq!(names, [&b"20.500.1/hello"[..], "10.1/weird %25 \u{e4}+b c".as_bytes()]);
        let apart = recording.requests[1].at_ns - recording.requests[0].at_ns;
        assert_eq!(apart, 1_001_000_000);
    }

    #[test]
    fn requests_of_gateways_are_taken_in_both_formats() {
        let log = r#"127.0.0.0 - - [28/Nov/2026:06:13:01 +0000] "GET /20.500.1/hello HTTP/1.1" 302 0 "-" "curl/7.88.1"
127.0.0.0 - - [28/Nov/2026:07:13:02 +0100] "HEAD /api/handles/20.500.1/a%2Fb%20c?type=URL HTTP/2.0" 200 - "-" "a \"b\""
10.0.0.0 - - [28/Nov/2026:06:13:03 +0000] "GET /20.500.1/\"\xc3\xa4\\ HTTP/1.1" 404 0 "-" "-"
{"time":"2026-11-28T06:13:04.500000Z","address":"127.0.0.0","method":"GET","path":"/api/handles/20.500.1/j","status":200}
{"time":"2026-11-28T06:13:05.000000Z","method":"PUT","path":"/api/handles/20.500.1/j"}
127.0.0.1 HTTP:HDLProxy "2026-11-28 06:13:06.000Z" 1 302 0ms  20.500.1/weird%20name
127.0.0.1 HTTP:HDLProxy "2026-11-28 06:13:06.000Z" 1 301 0ms admin/
1.2.3.4 - - [28/Nov/2026:06:13:07 +0000] "GET /static/gateway.css HTTP/1.1" 200 9 "-" "-"
1.2.3.4 - - [28/Nov/2026:06:13:07 +0000] "GET / HTTP/1.1" 200 9 "-" "-"
1.2.3.4 - - [28/Nov/2026:06:13:07 +0000] "POST /20.500.1/x HTTP/1.1" 200 9 "-" "-"
1.2.3.4 - - [99/Nov/2026:06:13:07 +0000] "GET /20.500.1/x HTTP/1.1" 200 9 "-" "-"
"#;
        let recording = read(log.as_bytes()).unwrap();
        let names: Vec<_> =
            recording.requests.iter().map(|request| String::from_utf8_lossy(&request.content)).collect();
        let expected =
            ["20.500.1/hello", "20.500.1/a/b c", "20.500.1/\"ä\\", "20.500.1/j", "20.500.1/weird name"];
        assert_eq!(names, expected);
        assert_eq!(recording.skipped, 6);
        let first_ns = recording.requests[0].at_ns;
        let times: Vec<_> =
            recording.requests.iter().map(|request| (request.at_ns - first_ns) / 1_000_000).collect();
        assert_eq!(times, [0, 1000, 2000, 3500, 5000]);
    }

    #[test]
    fn truncated_lines_are_not_errors() {
        let line = b"127.0.0.1 UDP:HDL(2.11) \"2026-11-20 08:31:04.689Z\" 1 1 1ms  20.500.1/hello";
        for len in 0..line.len() {
            let recording = read(&line[..len]).unwrap();
            assert_eq!(
                recording.requests.len() as u64 + recording.skipped,
                u64::from(len > 0),
                "cut to {len}"
            );
        }
    }
}
