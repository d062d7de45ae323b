//! The bytes of an input.

use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, ErrorKind, Read};

/// Bytes that are held, and most bytes that [`InputStream::peek`] shows.
const BUFFER_LEN: usize = 1 << 18;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An input that is read once, from its first byte to its last: a file, a pipe or a body.
///
/// What comes next can be looked at before it is taken. Input in gzip or zstd is unpacked, and a
/// byte order mark at the beginning is dropped.
pub struct InputStream<'r>(PeekBuffer<Box<dyn Read + 'r>>);

impl std::fmt::Debug for InputStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InputStream")
    }
}

impl<'r> InputStream<'r> {
    /// Begins to read `raw`. Waits for its first bytes, but for no more than it needs.
    ///
    /// # Errors
    /// Those of `raw`; and if the input is in UTF-16.
    pub fn new(raw: impl Read + 'r) -> io::Result<Self> {
        let mut raw = PeekBuffer::new(raw);
        let bytes: Box<dyn Read + 'r> = match Packing::of(&mut raw)? {
            Packing::None => Box::new(raw),
            Packing::Gzip => Box::new(Unpacked(MultiGzDecoder::new(raw))),
            Packing::Zstd => Box::new(Unpacked(zstd::stream::read::Decoder::with_buffer(raw)?)),
        };
        let mut stream = Self(PeekBuffer::new(bytes));
        if stream.starts_with(BYTE_ORDER_MARK)? {
            stream.consume(BYTE_ORDER_MARK.len());
        }
        if stream.starts_with(b"\xff\xfe")? || stream.starts_with(b"\xfe\xff")? {
            return Err(io::Error::new(ErrorKind::InvalidData, "the text is in UTF-16: save it as UTF-8"));
        }
        Ok(stream)
    }

    /// The next `len` bytes, without taking them. Fewer if the input ends, or if `len` is more than
    /// fits in memory that is bounded.
    ///
    /// # Errors
    /// Those of the input.
    pub fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        self.0.peek(len)
    }

    /// Whether the next bytes are `start`. Waits for no more bytes than it takes to see.
    ///
    /// # Errors
    /// Those of the input.
    pub fn starts_with(&mut self, start: &[u8]) -> io::Result<bool> {
        starts_with(&mut self.0, start)
    }

    /// The bytes that are there without waiting, or the next ones if there are none; with `more`,
    /// one piece more than last time.
    pub(super) fn peek_some(&mut self, more: bool) -> io::Result<PeekedBytes<'_>> {
        let before = self.0.held().len();
        if before == 0 || more {
            self.0.peek(before + 1)?;
        }
        let bytes = self.0.held();
        let is_all = (more && bytes.len() == before) || bytes.is_empty() || bytes.len() == BUFFER_LEN;
        Ok(PeekedBytes { bytes, is_all })
    }
}

/// The beginning of an input.
pub(super) struct PeekedBytes<'b> {
    pub(super) bytes: &'b [u8],
    /// Whether there is no more, or no more is to be looked at.
    pub(super) is_all: bool,
}

impl Read for InputStream<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl BufRead for InputStream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.0.consume(len);
    }
}

/// How an input is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(raw: &mut PeekBuffer<impl Read>) -> io::Result<Self> {
        if starts_with(raw, b"\x1f\x8b")? {
            return Ok(Self::Gzip);
        }
        let is_zstd = starts_with(raw, b"\x28\xb5\x2f\xfd")?;
        Ok(if is_zstd { Self::Zstd } else { Self::None })
    }
}

fn starts_with(bytes: &mut PeekBuffer<impl Read>, start: &[u8]) -> io::Result<bool> {
    for len in 1..=start.len() {
        if bytes.peek(len)? != &start[..len] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Unpacked input, whose errors say that it is.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), "the compressed input is cut: it ends too early")
            }
            ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                io::Error::new(error.kind(), format!("the compressed input is damaged: {error}"))
            }
            _ => error,
        })
    }
}

/// Bytes that can be looked at before they are taken.
struct PeekBuffer<R> {
    input: R,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> PeekBuffer<R> {
    fn new(input: R) -> Self {
        Self { input, bytes: vec![0; BUFFER_LEN], start: 0, end: 0 }
    }

    fn held(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        let len = len.min(BUFFER_LEN);
        if len > BUFFER_LEN - self.start {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < len {
            match self.input.read(&mut self.bytes[self.end..]) {
                Ok(0) => break,
                Ok(read_len) => self.end += read_len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.bytes[self.start..self.end.min(self.start + len)])
    }
}

impl<R: Read> Read for PeekBuffer<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.input.read(room);
        }
        let held = self.held();
        let len = held.len().min(room.len());
        room[..len].copy_from_slice(&held[..len]);
        self.start += len;
        Ok(len)
    }
}

impl<R: Read> BufRead for PeekBuffer<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.peek(1)?;
        }
        Ok(self.held())
    }

    fn consume(&mut self, len: usize) {
        self.start = self.end.min(self.start + len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Gives one byte at a time, as the slowest pipe does.
    struct SlowPipe<'b>(&'b [u8]);

    impl Read for SlowPipe<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let Some((&byte, rest)) = self.0.split_first() else { return Ok(0) };
            self.0 = rest;
            room[0] = byte;
            Ok(1)
        }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text).unwrap();
        packed.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        InputStream::new(SlowPipe(bytes))?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn packed_and_marked_input_is_read_like_any() {
        let text = b"handle\n".repeat(3000);
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        let half = text.len() / 2;
        for (name, input) in [
            ("plain", text.clone()),
            ("marked", [BYTE_ORDER_MARK, &text].concat()),
            ("gzip", gzip(&text)),
            ("marked gzip", gzip(&[BYTE_ORDER_MARK, &text].concat())),
            ("two members", [gzip(&text[..half]), gzip(&text[half..])].concat()),
            ("zstd", zstd.clone()),
            (
                "two frames",
                [zstd::encode_all(&text[..half], 1).unwrap(), zstd::encode_all(&text[half..], 1).unwrap()]
                    .concat(),
            ),
        ] {
            assert!(read(&input).unwrap() == text, "{name}");
        }
        for (name, input) in [("gzip", gzip(&text)), ("zstd", zstd)] {
            for len in [4, input.len() / 2, input.len() - 1] {
                let error = read(&input[..len]).unwrap_err().to_string();
                assert!(error.contains("is cut") || error.contains("is damaged"), "{name} {len}: {error}");
            }
        }
        for mark in [b"\xff\xfe", b"\xfe\xff"] {
            assert!(read(mark).unwrap_err().to_string().contains("UTF-16"));
        }
        for few in [&b""[..], b"\x1f", b"\x28\xb5", b"\xef\xbb", b"\xff"] {
            assert_eq!(read(few).unwrap(), few);
        }
    }

    #[test]
    fn looking_takes_nothing() {
        let text: Vec<u8> = (0..BUFFER_LEN * 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut stream = InputStream::new(&text[..]).unwrap();
        let mut taken = Vec::new();
        for len in [1, 10, BUFFER_LEN - 3, BUFFER_LEN, 7] {
            let left = &text[taken.len()..];
            assert_eq!(stream.peek(len).unwrap(), &left[..len.min(left.len())]);
            let mut some = vec![0; len / 2];
            stream.read_exact(&mut some).unwrap();
            taken.extend(some);
        }
        stream.read_to_end(&mut taken).unwrap();
        assert!(taken == text && stream.peek(1).unwrap().is_empty());
    }

    #[test]
    fn a_silent_pipe_is_not_waited_for() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"a\n").unwrap();
        let mut stream = InputStream::new(reader).unwrap();
        assert_eq!(stream.peek_some(false).unwrap().bytes, b"a\n");
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "a\n");
    }
}
