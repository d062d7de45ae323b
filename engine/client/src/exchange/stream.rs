//! The content of a connection: plain messages, HTTP, or HTTP within TLS.

use super::{AttemptError, http};
use crate::plan::ServerTarget;
use handle_proto::data::site::InterfaceProtocol;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::stream::{StreamFront, split};

#[cfg(feature = "tls")]
use super::tls::Tls;

/// The connection of one request.
#[derive(Debug)]
pub(super) struct ExchangeStream {
    /// Bytes to send.
    outgoing: Vec<u8>,
    /// Received bytes of the message.
    received: Vec<u8>,
    http: Option<http::HttpMessageReader>,
    #[cfg(feature = "tls")]
    tls: Option<Box<Tls>>,
}

impl ExchangeStream {
    /// A connection to `target` that carries `message`, which is about `handle`.
    pub(super) fn new(target: &ServerTarget, handle: &[u8], message: &[u8]) -> Result<Self, AttemptError> {
        let in_http = |port_default| {
            let host = target.domain.as_deref();
            http::request(target.address, port_default, host, &target.path, handle, message)
        };
        let mut stream = Self {
            outgoing: vec![],
            received: vec![],
            http: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        match target.protocol {
            InterfaceProtocol::HTTP => {
                (stream.outgoing, stream.http) = (in_http(80), Some(http::HttpMessageReader::default()));
            }
            #[cfg(feature = "tls")]
            InterfaceProtocol::HTTPS => {
                let tls = Tls::new(target.address.ip(), &target.public_key, &in_http(443))?;
                (stream.tls, stream.http) = (Some(Box::new(tls)), Some(http::HttpMessageReader::default()));
            }
            #[cfg(not(feature = "tls"))]
            InterfaceProtocol::HTTPS => return Err(AttemptError::Tls),
            _ => stream.outgoing = message.to_vec(),
        }
        Ok(stream)
    }

    /// Whether there are bytes to send.
    pub(super) fn has_outgoing(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.has_outgoing();
        }
        !self.outgoing.is_empty()
    }

    /// The bytes to send now.
    pub(super) fn outgoing(&mut self) -> Vec<u8> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.outgoing();
        }
        std::mem::take(&mut self.outgoing)
    }

    /// Takes received bytes; returns the message once it is complete.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, AttemptError> {
        #[cfg(feature = "tls")]
        let plain;
        #[cfg(feature = "tls")]
        let bytes = match &mut self.tls {
            Some(tls) => {
                plain = tls.receive(bytes)?;
                plain.as_slice()
            }
            None => bytes,
        };
        match &mut self.http {
            Some(http) => self.received.append(&mut http.receive(bytes)?),
            None => self.received.extend_from_slice(bytes),
        }
        // A line end may precede a message in HTTP. No message begins with one, because its version
        // would be 10 or 13.
        let begins_a_line = self.received.first().is_some_and(|byte| b"\r\n".contains(byte));
        let message = &self.received[usize::from(self.http.is_some() && begins_a_line)..];
        match split(message, MESSAGE_LEN_MAX)? {
            StreamFront::Message(message, _) => Ok(Some(message.to_vec())),
            // No more bytes will arrive, so waiting would be useless.
            StreamFront::Needs(_) if self.http.as_ref().is_some_and(http::HttpMessageReader::is_over) => {
                Err(AttemptError::Ended)
            }
            StreamFront::Needs(_) => Ok(None),
        }
    }
}
