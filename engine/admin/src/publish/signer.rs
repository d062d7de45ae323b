//! The key that signs sets.

use super::PublishError;
use super::settings::PublishConfig;
use handle_auth::PublisherSigner;
use handle_daemon::publisher_keys;
use handle_snapshot::Sha256Sum;
use handle_snapshot::set::statement::StatementSigner;
use std::sync::Arc;

/// Signs statements about sets with a key of the protocol.
#[derive(Debug)]
struct SetSigner(PublisherSigner);

impl StatementSigner for SetSigner {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum(self.0.name())
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.0.sign(message).map_err(|error| error.to_string())
    }
}

/// Reads the configured key; `None` if there is none.
///
/// # Errors
/// When it cannot be read or does not sign.
pub(super) fn open(config: &PublishConfig) -> Result<Option<Arc<dyn StatementSigner>>, PublishError> {
    let Some(key) = config.key() else { return Ok(None) };
    let signer = publisher_keys::read_signer(&key).map_err(|error| PublishError::Key(Box::new(error)))?;
    Ok(Some(Arc::new(SetSigner(signer))))
}
