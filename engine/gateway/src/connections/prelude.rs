//! The first bytes of a connection, which identify its protocol.

use super::stream::ClientStream;
use proxy_header::{Error as ProxyError, ParseConfig, ProxyHeader};
use std::io::{self, ErrorKind};
use std::net::IpAddr;

/// First byte of every TLS connection: the type of a handshake record. No method of HTTP begins
/// with it.
const TLS_FIRST_BYTE: u8 = 0x16;
/// First bytes of a client that knows that the server speaks HTTP/2. RFC 9113 section 3.4.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum length of a header of the PROXY protocol.
const PROXY_HEADER_LEN_MAX: usize = 4096;

/// Reads a header of the PROXY protocol. Returns the client that it names; `None` for a connection
/// of the proxy itself.
///
/// # Errors
/// When there is no valid header, or the connection fails.
pub async fn read_proxy_header(stream: &mut ClientStream) -> io::Result<Option<IpAddr>> {
    loop {
        match ProxyHeader::parse(stream.ahead(), ParseConfig::default()) {
            Ok((header, len)) => {
                let client = header.proxied_address().map(|address| address.source.ip().to_canonical());
                stream.skip(len);
                return Ok(client);
            }
            Err(ProxyError::BufferTooShort) if stream.ahead().len() < PROXY_HEADER_LEN_MAX => {
                if !stream.read_ahead(PROXY_HEADER_LEN_MAX).await? {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::new(ErrorKind::InvalidData, error)),
        }
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionProtocol {
    /// TLS; the handshake negotiates the version of HTTP.
    Tls,
    /// HTTP/1.1, or bytes that are not HTTP.
    Http1,
    /// HTTP/2, chosen by the client without negotiation.
    Http2,
}

/// Reads ahead until the protocol is recognised.
///
/// # Errors
/// Those of the connection.
pub async fn read_prelude(
    stream: &mut ClientStream,
    has_tls: bool,
    has_http2: bool,
) -> io::Result<ConnectionProtocol> {
    if !has_tls && !has_http2 {
        return Ok(ConnectionProtocol::Http1);
    }
    loop {
        match recognise(stream.ahead(), has_tls, has_http2) {
            Some(protocol) => return Ok(protocol),
            None if stream.read_ahead(HTTP2_PREFACE.len()).await? => {}
            // hyper reports the end of the stream.
            None => return Ok(ConnectionProtocol::Http1),
        }
    }
}

/// The protocol of a connection that begins with `bytes`; `None` if they are too few.
fn recognise(bytes: &[u8], has_tls: bool, has_http2: bool) -> Option<ConnectionProtocol> {
    let first = *bytes.first()?;
    if has_tls && first == TLS_FIRST_BYTE {
        return Some(ConnectionProtocol::Tls);
    }
    let len = bytes.len().min(HTTP2_PREFACE.len());
    if !has_http2 || bytes[..len] != HTTP2_PREFACE[..len] {
        return Some(ConnectionProtocol::Http1);
    }
    (len == HTTP2_PREFACE.len()).then_some(ConnectionProtocol::Http2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_recognised_by_their_first_bytes() {
        let of = |bytes: &[u8]| recognise(bytes, true, true);
        assert_eq!(of(b""), None);
        assert_eq!(of(b"\x16\x03"), Some(ConnectionProtocol::Tls));
        for len in 1..HTTP2_PREFACE.len() {
            assert_eq!(of(&HTTP2_PREFACE[..len]), None, "{len}");
            let other = [&HTTP2_PREFACE[..len], b"\0"].concat();
            assert_eq!(of(&other), Some(ConnectionProtocol::Http1), "{len}");
        }
        assert_eq!(of(HTTP2_PREFACE), Some(ConnectionProtocol::Http2));
        assert_eq!(of(b"PUT /x HTTP/1.1"), Some(ConnectionProtocol::Http1));
        assert_eq!(recognise(HTTP2_PREFACE, true, false), Some(ConnectionProtocol::Http1));
        assert_eq!(recognise(b"\x16\x03", false, true), Some(ConnectionProtocol::Http1));
    }
}
