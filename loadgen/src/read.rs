//! Files that are read, none of them without a bound: a device, or the wrong file, ends with a sentence.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::Error;

/// Most bytes of a line of names, records, requests or wrong answers, its end included; `hdl` reads as much of records.
pub const LINE_LEN_MAX: usize = 16 << 20;

/// Most bytes of a report: a run of a week has 604,800 seconds, each of some six hundred bytes.
pub const REPORT_LEN_MAX: u64 = 1 << 30;

/// Bytes that are read of a file of lines at a time.
pub(crate) const READ_LEN: usize = 1 << 16;

/// Most bytes of a schedule.
pub const SCHEDULE_LEN_MAX: u64 = 16 << 20;

/// All bytes of the file at `path`, which are at most `len_max`.
///
/// # Errors
///
/// When it cannot be read, or is longer.
pub fn whole(path: &Path, len_max: u64) -> Result<Vec<u8>, Error> {
    let read = File::open(path).and_then(|file| whole_of(file, len_max));
    read.map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// All bytes of `file`, which are at most `len_max`.
pub(crate) fn whole_of(file: impl Read, len_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(len_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > len_max {
        return Err(io::Error::other(format!("it is longer than {len_max} bytes")));
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

impl<'a> LineReader<BufReader<StoppableFile<'a>>> {
    pub(crate) fn open(path: &Path, interrupt: &'a mut Interrupt<'_>) -> io::Result<Self> {
        let file = StoppableFile { file: File::open(path)?, go_on: &mut *interrupt.go_on };
        Ok(Self::new(BufReader::with_capacity(READ_LEN, file)))
    }
}

impl<R: BufRead> LineReader<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0 }
    }

    /// Number of the line read last, from 1 on.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line as text: without white space around it, and without the mark with which some editors begin a file.
    pub(crate) fn next_text(&mut self) -> io::Result<Option<&[u8]>> {
        let is_first = self.number == 0;
        let line = self.next()?;
        Ok(line.map(|line| match line.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if is_first => rest.trim_ascii(),
            _ => line.trim_ascii(),
        }))
    }

    /// The next line, as it is but for its end.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.number += 1;
        let limit = LINE_LEN_MAX as u64 + 1;
        let len = (&mut self.input).take(limit).read_until(b'\n', &mut self.line)?;
        if len as u64 == limit {
            let what = format!("line {} is longer than {LINE_LEN_MAX} bytes", self.number);
            return Err(io::Error::other(what));
        }
        Ok((len > 0).then(|| self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }
}

/// A file that may be a pipe or a terminal, on which nothing comes for long: before each read, and now and then while there is
/// nothing to read, it asks whether to go on. After a no it ends with [`Error::Stopped`], which [`Error::read`] finds.
pub(crate) struct StoppableFile<'a> {
    pub(crate) file: File,
    pub(crate) go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl StoppableFile<'_> {
    /// Between two questions while nothing comes.
    const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
}

impl Read for StoppableFile<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if (self.go_on)().is_break() {
                return Err(io::Error::other(Error::Stopped));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&Self::WAIT)) {
                Ok(0) | Err(Errno::INTR) => {}
                // Where it cannot be waited for, the read says why.
                Ok(_) | Err(_) => return self.file.read(room),
            }
        }
    }
}

/// Asks now and then whether to go on, while something is done that may take minutes.
pub(crate) struct Interrupt<'a> {
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    steps: u32,
}

impl<'a> Interrupt<'a> {
    /// Steps, of about a microsecond each, between two questions.
    const STEPS: u32 = 1 << 14;

    pub(crate) fn new(go_on: &'a mut dyn FnMut() -> ControlFlow<()>) -> Self {
        Self { go_on, steps: 0 }
    }

    /// To be called for each name or record.
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
    fn a_whole_file_is_as_long_as_it_may_be() {
        assert_eq!(whole_of(&b"12345"[..], 5).unwrap(), b"12345");
        assert_eq!(whole_of(&b"123456"[..], 5).unwrap_err().to_string(), "it is longer than 5 bytes");
        let error = whole(Path::new("/dev/zero"), SCHEDULE_LEN_MAX).unwrap_err().to_string();
        assert_eq!(error, "cannot read /dev/zero: it is longer than 16777216 bytes");
    }

    #[test]
    fn lines_are_as_long_as_they_may_be() {
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
                    assert_eq!(error.to_string(), "line 3 is longer than 16777216 bytes");
                    assert!(!is_taken);
                }
            }
            assert_eq!(lines.number(), 3);
        }
        assert_eq!(LineReader::new(&b""[..]).next().unwrap(), None);
    }

    #[test]
    fn a_read_ends_also_where_nothing_comes_or_no_end() {
        let (nothing, _held) = std::io::pipe().unwrap();
        let silent = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nothing));
        for path in [&silent, "/dev/zero"].map(Path::new) {
            let mut left = 3;
            let mut go_on = || {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let mut interrupt = Interrupt::new(&mut go_on);
            let mut lines = LineReader::open(path, &mut interrupt).unwrap();
            let error = Error::read(path, lines.next().unwrap_err());
            assert!(matches!(error, Error::Stopped), "{}: {error}", path.display());
        }
    }

    #[test]
    fn what_is_stopped_is_noticed_soon() {
        let mut asked = 0;
        let mut go_on = || {
            asked += 1;
            if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut interrupt = Interrupt::new(&mut go_on);
        let steps = (0..).take_while(|_| interrupt.step().is_ok()).count();
        assert_eq!(steps, 3 * Interrupt::STEPS as usize - 1);
    }
}
