//! Messages whose answers may be streams of unknown length, from clients over HTTP.
//!
//! A connection carries one message: a frame with the transport of the answer, the address of the
//! client and the message. The frames that follow in the other direction are the answer, in parts;
//! an empty one is its end. Without that, the answer is incomplete.

use crate::fields::{address, put_address};
use handle_proto::error::Field;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::cursor::Cursor;
use std::net::IpAddr;

/// Maximum length of a frame to `handle-admin`: the transport, the address, and the longest
/// message.
pub const REQUEST_LEN_MAX: usize = 1 + 16 + Envelope::LEN + MESSAGE_LEN_MAX as usize;
/// Maximum length of a part of an answer.
pub const PART_LEN_MAX: usize = 64 << 10;

/// The transport of the answer to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayRoute {
    /// HTTP, or HTTPS with a key other than the server key.
    Http = 0,
    /// HTTPS with the server key.
    Https = 1,
}

/// A message to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayedRequest<'a> {
    /// The transport of the answer.
    pub route: RelayRoute,
    /// Address of the client.
    pub source: IpAddr,
    /// The message, envelope first.
    pub message: &'a [u8],
}

impl<'a> RelayedRequest<'a> {
    /// Decodes the content of a frame; `None` if it is malformed.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(frame);
        let route = match cursor.u8(Field::Answer).ok()? {
            0 => RelayRoute::Http,
            1 => RelayRoute::Https,
            _ => return None,
        };
        Some(Self { route, source: address(&mut cursor)?, message: cursor.rest() })
    }

    /// Appends the content of a frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.route as u8);
        put_address(out, self.source);
        out.extend_from_slice(self.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_those_that_are_cut_or_unknown_are_refused() {
        for source in ["192.0.2.1", "2001:db8::1"] {
            for route in [RelayRoute::Http, RelayRoute::Https] {
                for message in [&b""[..], b"a message"] {
                    let request = RelayedRequest { route, source: source.parse().unwrap(), message };
                    let mut frame = Vec::new();
                    request.encode(&mut frame);
                    assert_eq!(RelayedRequest::decode(&frame), Some(request));
                    for len in 0..17 {
                        assert_eq!(RelayedRequest::decode(&frame[..len]), None, "cut to {len}");
                    }
                    frame[0] = 2;
                    assert_eq!(RelayedRequest::decode(&frame), None, "an unknown transport");
                }
            }
        }
    }
}
