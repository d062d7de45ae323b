//! A client that asks `handle-gateway` for many records in one request.

use anyhow::ensure;
use handle_client::http_answer::HttpAnswerReader;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// End of an answer in chunks. A body of JSON has no such line ends.
const END: &[u8] = b"\r\n0\r\n\r\n";
/// Start of an object with the values of a record.
const FOUND: &[u8] = b"\"responseCode\":1,";
/// Longest wait for a part of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

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
        stream.set_read_timeout(Some(TIMEOUT))?;
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
        let mut buffer = [0; 1 << 16];
        while !self.answer.ends_with(END) {
            let len = self.stream.read(&mut buffer)?;
            ensure!(len > 0, "the gateway closed the connection: {}", self.start());
            self.answer.extend_from_slice(&buffer[..len]);
            // An answer to a whole request that is refused has no chunks.
            ensure!(self.answer.starts_with(b"HTTP/1.1 200"), "refused: {}", self.start());
        }
        let took = begun.elapsed();
        let (mut reader, mut body) = (HttpAnswerReader::default(), Vec::new());
        let read = reader.read(&self.answer, &mut body);
        ensure!(read.is_ok() && reader.is_over(), "not an answer over HTTP: {}", self.start());
        let found = body.windows(FOUND.len()).filter(|part| *part == FOUND).count();
        ensure!(found == names.len(), "{found} of {} names found: {}", names.len(), self.start());
        Ok(took)
    }

    /// The start of the last answer, for messages.
    fn start(&self) -> String {
        String::from_utf8_lossy(&self.answer[..self.answer.len().min(300)]).into_owned()
    }
}
