//! Recorded traffic: requests with their times, from a capture or from an access log.

pub mod access_log;
pub mod pcap;

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use handle_formats::capture;

use crate::error::Error;
use crate::read::{READ_LEN, StoppableFile, whole_of};

/// One recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Nanoseconds from the first request of the recording; negative before it.
    pub at_ns: i64,
    /// A whole message, or the name of a handle.
    pub content: Vec<u8>,
}

/// The contents of a file, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The requests.
    pub requests: Vec<RecordedRequest>,
    /// Packets or lines that are not requests.
    pub skipped: u64,
}

/// How the times of a recording are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// The speed factor; 1 keeps the times.
    Times(f64),
    /// As fast as answers arrive: a closed loop.
    Unbound,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(factor) => write!(f, "x{factor}"),
            Self::Unbound => f.write_str("max"),
        }
    }
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Unbound);
        }
        match text.strip_prefix('x').unwrap_or(text).parse() {
            Ok(factor) if (0.001..=1e6).contains(&factor) => Ok(Self::Times(factor)),
            _ => Err("expected x1 for the recorded times, x10 for ten times as fast, or max".to_owned()),
        }
    }
}

impl Recording {
    /// Maximum number of requests read from a file.
    pub const REQUESTS_MAX: usize = 1 << 26;
    /// Longest capture; it is held in memory.
    pub const CAPTURE_LEN_MAX: u64 = 2 << 30;

    /// Reads a capture or an access log, detected from its first bytes. Calls `go_on` from time to
    /// time.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is neither, or has no request; and if the user stopped it.
    pub fn read(
        path: &Path,
        port: u16,
        mut go_on: impl FnMut() -> ControlFlow<()>,
    ) -> Result<(Self, RecordingKind), Error> {
        let read_error = |source| Error::read(path, source);
        let error = |reason: String| Error::Recording { path: path.to_owned(), reason };
        let (file, head) = open(path, &mut go_on).map_err(read_error)?;
        let is_capture = capture::is_capture(head.get_ref());
        let input = head.chain(file);
        let (mut recording, kind) = if is_capture {
            let bytes = whole_of(input, Self::CAPTURE_LEN_MAX).map_err(read_error)?;
            (pcap::read(&bytes, port).map_err(error)?, RecordingKind::Messages)
        } else {
            (
                access_log::read(BufReader::with_capacity(READ_LEN, input)).map_err(read_error)?,
                RecordingKind::Names,
            )
        };
        recording.requests.sort_by_key(|request| request.at_ns);
        let Some(first_ns) = recording.requests.first().map(|first| first.at_ns) else {
            let reason = match kind {
                RecordingKind::Messages => {
                    let packets = recording.skipped;
                    format!(
                        "none of its {packets} packets is a complete resolution request to UDP port {port} \
                         (choose another port with --replay-port; truncated packets are not complete)"
                    )
                }
                RecordingKind::Names => "neither a capture nor an access log with resolutions".to_owned(),
            };
            return Err(error(reason));
        };
        recording
            .requests
            .iter_mut()
            .for_each(|request| request.at_ns = request.at_ns.saturating_sub(first_ns));
        Ok((recording, kind))
    }

    /// The due time of each request at `factor` times the speed, in the order of requests.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    #[must_use]
    pub fn due_ns(&self, factor: f64) -> Vec<u64> {
        self.requests.iter().map(|request| (request.at_ns as f64 / factor) as u64).collect()
    }
}

/// The file, and its first bytes, which show its format.
fn open<'a>(
    path: &Path,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
) -> io::Result<(StoppableFile<'a>, io::Cursor<Vec<u8>>)> {
    let (mut file, mut head) = (StoppableFile { file: File::open(path)?, go_on }, Vec::new());
    (&mut file).take(capture::MAGIC_LEN).read_to_end(&mut head)?;
    Ok((file, io::Cursor::new(head)))
}

/// The kind of requests in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingKind {
    /// Whole messages, as they were sent.
    Messages,
    /// Names of handles.
    Names,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_parse_as_printed() {
        for text in ["x1", "x0.5", "x100", "max"] {
            assert_eq!(text.parse::<Speed>().unwrap().to_string(), text);
        }
        assert_eq!("10".parse(), Ok(Speed::Times(10.0)));
        for text in ["", "x", "x0", "-1", "fast"] {
            assert!(text.parse::<Speed>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_begin_with_the_first_request_and_go_faster() {
        let request = |at_ns| RecordedRequest { at_ns, content: Vec::new() };
        let recording = Recording { requests: vec![request(0), request(3_000), request(10_000)], skipped: 0 };
        assert_eq!(recording.due_ns(1.0), [0, 3_000, 10_000]);
        assert_eq!(recording.due_ns(10.0), [0, 300, 1_000]);
    }

    #[test]
    fn an_unsuitable_file_is_refused_with_a_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hello\n").unwrap();
        let read = Recording::read(file.path(), 2641, || ControlFlow::Continue(()));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("neither a capture"), "{error}");
    }

    #[test]
    fn a_recording_without_an_end_is_stopped() {
        use std::io::Write as _;
        for head in [&[0xd4, 0xc3, 0xb2, 0xa1][..], b"127.0.0.1 UDP:HDL(2.11) "] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(head).unwrap();
            let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
            let mut call_count = 0;
            let read = Recording::read(Path::new(&path), 2641, || {
                call_count += 1;
                if call_count > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(read, Err(Error::Stopped)), "{read:?}");
        }
    }
}
