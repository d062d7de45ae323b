//! Messages that `handle-gateway` relays to `handle-admin` over a local socket, because the answer
//! may be a stream of unknown length.
//!
//! A connection carries one message: a frame with the transport of the answer, the address of the
//! client and the message. Everything that follows in the other direction, up to the end of the
//! connection, is the answer.

use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use std::net::{IpAddr, Ipv6Addr};

/// Length of the head before the message: transport, address, and length of the message.
pub const HEAD_LEN: usize = 1 + 16 + 4;
/// Maximum length of a message, with its envelope.
pub const MESSAGE_LEN: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize;

/// The transport of the answer to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayRoute {
    /// HTTP, or HTTPS with a key other than the server key.
    Http = 0,
    /// HTTPS with the server key.
    Https = 1,
}

/// The head before a relayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayHead {
    /// The transport of the answer.
    pub route: RelayRoute,
    /// Address of the client.
    pub source: IpAddr,
    /// Length of the message.
    pub message_len: usize,
}

impl RelayHead {
    /// Decodes the head; `None` if it is not valid, or announces a message that is too long.
    #[must_use]
    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Option<Self> {
        let [route, address @ ..] = bytes;
        let route = match route {
            0 => RelayRoute::Http,
            1 => RelayRoute::Https,
            _ => return None,
        };
        let (address, len) = address.split_first_chunk::<16>()?;
        let message_len = u32::from_be_bytes(*len.first_chunk()?) as usize;
        let source = Ipv6Addr::from(*address).to_canonical();
        (message_len <= MESSAGE_LEN).then_some(Self { route, source, message_len })
    }

    /// The bytes of the head.
    ///
    /// # Panics
    /// If the message is 4 GiB long.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[0] = self.route as u8;
        let address = match self.source {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        bytes[1..17].copy_from_slice(&address.octets());
        let len = u32::try_from(self.message_len).expect("messages end at 256 KiB");
        bytes[17..].copy_from_slice(&len.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip_and_have_limits() {
        for source in ["192.0.2.1", "2001:db8::1"] {
            for route in [RelayRoute::Http, RelayRoute::Https] {
                for message_len in [0, 57, MESSAGE_LEN] {
                    let head = RelayHead { route, source: source.parse().unwrap(), message_len };
                    assert_eq!(RelayHead::decode(&head.encode()), Some(head));
                }
            }
        }
        let head = RelayHead { route: RelayRoute::Http, source: [192, 0, 2, 1].into(), message_len: 1 };
        let long = RelayHead { message_len: MESSAGE_LEN + 1, ..head }.encode();
        assert_eq!(RelayHead::decode(&long), None);
        let mut unknown = head.encode();
        unknown[0] = 2;
        assert_eq!(RelayHead::decode(&unknown), None);
    }
}
