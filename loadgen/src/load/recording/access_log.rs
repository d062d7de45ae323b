//! The access log of handle servers: one line per request, with its handle and its time.
//!
//! `<ip> <interface> "<time>" <opcode> <response code> <n>ms <adm> <handle>`; special bytes of the
//! handle are percent-encoded. Only resolutions over the handle protocol are used; other lines have
//! no handle, or not the one requested.

use std::io::{self, BufRead};

use percent_encoding::percent_decode;

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
    let (before, rest) = split(line, b" \"")?;
    let (time, rest) = split(rest, b"\" ")?;
    let (_, interface) = split(before, b" ")?;
    let mut fields = rest.splitn(5, |byte| *byte == b' ');
    let (op_code, _code, _took, _admin, handle) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_resolution = op_code == b"1" && interface.windows(5).any(|part| part == b":HDL(");
    if !is_resolution || handle.is_empty() || handle == b"/" {
        return None;
    }
    let time: jiff::Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
    let at_ns = i64::try_from(time.as_nanosecond()).ok()?;
    Some(RecordedRequest { at_ns, content: percent_decode(handle).collect() })
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
