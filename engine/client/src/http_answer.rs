//! Answers of HTTP/1.1 (RFC 9112): interim answers, a head, and a body that ends by its length, by
//! its last chunk, or with the connection.

/// Most bytes of the head of an answer, including interim answers.
pub const HEAD_LEN_MAX: usize = 16 << 10;
/// Most interim answers before an answer.
const INTERIM_COUNT_MAX: usize = 8;
/// Most fields of a head.
const FIELDS_MAX: usize = 64;
/// Most bytes between two chunks: a length in hexadecimal and its extensions.
pub(crate) const CHUNK_HEAD_LEN_MAX: usize = 256;

/// The received bytes are not an answer of HTTP, or are longer than its head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedAnswer;

/// The relevant parts of the head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswerHead {
    /// The status.
    pub status: u16,
    /// The target of a redirect.
    pub location: Option<Vec<u8>>,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// Reads one answer incrementally.
#[derive(Debug, Default)]
pub struct HttpAnswerReader {
    state: AnswerState,
    head: Option<HttpAnswerHead>,
    head_len: usize,
    interim_count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum AnswerState {
    /// Reading the status line and the fields.
    #[default]
    Head,
    /// Reading a body with this many bytes left; `usize::MAX` means up to the end of the
    /// connection.
    Body(usize),
    /// Reading the length of a chunk, after the line end of an earlier chunk or as the first.
    ChunkHead { is_first: bool },
    /// Reading a chunk with this many bytes left.
    Chunk(usize),
    /// Reading the fields after the last chunk.
    Trailers,
    /// The answer is complete.
    Over,
}

impl HttpAnswerReader {
    /// Reads the complete parts of the answer in `input`, appends those of the body to `body`, and
    /// returns the number of bytes read. The caller keeps the other bytes, and passes them again
    /// together with those that follow.
    ///
    /// # Errors
    /// When the bytes are not an answer.
    pub fn read(&mut self, input: &[u8], body: &mut Vec<u8>) -> Result<usize, MalformedAnswer> {
        let mut used = 0;
        while let Some(taken) = self.step(&input[used..], body)? {
            used += taken;
        }
        Ok(used)
    }

    /// The head, once it has been read.
    #[must_use]
    pub const fn head(&self) -> Option<&HttpAnswerHead> {
        self.head.as_ref()
    }

    /// Whether the whole answer has been read.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, AnswerState::Over)
    }

    /// Whether the whole body has been read; fields may follow it.
    #[must_use]
    pub const fn has_whole_body(&self) -> bool {
        matches!(self.state, AnswerState::Over | AnswerState::Trailers)
    }

    /// Whether a body without chunks is being read. If the connection ends now, such a body may be
    /// used as far as it was read.
    #[must_use]
    pub const fn is_in_plain_body(&self) -> bool {
        matches!(self.state, AnswerState::Body(_))
    }

    /// Whether the end of the connection is the end of the body.
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        matches!(self.state, AnswerState::Body(usize::MAX))
    }

    /// Reads the next part from the start of `input`. Returns `None` if more bytes are needed.
    fn step(&mut self, input: &[u8], body: &mut Vec<u8>) -> Result<Option<usize>, MalformedAnswer> {
        let (left, is_chunk) = match self.state {
            AnswerState::Head => return self.read_head(input),
            AnswerState::ChunkHead { is_first } => return self.read_chunk_head(input, is_first),
            AnswerState::Trailers => return self.read_trailers(input),
            AnswerState::Body(left) => (left, false),
            AnswerState::Chunk(left) => (left, true),
            AnswerState::Over => return Ok(None),
        };
        let taken = left.min(input.len());
        body.extend_from_slice(&input[..taken]);
        self.state = match (is_chunk, left - taken) {
            // Such a body ends with the connection.
            (false, _) if left == usize::MAX => AnswerState::Body(left),
            (false, 0) => AnswerState::Over,
            (false, left) => AnswerState::Body(left),
            (true, 0) => AnswerState::ChunkHead { is_first: false },
            (true, left) => AnswerState::Chunk(left),
        };
        Ok((taken > 0 || taken == left).then_some(taken))
    }

    fn read_head(&mut self, input: &[u8]) -> Result<Option<usize>, MalformedAnswer> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(head_len) = response.parse(input).map_err(|_| MalformedAnswer)? else {
            let is_bounded = self.head_len + input.len() <= HEAD_LEN_MAX;
            return if is_bounded { Ok(None) } else { Err(MalformedAnswer) };
        };
        self.head_len += head_len;
        let status = response.code.unwrap_or_default();
        if (100..200).contains(&status) {
            self.interim_count += 1;
        } else {
            self.head = Some(head_of(status, &response));
            self.state = match status {
                // Answers with these statuses have no body, even if the head has a length.
                204 | 304 => AnswerState::Over,
                _ => body_of(response.headers)?,
            };
        }
        if self.head_len > HEAD_LEN_MAX || self.interim_count > INTERIM_COUNT_MAX {
            return Err(MalformedAnswer);
        }
        Ok(Some(head_len))
    }

    fn read_chunk_head(&mut self, input: &[u8], is_first: bool) -> Result<Option<usize>, MalformedAnswer> {
        let skipped = if is_first { 0 } else { 2 };
        if input.len() < skipped {
            return Ok(None);
        }
        if !is_first && !input.starts_with(b"\r\n") {
            return Err(MalformedAnswer);
        }
        match httparse::parse_chunk_size(&input[skipped..]).map_err(|_| MalformedAnswer)? {
            httparse::Status::Complete((head_len, chunk_len)) => {
                let chunk_len = usize::try_from(chunk_len).map_err(|_| MalformedAnswer)?;
                self.state =
                    if chunk_len == 0 { AnswerState::Trailers } else { AnswerState::Chunk(chunk_len) };
                Ok(Some(skipped + head_len))
            }
            httparse::Status::Partial if input.len() > CHUNK_HEAD_LEN_MAX => Err(MalformedAnswer),
            httparse::Status::Partial => Ok(None),
        }
    }

    /// Skips the fields after the last chunk, up to an empty line.
    fn read_trailers(&mut self, input: &[u8]) -> Result<Option<usize>, MalformedAnswer> {
        let len = if input.starts_with(b"\r\n") {
            Some(2)
        } else {
            input.windows(4).position(|part| part == b"\r\n\r\n").map(|position| position + 4)
        };
        match len {
            Some(_) => self.state = AnswerState::Over,
            None if input.len() > HEAD_LEN_MAX => return Err(MalformedAnswer),
            None => {}
        }
        Ok(len)
    }
}

/// The value of the first field with this name.
fn field<'h>(fields: &[httparse::Header<'h>], name: &str) -> Option<&'h [u8]> {
    fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

fn head_of(status: u16, response: &httparse::Response<'_, '_>) -> HttpAnswerHead {
    let connection = field(response.headers, "connection").unwrap_or_default().trim_ascii();
    let is_old = response.version == Some(0);
    let closes = connection.eq_ignore_ascii_case(b"close")
        || is_old && !connection.eq_ignore_ascii_case(b"keep-alive");
    let location = field(response.headers, "location").map(<[u8]>::to_vec);
    HttpAnswerHead { status, location, closes }
}

/// The framing of the body. Chunks take precedence over a length, as in RFC 9112.
fn body_of(fields: &[httparse::Header<'_>]) -> Result<AnswerState, MalformedAnswer> {
    let text = |name: &str| field(fields, name).map(|value| str::from_utf8(value).unwrap_or_default().trim());
    if let Some(coding) = text("transfer-encoding") {
        let is_chunked = coding.eq_ignore_ascii_case("chunked");
        return if is_chunked { Ok(AnswerState::ChunkHead { is_first: true }) } else { Err(MalformedAnswer) };
    }
    match text("content-length") {
        Some(len) => Ok(AnswerState::Body(len.parse().map_err(|_| MalformedAnswer)?)),
        None => Ok(AnswerState::Body(usize::MAX)),
    }
}
