//! The bytes of an input.

use super::LINE_LEN_MAX;
use flate2::bufread::MultiGzDecoder;
use std::cell::Cell;
use std::io::{self, BufRead, ErrorKind, Read};
use std::rc::Rc;
use zeroize::Zeroizing;

/// Bytes that are held, and most bytes that [`InputStream::peek`] shows.
const BUFFER_LEN: usize = 1 << 18;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// How many times as long as packed a [bounded](InputStream::bounded) input may be unpacked:
/// records that differ in their names and addresses only reach 20 to 60.
const UNPACKED_RATIO_MAX: u64 = 200;
/// Bytes to which any input may unpack.
const UNPACKED_FREE_LEN: u64 = 1 << 20;
/// Window of zstd in a bounded input, 8 MiB: that of all levels up to 19.
const WINDOW_LOG_MAX: u32 = 23;

/// An input that is read once, from its first byte to its last: a file, a pipe or a body.
///
/// What comes next can be looked at before it is taken. Input in gzip or zstd is unpacked, and a
/// byte order mark at the beginning is dropped.
pub struct InputStream<'r> {
    bytes: PeekBuffer<Box<dyn Read + 'r>>,
    entry_len_max: usize,
}

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
        let bytes: Box<dyn Read + 'r> = match InputCompression::of(&mut raw)? {
            InputCompression::None => Box::new(raw),
            InputCompression::Gzip => Box::new(UnpackedInput(MultiGzDecoder::new(raw))),
            InputCompression::Zstd => Box::new(UnpackedInput(zstd::stream::read::Decoder::with_buffer(raw)?)),
        };
        Self::of_bytes(bytes, LINE_LEN_MAX)
    }

    /// Begins to read `raw`, which somebody else has sent, with bounds on the memory and the work
    /// that it takes: entries have at most `entry_len_max` bytes, and it unpacks to at most 200
    /// times its length.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn bounded(raw: impl Read + 'r, entry_len_max: usize) -> io::Result<Self> {
        let taken = Rc::new(Cell::new(0));
        let mut raw = PeekBuffer::new(CountingReader { input: raw, taken: Rc::clone(&taken) });
        let bytes: Box<dyn Read + 'r> = match InputCompression::of(&mut raw)? {
            InputCompression::None => Box::new(raw),
            InputCompression::Gzip => {
                let input = UnpackedInput(MultiGzDecoder::new(raw));
                Box::new(BoundedInput { input, taken, unpacked: 0 })
            }
            InputCompression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(raw)?;
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                Box::new(BoundedInput { input: UnpackedInput(decoder), taken, unpacked: 0 })
            }
        };
        Self::of_bytes(bytes, entry_len_max)
    }

    fn of_bytes(bytes: Box<dyn Read + 'r>, entry_len_max: usize) -> io::Result<Self> {
        let mut stream = Self { bytes: PeekBuffer::new(bytes), entry_len_max };
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
        self.bytes.peek(len)
    }

    /// Most bytes of one entry.
    pub(super) const fn entry_len_max(&self) -> usize {
        self.entry_len_max
    }

    /// Whether the next bytes are `start`. Waits for no more bytes than it takes to see.
    ///
    /// # Errors
    /// Those of the input.
    pub fn starts_with(&mut self, start: &[u8]) -> io::Result<bool> {
        starts_with(&mut self.bytes, start)
    }

    /// The bytes that are there without waiting, or the next ones if there are none; with `more`,
    /// one piece more than last time.
    pub(super) fn peek_some(&mut self, more: bool) -> io::Result<PeekedBytes<'_>> {
        let before = self.bytes.held().len();
        if before == 0 || more {
            self.bytes.peek(before + 1)?;
        }
        let bytes = self.bytes.held();
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
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl BufRead for InputStream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.bytes.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.bytes.consume(len);
    }
}

/// Counts the bytes that are taken.
struct CountingReader<R> {
    input: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        self.taken.set(self.taken.get() + len as u64);
        Ok(len)
    }
}

/// Unpacked input that ends with an error if it is out of proportion to the packed one.
struct BoundedInput<R> {
    input: UnpackedInput<R>,
    taken: Rc<Cell<u64>>,
    unpacked: u64,
}

impl<R: Read> Read for BoundedInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        self.unpacked += len as u64;
        if self.unpacked > UNPACKED_FREE_LEN + self.taken.get() * UNPACKED_RATIO_MAX {
            let why =
                format!("the compressed input is more than {UNPACKED_RATIO_MAX} times as long unpacked");
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        Ok(len)
    }
}

/// How an input is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputCompression {
    None,
    Gzip,
    Zstd,
}

impl InputCompression {
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
struct UnpackedInput<R>(R);

impl<R: Read> Read for UnpackedInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
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
    /// Cleared at the end, because inputs may have secrets.
    bytes: Zeroizing<Vec<u8>>,
    start: usize,
    end: usize,
}

impl<R: Read> PeekBuffer<R> {
    fn new(input: R) -> Self {
        Self { input, bytes: Zeroizing::new(vec![0; BUFFER_LEN]), start: 0, end: 0 }
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
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.input.read(buffer);
        }
        let held = self.held();
        let len = held.len().min(buffer.len());
        buffer[..len].copy_from_slice(&held[..len]);
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
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((&byte, rest)) = self.0.split_first() else { return Ok(0) };
            self.0 = rest;
            buffer[0] = byte;
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
    fn what_others_send_takes_bounded_memory_and_work() {
        let bounded = |bytes: &[u8]| -> io::Result<u64> {
            io::copy(&mut InputStream::bounded(bytes, 1024)?, &mut io::sink())
        };
        let blank = vec![b'\n'; 16 << 20];
        let mut best = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        best.write_all(&blank).unwrap();
        let window = |log| {
            let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            packed.window_log(log).unwrap();
            packed.write_all(b"handle\n").unwrap();
            packed.finish().unwrap()
        };
        for packed in [best.finish().unwrap(), zstd::encode_all(&blank[..], 1).unwrap()] {
            assert!(bounded(&packed).unwrap_err().to_string().contains("200 times as long unpacked"));
            assert_eq!(read(&packed).unwrap().len(), blank.len(), "files of one's own are not bounded");
        }
        let usual: Vec<u8> =
            (0..100_000).flat_map(|at| format!("10.1/{at};1;URL;x\n").into_bytes()).collect();
        for packed in [usual.clone(), gzip(&usual), zstd::encode_all(&usual[..], 19).unwrap()] {
            assert_eq!(bounded(&packed).unwrap(), usual.len() as u64);
        }
        assert_eq!(bounded(&window(23)).unwrap(), 7);
        let error = bounded(&window(27)).unwrap_err().to_string();
        assert!(error.contains("memory"), "128 MiB for a window: {error}");
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
