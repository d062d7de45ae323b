//! Callers over HTTP, proven by `handle-admin` at its local socket.
//!
//! The gateway passes proofs on and cannot make them: a nonce begins with bytes of `handle-admin`,
//! which verifies what a caller has signed with the keys of the caller.

use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey, SessionKey};
use handle_daemon::callers::{
    CallerProof, CallerRefusal, CallerReply, CallerRequest, CallerSessionId, NONCE_LEN, NONCE_START_LEN,
    read_frame, write_frame,
};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// A nonce that callers sign.
pub type CallerNonce = [u8; NONCE_LEN];

/// The signature of the server over both nonces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSignature {
    /// The name of its digest.
    pub algorithm: String,
    /// The signature.
    pub signature: Vec<u8>,
}

/// Why a caller is not proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerError {
    /// `handle-admin` says so.
    Refused(CallerRefusal),
    /// `handle-admin` did not answer, or not what was asked.
    Unreachable,
}

/// The start of nonces, and until when it is used.
#[derive(Clone, Copy, Debug)]
struct NonceStart {
    bytes: [u8; NONCE_START_LEN],
    since: Instant,
    valid: Duration,
}

impl NonceStart {
    /// Whether a nonce made now can be signed for half of the time at least.
    fn is_young(&self) -> bool {
        self.since.elapsed() < self.valid / 2
    }
}

/// The socket of `handle-admin` for callers.
#[derive(Debug)]
pub struct CallerService {
    socket: PathBuf,
    patience: Duration,
    start: Mutex<Option<NonceStart>>,
    /// Held while a new start is asked for.
    asking: tokio::sync::Mutex<()>,
}

impl CallerService {
    /// The service at `socket`, which may take `patience` for each answer.
    #[must_use]
    pub fn new(socket: &Path, patience: Duration) -> Self {
        let asking = tokio::sync::Mutex::new(());
        Self { socket: socket.to_owned(), patience, start: Mutex::new(None), asking }
    }

    /// A fresh nonce; `None` when `handle-admin` does not answer.
    pub async fn nonce(self: &Arc<Self>) -> Option<CallerNonce> {
        let young = || self.known_start().filter(NonceStart::is_young);
        let start = match young() {
            Some(start) => start,
            None => {
                let _asking = self.asking.lock().await;
                // Another request may have asked in the meantime.
                match young() {
                    Some(start) => start,
                    None => self.ask_start().await?,
                }
            }
        };
        let mut nonce = [0; NONCE_LEN];
        let (first, last) = nonce.split_at_mut(NONCE_START_LEN);
        first.copy_from_slice(&start.bytes);
        last.copy_from_slice(&random::<NONCE_START_LEN>());
        Some(nonce)
    }

    fn known_start(&self) -> Option<NonceStart> {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the start of nonces: `handle-admin` no longer knows it.
    pub fn forget_start(&self) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn ask_start(self: &Arc<Self>) -> Option<NonceStart> {
        let (service, since) = (Arc::clone(self), Instant::now());
        let asked = tokio::task::spawn_blocking(move || service.exchange(&CallerRequest::NonceStart));
        match asked.await {
            Ok(Ok(CallerReply::NonceStart { start: bytes, valid_ms })) => {
                let start = NonceStart { bytes, since, valid: Duration::from_millis(valid_ms.into()) };
                *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
                Some(start)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, socket = %self.socket.display(), "handle-admin gives no nonces");
                None
            }
            Ok(Ok(_)) | Err(_) => None,
        }
    }

    /// Has a proof verified, and returns the identity with the session that `handle-admin` started.
    /// Blocks.
    ///
    /// # Errors
    /// When the proof does not count, or `handle-admin` does not answer.
    pub fn prove(&self, proof: &CallerProof<'_>) -> Result<ClientIdentity, CallerError> {
        match self.exchange(&CallerRequest::Prove(*proof)) {
            Ok(CallerReply::Proven { id, secret, index }) => Ok(ClientIdentity {
                handle: proof.identity.handle.to_vec(),
                index,
                key: IdentityKey::Session(SessionKey { id, secret }),
            }),
            Ok(CallerReply::Refused(refusal)) => {
                if refusal == CallerRefusal::Stale {
                    self.forget_start();
                }
                Err(CallerError::Refused(refusal))
            }
            Ok(_) => Err(CallerError::Unreachable),
            Err(error) => {
                tracing::warn!(%error, socket = %self.socket.display(), "handle-admin proves no callers");
                Err(CallerError::Unreachable)
            }
        }
    }

    /// Has the server sign both nonces. Blocks.
    ///
    /// # Errors
    /// When it does not.
    pub fn sign(
        &self,
        nonce: &[u8],
        client_nonce: &[u8],
        source: IpAddr,
    ) -> Result<ServerSignature, CallerError> {
        match self.exchange(&CallerRequest::Sign { nonce, client_nonce, source }) {
            Ok(CallerReply::Signed { algorithm, signature }) => {
                Ok(ServerSignature { algorithm: String::from_utf8_lossy(&algorithm).into_owned(), signature })
            }
            Ok(CallerReply::Refused(refusal)) => Err(CallerError::Refused(refusal)),
            Ok(_) | Err(_) => Err(CallerError::Unreachable),
        }
    }

    /// Ends a session. Blocks. A session that cannot be ended ends after a while.
    pub fn end(&self, id: CallerSessionId) {
        if let Err(error) = self.exchange(&CallerRequest::End(id)) {
            tracing::debug!(%error, "a session ends by itself");
        }
    }

    /// One request, and its reply.
    fn exchange(&self, request: &CallerRequest<'_>) -> io::Result<CallerReply> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        write_frame(&stream, &request.encode())?;
        let reply: Zeroizing<Vec<u8>> = read_frame(&stream)?;
        CallerReply::decode(&reply).ok_or_else(|| ErrorKind::InvalidData.into())
    }
}
