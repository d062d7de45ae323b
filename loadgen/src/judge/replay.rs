//! Sends the mismatches of a run again, and checks whether the answers are still wrong.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use handle_proto::ResponseCode;
use handle_proto::printable::Printable;
use handle_proto::wire::{Header, Message};
use serde::Serialize;

use crate::error::Error;
use crate::judge::expect::ExpectedAnswer;
use crate::judge::verify::{HEX_LEN_MAX, Mismatch};
use crate::load::options::RunOptions;
use crate::load::question::GeneratedQuestion;
use crate::load::single_request;
use crate::read::LineReader;
use crate::show::environment::Environment;

/// The result for a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayOutcome {
    /// Code and values match the expected ones.
    Right,
    /// The answer is wrong in the same way.
    SameAgain,
    /// The answer is neither.
    Other,
    /// There is an answer, but its code and values do not show whether it is right: the earlier
    /// answer had a bad signature or was too old.
    Undecided,
    /// There was no answer.
    NoAnswer,
}

impl fmt::Display for ReplayOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "correct now",
            Self::SameAgain => "same wrong answer",
            Self::Other => "different answer",
            Self::Undecided => "cannot be judged by code and values",
            Self::NoAnswer => "no answer",
        })
    }
}

/// Name and version of the schema of [`ReplayReport`].
pub const REPLAY_SCHEMA: &str = "handle-loadgen/replay/1";

/// The results of all requests.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// [`REPLAY_SCHEMA`].
    pub schema: &'static str,
    /// The machine and the program.
    pub environment: Environment,
    /// The server.
    pub target: String,
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// The requests that were sent again, in the order of the file.
    pub requests: Vec<ReplayedRequest>,
}

impl ReplayReport {
    /// Creates the report of [`replay`] for `target`.
    #[must_use]
    pub fn new(target: SocketAddr, over_tcp: bool, requests: Vec<ReplayedRequest>) -> Self {
        Self {
            schema: REPLAY_SCHEMA,
            environment: Environment::read(),
            target: target.to_string(),
            transport: if over_tcp { "tcp" } else { "udp" },
            requests,
        }
    }

    /// Whether all answers are correct now.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.requests.iter().all(|again| again.outcome == ReplayOutcome::Right)
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requests.is_empty() {
            return writeln!(f, "no mismatches: nothing to send again");
        }
        self.requests.iter().try_for_each(|ReplayedRequest { handle, outcome, difference, .. }| {
            writeln!(f, "{}: {outcome} (before: {})", Printable(handle), Printable(difference))
        })
    }
}

/// A request sent again.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedRequest {
    /// The requested handle.
    pub handle: String,
    /// The earlier difference.
    pub difference: String,
    /// The result.
    pub outcome: ReplayOutcome,
    /// The answer without its envelope.
    pub answer_hex: Option<String>,
}

/// Reads mismatches, one line of JSON each, as `run --mismatches` writes them.
///
/// # Errors
///
/// If the file cannot be read, or a line is not a mismatch.
pub fn read(path: &Path) -> Result<Vec<Mismatch>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read_error)?;
    let (mut lines, mut mismatches) = (LineReader::new(BufReader::new(file)), Vec::new());
    while let Some(text) = lines.next_text().map_err(read_error)? {
        if !text.is_empty() {
            let parsed = serde_json::from_slice(text);
            mismatches.push(parsed.map_err(|reason| Error::Line {
                path: path.to_owned(),
                line: lines.number(),
                reason: reason.to_string(),
            })?);
        }
    }
    Ok(mismatches)
}

/// Writes mismatches in the format that [`read`] reads.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(mismatches: &[Mismatch], mut out: impl io::Write) -> io::Result<()> {
    for mismatch in mismatches {
        let line = serde_json::to_string(mismatch).map_err(io::Error::other)?;
        writeln!(out, "{}", Printable(line))?;
    }
    Ok(())
}

/// Sends the request of each mismatch again, one after another.
///
/// # Errors
///
/// If a socket cannot be used, or the timeout is invalid.
pub fn replay(
    mismatches: &[Mismatch],
    target: SocketAddr,
    over_tcp: bool,
    timeout: Duration,
) -> Result<Vec<ReplayedRequest>, Error> {
    if timeout.is_zero() || timeout > RunOptions::TIMEOUT_MAX {
        return Err(Error::Option("--timeout must be greater than 0, at most 60s".to_owned()));
    }
    mismatches.iter().map(|mismatch| send_again(mismatch, target, over_tcp, timeout)).collect()
}

fn send_again(
    mismatch: &Mismatch,
    target: SocketAddr,
    over_tcp: bool,
    timeout: Duration,
) -> Result<ReplayedRequest, Error> {
    let hex = |text: &str| data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    let bad =
        |reason| Error::Option(format!("cannot send the request for {} again: {reason}", mismatch.handle));
    let request = hex(&mismatch.request_hex).map_err(|error| bad(error.to_string()))?;
    let answer = single_request::send(target, over_tcp, &request, timeout).map_err(Error::Open)?;
    let outcome = match &answer {
        None => ReplayOutcome::NoAnswer,
        Some(answer) => match mismatch.expected_code.map(ResponseCode) {
            None => ReplayOutcome::Undecided,
            Some(code) => {
                let values = hex(&mismatch.expected_values_hex).map_err(|error| bad(error.to_string()))?;
                let expected = ExpectedAnswer { code, count: mismatch.expected_count, values };
                if is_right(answer, &request, &expected) {
                    ReplayOutcome::Right
                } else if is_same(answer, &hex(&mismatch.answer_hex).unwrap_or_default()) {
                    ReplayOutcome::SameAgain
                } else {
                    ReplayOutcome::Other
                }
            }
        },
    };
    Ok(ReplayedRequest {
        handle: mismatch.handle.clone(),
        difference: mismatch.difference.clone(),
        outcome,
        answer_hex: answer.map(|answer| data_encoding::HEXLOWER.encode(&answer)),
    })
}

fn is_right(answer: &[u8], request: &[u8], expected: &ExpectedAnswer) -> bool {
    let (question, message) = (GeneratedQuestion::of_message(request), Message::decode(answer).ok());
    question.zip(message).is_some_and(|(question, message)| expected.is_met(&question, &message))
}

/// Whether two messages have the same code and body; times and serial numbers in their headers may
/// differ. Only the beginning of a long earlier message was kept.
fn is_same(answer: &[u8], before: &[u8]) -> bool {
    let (Ok((now, now_rest)), Ok((then, then_rest))) = (Header::split(answer), Header::split(before)) else {
        return answer == before;
    };
    let body = |header: &Header, rest: &[u8]| rest[..rest.len().min(header.body_len as usize)].to_vec();
    let (now_body, then_body) = (body(&now, now_rest), body(&then, then_rest));
    let is_cut = before.len() == HEX_LEN_MAX;
    let is_same_body = now_body == then_body || (is_cut && now_body.starts_with(&then_body));
    now.response_code == then.response_code && now.body_len == then.body_len && is_same_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::verify::request;
    use crate::judge::verify::tests::{message, values};
    use handle_proto::wire::Envelope;
    use std::net::UdpSocket;

    fn mismatch(answer: &[u8]) -> Mismatch {
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        Mismatch {
            handle: "10.1/a".to_owned(),
            request_id: 9,
            sent_ns: 0,
            received_ns: 1,
            difference: "the values differ".to_owned(),
            generation: 0,
            request_hex: hex(&request(&GeneratedQuestion::plain(b"10.1/a"), 9)),
            answer_hex: hex(answer),
            expected_code: Some(1),
            expected_count: 2,
            expected_values_hex: hex(b"values"),
        }
    }

    #[test]
    fn each_request_has_its_outcome() {
        let wrong = values(b"10.1/a", 2, b"valves");
        let before = mismatch(&wrong);
        let absent = Mismatch { expected_code: Some(100), ..before.clone() };
        let unsigned = Mismatch { expected_code: None, ..before.clone() };
        let right = values(b"10.1/a", 2, b"values");
        for (before, answer, outcome) in [
            (&before, Some(right.clone()), ReplayOutcome::Right),
            (&before, Some(wrong.clone()), ReplayOutcome::SameAgain),
            (&before, Some(values(b"10.1/a", 2, b"vanish")), ReplayOutcome::Other),
            (&before, Some(values(b"10.1/a", 3, b"values")), ReplayOutcome::Other),
            (&before, Some(values(b"10.1/A", 2, b"values")), ReplayOutcome::Other),
            (&before, None, ReplayOutcome::NoAnswer),
            (&absent, Some(message(ResponseCode::HANDLE_NOT_FOUND, b"")), ReplayOutcome::Right),
            (&absent, Some(right.clone()), ReplayOutcome::Other),
            (&unsigned, Some(right.clone()), ReplayOutcome::Undecided),
        ] {
            let server = UdpSocket::bind("127.0.0.1:0").unwrap();
            let target = server.local_addr().unwrap();
            let replayed = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut buffer = [0; 512];
                    let (_, from) = server.recv_from(&mut buffer).unwrap();
                    let Some(answer) = &answer else { return };
                    let len = u32::try_from(answer.len()).unwrap();
                    let envelope = Envelope { message_len: len, ..Envelope::request(9) };
                    // First an answer with another id, which is ignored.
                    for id in [8, 9] {
                        let envelope = Envelope { request_id: id, ..envelope };
                        server.send_to(&[&envelope.to_bytes()[..], answer].concat(), from).unwrap();
                    }
                });
                let timeout =
                    Duration::from_millis(if outcome == ReplayOutcome::NoAnswer { 100 } else { 5000 });
                replay(std::slice::from_ref(before), target, false, timeout).unwrap()
            });
            assert_eq!(replayed[0].outcome, outcome, "{outcome}");
        }
    }

    #[test]
    fn invalid_timeouts_are_refused() {
        let target = ([127, 0, 0, 1], 9).into();
        for timeout in [Duration::ZERO, RunOptions::TIMEOUT_MAX + Duration::from_nanos(1)] {
            assert!(matches!(replay(&[], target, false, timeout), Err(Error::Option(_))), "{timeout:?}");
        }
        assert!(replay(&[], target, true, RunOptions::TIMEOUT_MAX).is_ok());
    }

    #[test]
    fn the_beginning_of_a_long_answer_is_compared() {
        let long = |byte| values(b"10.1/a", 2, &[byte; 5000]);
        assert!(is_same(&long(7), &long(7)[..HEX_LEN_MAX]));
        assert!(!is_same(&long(8), &long(7)[..HEX_LEN_MAX]));
        assert!(
            !is_same(&long(7), &long(7)[..HEX_LEN_MAX - 1]),
            "the shorter answer was truncated by the server"
        );
    }

    #[test]
    fn written_mismatches_are_read_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&[mismatch(b"x"), mismatch(b"y")], &file).unwrap();
        let read_back = read(file.path()).unwrap();
        assert_eq!(read_back.len(), 2);
        assert_eq!(read_back[1].answer_hex, "79");
        std::fs::write(file.path(), "{}\n").unwrap();
        assert!(read(file.path()).unwrap_err().to_string().contains(":1: missing field"));
    }
}
