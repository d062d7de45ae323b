//! TLS with a server whose key is in its site record. Only the key of the certificate is checked.
//!
//! Deployed servers make their certificates themselves, so names, dates and issuers prove nothing.
//! RFC 3651 section 3.2.2 for the key in the site record.

use super::AttemptError;
use crate::key_verifier::{config_accepting, public_key_der};
use crate::signature::is_same_key;
use handle_auth::pem::public_key_from_der;
use handle_proto::data::PublicKey;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConnection, Error};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

/// A TLS connection, without its socket.
#[derive(Debug)]
pub(crate) struct Tls(ClientConnection);

impl Tls {
    /// A connection to the server at `address` with the key of this record, which sends `request`.
    pub(crate) fn new(address: IpAddr, key_record: &[u8], request: &[u8]) -> Result<Self, AttemptError> {
        if PublicKey::decode(key_record).is_err() {
            return Err(AttemptError::NoKey);
        }
        let record = key_record.to_vec();
        let accepts = move |certificate: &CertificateDer<'_>| has_key(certificate, &record);
        let mut config = config_accepting(accepts).map_err(|_| AttemptError::Tls)?;
        // A connection carries one request, and the next may be to another server.
        config.resumption = Resumption::disabled();
        // By address, so that no name is sent: it would come from a site record, and the server
        // does not need it.
        let name = ServerName::from(address);
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|_| AttemptError::Tls)?;
        // The request waits there until the server has proved its key; it is at most as long as a
        // message.
        connection.set_buffer_limit(None);
        connection.writer().write_all(request).map_err(|_| AttemptError::Tls)?;
        Ok(Self(connection))
    }

    /// Whether there are bytes to send.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.0.wants_write()
    }

    /// The bytes to send now.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = vec![];
        while self.0.wants_write() {
            if self.0.write_tls(&mut bytes).is_err() {
                break;
            }
        }
        bytes
    }

    /// Takes received bytes, and returns their plain text.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, AttemptError> {
        let mut plain = vec![];
        while !bytes.is_empty() {
            // After the close notification of the other side, no more bytes are taken.
            if self.0.read_tls(&mut bytes).map_err(|_| AttemptError::Tls)? == 0 {
                break;
            }
            let state = self.0.process_new_packets().map_err(|error| match error {
                Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                    AttemptError::Certificate
                }
                _ => AttemptError::Tls,
            })?;
            let begin = plain.len();
            plain.resize(begin + state.plaintext_bytes_to_read(), 0);
            self.0.reader().read_exact(&mut plain[begin..]).map_err(|_| AttemptError::Tls)?;
        }
        Ok(plain)
    }
}

/// Whether the key of a certificate is that of `record`.
fn has_key(certificate: &CertificateDer<'_>, record: &[u8]) -> Result<bool, Error> {
    // TLS no longer supports such keys, so these servers show another, unknown key. Callers who
    // need proof must request signed answers.
    if matches!(PublicKey::decode(record), Ok(PublicKey::Dsa { .. })) {
        return Ok(true);
    }
    let shown = public_key_from_der(&public_key_der(certificate)?);
    Ok(shown.is_ok_and(|shown| is_same_key(&shown, record)))
}
