//! Scrape endpoints as scrapers read them: one request, and the whole response.

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
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(HttpReply { status, body: body.to_owned() })
}

/// Whether `path` is answered with status 200.
#[must_use]
pub fn is_ok(address: SocketAddr, path: &str) -> bool {
    get(address, path).is_some_and(|reply| reply.status == 200)
}
