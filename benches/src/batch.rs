//! A client that asks `handle-gateway` for many records in one request.

use anyhow::ensure;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// End of an answer in chunks. A body of JSON has no such line ends.
const END: &[u8] = b"\r\n0\r\n\r\n";
/// Start of an object with the values of a record.
const FOUND: &[u8] = b"\"responseCode\":1,";
/// Longest wait for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a gateway.
#[derive(Debug)]
pub struct BatchClient {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl BatchClient {
    /// Connects to the gateway at `to`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn connect(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: Vec::new() })
    }

    /// Asks for `names`, and returns the time until the whole answer has arrived.
    ///
    /// # Errors
    /// When the connection fails, or a name is not found.
    pub fn resolve(&mut self, names: &[String]) -> anyhow::Result<Duration> {
        let body = serde_json::json!({ "handles": names }).to_string();
        let head = format!(
            "POST /api/resolve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let request = [head, body].concat();
        let begun = Instant::now();
        self.stream.write_all(request.as_bytes())?;
        self.answer.clear();
        let mut room = [0; 1 << 16];
        while !self.answer.ends_with(END) {
            let len = self.stream.read(&mut room)?;
            ensure!(len > 0, "the gateway closed the connection: {}", self.start());
            self.answer.extend_from_slice(&room[..len]);
            // An answer to a whole request that is refused has no chunks.
            ensure!(self.answer.starts_with(b"HTTP/1.1 200"), "refused: {}", self.start());
        }
        let took = begun.elapsed();
        let body = body_of(&self.answer);
        let found = body.windows(FOUND.len()).filter(|part| *part == FOUND).count();
        ensure!(found == names.len(), "{found} of {} names found: {}", names.len(), self.start());
        Ok(took)
    }

    /// The start of the last answer, for messages.
    fn start(&self) -> String {
        String::from_utf8_lossy(&self.answer[..self.answer.len().min(300)]).into_owned()
    }
}

/// The body of an answer in chunks, as far as these are whole.
fn body_of(answer: &[u8]) -> Vec<u8> {
    let line_end = |bytes: &[u8]| bytes.windows(2).position(|pair| pair == b"\r\n");
    let head_len = answer.windows(4).position(|part| part == b"\r\n\r\n").map_or(0, |at| at + 4);
    let (mut rest, mut body) = (&answer[head_len..], Vec::new());
    while let Some(at) = line_end(rest)
        && let Some(len) = str::from_utf8(&rest[..at]).ok().and_then(|it| usize::from_str_radix(it, 16).ok())
        && let Some(chunk) = rest.get(at + 2..at + 2 + len)
    {
        body.extend_from_slice(chunk);
        rest = rest.get(at + 2 + len + 2..).unwrap_or_default();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_make_a_body() {
        let answer =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(body_of(answer), b"abc0123456789");
        assert_eq!(body_of(&answer[..answer.len() - 7]), b"abc0123456789");
        assert_eq!(body_of(&answer[..60]), b"abc");
    }
}
