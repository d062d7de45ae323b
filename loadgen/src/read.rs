//! Bounded reading of files: a device or a wrong file ends with an error.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::ControlFlow;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Deserialize;

use crate::error::Error;

/// Maximum length of a line of names, records, requests or wrong answers, line end included; `hdl`
/// has the same bound for records.
pub const LINE_LEN_MAX: usize = 16 << 20;

/// Maximum length of a report: a run of a week has 604,800 seconds of about six hundred bytes each.
pub const REPORT_LEN_MAX: u64 = 1 << 30;

/// Bytes read at a time from a file of lines.
pub(crate) const READ_LEN: usize = 1 << 16;

/// Maximum length of a schedule.
pub const SCHEDULE_LEN_MAX: u64 = 16 << 20;

/// Reads the file at `path`, which has at most `len_max` bytes.
///
/// # Errors
///
/// If it cannot be read, or is longer.
pub fn whole(path: &Path, len_max: u64) -> Result<Vec<u8>, Error> {
    let read = File::open(path).and_then(|file| whole_of(file, len_max));
    read.map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Checks that the schema of a report is `known`, before its other members are read.
///
/// # Errors
///
/// If it is not a report, or has another schema.
pub fn check_report(report: &[u8], known: &str) -> Result<(), String> {
    let parsed: Result<ReportSchema, _> = serde_json::from_slice(report);
    let report = parsed.map_err(|error| format!("not a report: {error}"))?;
    check_schema(&report.schema, known)
}

/// Checks that the schema `found` in a report is `known`.
///
/// # Errors
///
/// If it is another one; the text says what to do about another version.
pub fn check_schema(found: &str, known: &str) -> Result<(), String> {
    if found == known {
        return Ok(());
    }
    let name = known.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_version = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    Err(match found.strip_prefix(name) {
        Some(version) if is_version(version) => format!(
            "its schema is {found}, and this program reads {known}: use the version of handle-loadgen that wrote it, \
             or a later one"
        ),
        _ => format!("unexpected schema {found:?}: expected {known}"),
    })
}

/// The member of a report by which its kind and version are known.
#[derive(Deserialize)]
struct ReportSchema {
    schema: String,
}

/// Reads `file`, which has at most `len_max` bytes.
pub(crate) fn whole_of(file: impl Read, len_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(len_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > len_max {
        return Err(io::Error::other(format!("too long: the maximum is {len_max} bytes")));
    }
    Ok(bytes)
}

/// Lines of at most [`LINE_LEN_MAX`] bytes.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> LineReader<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0 }
    }

    /// Number of the line read last, from 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line as text, without surrounding white space and without a byte order mark at the
    /// start of the file.
    pub(crate) fn next_text(&mut self) -> io::Result<Option<&[u8]>> {
        let is_first = self.number == 0;
        let line = self.next()?;
        Ok(line.map(|line| match line.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if is_first => rest.trim_ascii(),
            _ => line.trim_ascii(),
        }))
    }

    /// The next line, without its line end.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.number += 1;
        let limit = LINE_LEN_MAX as u64 + 1;
        let len = (&mut self.input).take(limit).read_until(b'\n', &mut self.line)?;
        if len as u64 == limit {
            let reason = format!("line {} is too long: the maximum is {LINE_LEN_MAX} bytes", self.number);
            return Err(io::Error::other(reason));
        }
        Ok((len > 0).then(|| self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }
}

/// A file that may be a pipe or a terminal without data for a long time. Before each read, and from
/// time to time while there is no data, it calls `go_on`. If that returns false, it ends with
/// [`Error::Stopped`], which [`Error::read`] detects.
pub(crate) struct StoppableFile<'a> {
    pub(crate) file: File,
    pub(crate) go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl<'a> StoppableFile<'a> {
    pub(crate) fn open(path: &Path, interrupt: &'a mut Interrupt<'_>) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, go_on: &mut *interrupt.go_on })
    }

    /// Time between two calls while there is no data.
    const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
}

impl Read for StoppableFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if (self.go_on)().is_break() {
                return Err(io::Error::other(Error::Stopped));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&Self::WAIT)) {
                Ok(0) | Err(Errno::INTR) => {}
                // If waiting fails, the read reports why.
                Ok(_) | Err(_) => return self.file.read(buffer),
            }
        }
    }
}

/// Calls `go_on` from time to time during work that may take minutes.
pub(crate) struct Interrupt<'a> {
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    steps: u32,
}

impl<'a> Interrupt<'a> {
    /// Steps between two calls, of about a microsecond each.
    const STEPS: u32 = 1 << 14;

    pub(crate) fn new(go_on: &'a mut dyn FnMut() -> ControlFlow<()>) -> Self {
        Self { go_on, steps: 0 }
    }

    /// Called for each name or record.
    pub(crate) fn step(&mut self) -> Result<(), Error> {
        self.steps += 1;
        if self.steps < Self::STEPS {
            return Ok(());
        }
        self.steps = 0;
        if (self.go_on)().is_break() { Err(Error::Stopped) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_at_most_its_maximum_length() {
        assert_eq!(whole_of(&b"12345"[..], 5).unwrap(), b"12345");
        assert_eq!(whole_of(&b"123456"[..], 5).unwrap_err().to_string(), "too long: the maximum is 5 bytes");
        let error = whole(Path::new("/dev/zero"), SCHEDULE_LEN_MAX).unwrap_err().to_string();
        assert_eq!(error, "cannot read /dev/zero: too long: the maximum is 16777216 bytes");
    }

    #[test]
    fn lines_have_at_most_their_maximum_length() {
        for (len, is_taken) in [(LINE_LEN_MAX, true), (LINE_LEN_MAX + 1, false)] {
            let mut text = b"\xef\xbb\xbffirst \r\n\n".to_vec();
            let start = text.len();
            text.resize(start + len, b'x');
            let mut lines = LineReader::new(&text[..]);
            assert_eq!(lines.next_text().unwrap(), Some(&b"first"[..]));
            assert_eq!(lines.next().unwrap(), Some(&b""[..]));
            match lines.next() {
                Ok(line) => assert_eq!((line.map(<[u8]>::len), is_taken), (Some(len), true)),
                Err(error) => {
                    assert_eq!(error.to_string(), "line 3 is too long: the maximum is 16777216 bytes");
                    assert!(!is_taken);
                }
            }
            assert_eq!(lines.number(), 3);
        }
        assert_eq!(LineReader::new(&b""[..]).next().unwrap(), None);
    }

    #[test]
    fn a_read_without_input_or_end_can_be_stopped() {
        let (nothing, _held) = std::io::pipe().unwrap();
        let silent = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nothing));
        for path in [&silent, "/dev/zero"].map(Path::new) {
            let mut left = 3;
            let mut go_on = || {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let mut interrupt = Interrupt::new(&mut go_on);
            let mut file = StoppableFile::open(path, &mut interrupt).unwrap();
            let error = Error::read(path, io::copy(&mut file, &mut io::sink()).unwrap_err());
            assert!(matches!(error, Error::Stopped), "{}: {error}", path.display());
        }
    }

    #[test]
    fn a_stop_is_noticed_soon() {
        let mut call_count = 0;
        let mut go_on = || {
            call_count += 1;
            if call_count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut interrupt = Interrupt::new(&mut go_on);
        let steps = (0..).take_while(|_| interrupt.step().is_ok()).count();
        assert_eq!(steps, 3 * Interrupt::STEPS as usize - 1);
    }
}
