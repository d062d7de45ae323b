//! The bytes of a stream: blocks, each of which is followed by its signature in a signed stream.

use super::receivers::Receivers;
use super::source::{ItemCounts, SourceError, StreamSource};
use handle_auth::PrivateKey;
use handle_daemon::permits::HeldPermits;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::put;
use handle_proto::wire::replication_stream::{DIGEST_NAME, StreamProtection};
use rustls::ServerConfig;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length from which on a part is sent.
pub const PART_LEN: usize = 64 << 10;
/// Time after which a shorter part is sent: signatures take milliseconds, and so does skipping the
/// handles of other servers of the receiving site.
const PART_TIME: Duration = Duration::from_millis(200);

/// Collects the blocks of a part.
#[derive(Debug)]
pub(super) struct BlockWriter {
    bytes: Vec<u8>,
    key: Option<Arc<PrivateKey>>,
    until: Instant,
}

impl BlockWriter {
    fn new(key: Option<Arc<PrivateKey>>) -> Self {
        Self { bytes: Vec::with_capacity(PART_LEN), key, until: Instant::now() + PART_TIME }
    }

    /// Whether the part has to be sent.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= PART_LEN || Instant::now() >= self.until
    }

    /// Adds a block, and its signature in a signed stream.
    pub(super) fn block(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SourceError> {
        let start = self.bytes.len();
        write(&mut self.bytes);
        if let Some(key) = &self.key {
            let signature = key.sign(DigestAlgorithm::SHA1, &[&self.bytes[start..]])?;
            put::string(&mut self.bytes, &signature);
        }
        Ok(())
    }

    /// Adds a block that is never signed.
    pub(super) fn unsigned(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
    }

    /// Begins a part. The time since the last one was that of the receiver.
    fn begin(&mut self) {
        self.until = Instant::now() + PART_TIME;
    }

    /// Takes the collected part.
    fn drain(&mut self) -> Vec<u8> {
        std::mem::replace(&mut self.bytes, Vec::with_capacity(PART_LEN))
    }
}

/// A stream that is being sent.
#[derive(Debug)]
pub struct ReplicationStream {
    source: StreamSource,
    protection: StreamProtection,
    tls: Option<Arc<ServerConfig>>,
    out: BlockWriter,
    has_more: bool,
    is_repeated: bool,
    receivers: Arc<Receivers>,
    _permit: HeldPermits<String>,
}

impl ReplicationStream {
    pub(super) fn new(
        source: StreamSource,
        protection: StreamProtection,
        key: Option<Arc<PrivateKey>>,
        tls: Option<Arc<ServerConfig>>,
        permit: HeldPermits<String>,
        receivers: Arc<Receivers>,
    ) -> Self {
        let mut out = BlockWriter::new(key);
        if protection == StreamProtection::Signed {
            // The name of the digest is not part of the first block.
            out.unsigned(|bytes| put::string(bytes, DIGEST_NAME));
        }
        let is_repeated = source.is_repeated(&receivers);
        Self { source, protection, tls, out, has_more: true, is_repeated, receivers, _permit: permit }
    }

    /// Whether the answer equals the previous one, because nothing has changed since. Mirrors ask
    /// again and again, so the audit log has no line of it.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// The four bytes before the stream.
    #[must_use]
    pub const fn front(&self) -> [u8; 4] {
        self.protection.to_bytes()
    }

    /// The configuration of TLS after these bytes, if the stream is encrypted.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.clone()
    }

    /// Numbers of the items so far.
    #[must_use]
    pub const fn counts(&self) -> ItemCounts {
        self.source.counts()
    }

    /// The next part; `None` after the last one. Reads the store, and signs.
    ///
    /// # Errors
    /// When the store cannot be read, or the key does not sign.
    pub fn next_part(&mut self) -> Result<Option<Vec<u8>>, SourceError> {
        if !self.has_more {
            return Ok(None);
        }
        self.out.begin();
        self.has_more = self.source.write(&mut self.out)?;
        Ok(Some(self.out.drain()))
    }

    /// Notes that the receiver has received the whole stream.
    pub fn record_end(&self) {
        self.source.record_end(&self.receivers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_slow_receiver_is_not_that_of_the_next_part() {
        let mut out = BlockWriter::new(None);
        assert!(!out.is_full());
        std::thread::sleep(PART_TIME);
        assert!(out.is_full());
        out.begin();
        assert!(!out.is_full());
    }
}
