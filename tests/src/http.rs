//! Scrape endpoints as scrapers read them: one request, and the whole response.

use handle_client::http_answer::HttpAnswerReader;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpReply {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// Gets `path`; `None` if there is no whole response.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> Option<HttpReply> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    read_reply(&response)
}

/// Reads the response of a server that has closed the connection; `None` if it is not whole.
#[must_use]
pub fn read_reply(response: &[u8]) -> Option<HttpReply> {
    let (mut reader, mut body) = (HttpAnswerReader::default(), Vec::new());
    reader.read(response, &mut body).ok()?;
    let status = reader.head()?.status;
    let is_whole = reader.is_over() || reader.is_in_plain_body();
    is_whole.then(|| String::from_utf8(body).ok()).flatten().map(|body| HttpReply { status, body })
}

/// Whether `path` is answered with status 200.
#[must_use]
pub fn is_ok(address: SocketAddr, path: &str) -> bool {
    get(address, path).is_some_and(|reply| reply.status == 200)
}
