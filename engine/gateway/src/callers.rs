//! Callers over HTTP, verified by `handle-admin`.
//!
//! The gateway forwards proofs and cannot make them: a nonce begins with random bytes of
//! `handle-admin`, which verifies the signature of a caller with the keys of the caller.

use crate::administration::is_unreachable;
use crate::failure_series::FailureSeries;
use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey, SessionKey};
use handle_local::callers::{
    CallerProof, CallerRefusal, CallerReply, CallerRequest, CallerSessionId, CertificateProof, LEN_MAX,
    NONCE_LEN, NONCE_START_LEN,
};
use handle_local::connection::LocalConnection;
use handle_local::kind::LocalKind;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

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

/// Why a caller is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerError {
    /// `handle-admin` refuses the proof.
    Refused(CallerRefusal),
    /// `handle-admin` did not answer, or its answer is malformed.
    Unreachable,
}

impl From<io::Error> for CallerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ResourceBusy => Self::Refused(CallerRefusal::Busy),
            _ => Self::Unreachable,
        }
    }
}

/// The start of nonces, and its validity.
#[derive(Clone, Copy, Debug)]
struct NonceStart {
    bytes: [u8; NONCE_START_LEN],
    since: Instant,
    valid: Duration,
}

impl NonceStart {
    /// Whether a nonce made now stays valid for at least half of the time.
    fn is_fresh(&self) -> bool {
        self.since.elapsed() < self.valid / 2
    }
}

/// What `handle-admin` does about callers, at its local socket.
#[derive(Debug)]
pub struct CallerService {
    socket: PathBuf,
    timeout: Duration,
    start: Mutex<Option<NonceStart>>,
    /// Held while a new start is requested.
    request_lock: Arc<tokio::sync::Mutex<()>>,
    ending: Mutex<EndingSessions>,
    failures: FailureSeries,
}

/// Sessions that `handle-admin` has not yet been asked to end. One task at a time asks it.
#[derive(Debug, Default)]
struct EndingSessions {
    ids: VecDeque<CallerSessionId>,
    is_notified: bool,
}

impl CallerService {
    /// The service at `socket`, which has `timeout` for each answer.
    #[must_use]
    pub fn new(socket: &Path, timeout: Duration) -> Self {
        let (request_lock, ending) = (Arc::default(), Mutex::default());
        let failures = FailureSeries::new(socket.display());
        Self { socket: socket.to_owned(), timeout, start: Mutex::new(None), request_lock, ending, failures }
    }

    /// A fresh nonce; `None` when `handle-admin` does not answer.
    pub async fn nonce(self: &Arc<Self>) -> Option<CallerNonce> {
        let fresh_start = || self.known_start().filter(NonceStart::is_fresh);
        let start = match fresh_start() {
            Some(start) => start,
            None => {
                let request_lock = Arc::clone(&self.request_lock).lock_owned().await;
                // Another request may have received a start in the meantime.
                match fresh_start() {
                    Some(start) => start,
                    None => self.request_start(request_lock).await?,
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

    /// Forgets the start of nonces, after `handle-admin` has restarted.
    pub fn forget_start(&self) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Requests a new start. `request_lock` is held until `handle-admin` has answered, even if the
    /// request that needs the start is abandoned.
    async fn request_start(self: &Arc<Self>, request_lock: OwnedMutexGuard<()>) -> Option<NonceStart> {
        let service = Arc::clone(self);
        let reply = tokio::spawn(async move {
            let _request_lock = request_lock;
            service.new_start().await
        });
        reply.await.ok().flatten()
    }

    async fn new_start(&self) -> Option<NonceStart> {
        let since = Instant::now();
        match self.exchange(&CallerRequest::NonceStart).await {
            Ok(CallerReply::NonceStart { start: bytes, valid_ms }) => {
                let start = NonceStart { bytes, since, valid: Duration::from_millis(valid_ms.into()) };
                *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
                Some(start)
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Sends a proof to `handle-admin`, and returns the identity with the session that was started.
    ///
    /// # Errors
    /// When the proof is refused, or `handle-admin` does not answer.
    pub async fn verify(&self, proof: &CallerProof<'_>) -> Result<ClientIdentity, CallerError> {
        self.prove(&CallerRequest::Prove(*proof), proof.identity.handle).await
    }

    /// Sends the proof of a caller with a certificate, which has an identity of `handle`.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn verify_certificate(
        &self,
        proof: &CertificateProof<'_>,
        handle: &[u8],
    ) -> Result<ClientIdentity, CallerError> {
        self.prove(&CallerRequest::ProveByCertificate(*proof), handle).await
    }

    async fn prove(&self, request: &CallerRequest<'_>, handle: &[u8]) -> Result<ClientIdentity, CallerError> {
        match self.exchange(request).await {
            Ok(CallerReply::Proven { id, secret, index }) => Ok(ClientIdentity {
                handle: handle.to_vec(),
                index,
                key: IdentityKey::Session(SessionKey { id, secret }),
            }),
            Ok(CallerReply::Refused(refusal)) => {
                if refusal == CallerRefusal::Stale {
                    self.forget_start();
                }
                Err(CallerError::Refused(refusal))
            }
            Err(error) => Err(error.into()),
            Ok(_) => Err(CallerError::Unreachable),
        }
    }

    /// Requests the signature of the server over both nonces.
    ///
    /// # Errors
    /// When `handle-admin` refuses or does not answer.
    pub async fn sign(
        &self,
        nonce: &[u8],
        client_nonce: &[u8],
        source: IpAddr,
    ) -> Result<ServerSignature, CallerError> {
        match self.exchange(&CallerRequest::Sign { nonce, client_nonce, source }).await {
            Ok(CallerReply::Signed { algorithm, signature }) => {
                Ok(ServerSignature { algorithm: String::from_utf8_lossy(&algorithm).into_owned(), signature })
            }
            Ok(CallerReply::Refused(refusal)) => Err(CallerError::Refused(refusal)),
            Err(error) => Err(error.into()),
            Ok(_) => Err(CallerError::Unreachable),
        }
    }

    fn ending(&self) -> MutexGuard<'_, EndingSessions> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a session ended, by a task that may wait. A session that cannot be ended, or for which
    /// `waiting_max` others wait, ends by itself after a while.
    pub fn end(self: &Arc<Self>, id: CallerSessionId, waiting_max: usize) {
        let mut ending = self.ending();
        if ending.ids.len() >= waiting_max {
            tracing::debug!("a session ends by itself: too many sessions end");
            return;
        }
        ending.ids.push_back(id);
        if !ending.is_notified {
            ending.is_notified = true;
            let service = Arc::clone(self);
            drop(tokio::spawn(async move { service.end_waiting().await }));
        }
    }

    /// Ends the sessions that are to end. A task that has not done so does not do it once its
    /// runtime is dropped.
    pub async fn end_all(&self) {
        self.end_waiting().await;
    }

    async fn end_waiting(&self) {
        loop {
            let next = {
                let mut ending = self.ending();
                let next = ending.ids.pop_front();
                ending.is_notified = next.is_some();
                next
            };
            let Some(id) = next else { return };
            if let Err(error) = self.exchange(&CallerRequest::End(id)).await {
                let mut ending = self.ending();
                let count = ending.ids.len() + 1;
                *ending = EndingSessions::default();
                tracing::debug!(%error, count, "sessions end by themselves");
                return;
            }
        }
    }

    /// One request, and its reply.
    async fn exchange(&self, request: &CallerRequest<'_>) -> io::Result<CallerReply> {
        let exchanged = timeout(self.timeout, self.exchange_once(request)).await;
        let exchanged = exchanged.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        match &exchanged {
            Err(error) if is_unreachable(error.kind()) => self.failures.note(Some(error), Instant::now()),
            Err(error) => {
                tracing::debug!(%error, "a request to handle-admin about a caller failed");
                false
            }
            Ok(_) => self.failures.note(None::<&str>, Instant::now()),
        };
        exchanged
    }

    async fn exchange_once(&self, request: &CallerRequest<'_>) -> io::Result<CallerReply> {
        let mut connection = LocalConnection::connect(&self.socket, LocalKind::Callers).await?;
        let request = request.encode();
        connection.send(request.len(), |content| content.extend_from_slice(&request)).await?;
        CallerReply::decode(&connection.reader.receive(LEN_MAX).await?)
            .ok_or_else(|| ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A `handle-admin` that does not answer, and how many requests have reached it.
    fn silent(directory: &Path) -> (Arc<CallerService>, Arc<AtomicUsize>) {
        let socket = directory.join("admin.socket");
        let (listener, count) = (UnixListener::bind(&socket).unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                kept.push(stream);
            }
        });
        (Arc::new(CallerService::new(&socket, Duration::from_millis(500))), count)
    }

    #[test]
    fn requests_that_are_given_up_and_sessions_that_end_use_one_connection_each() {
        let directory = tempfile::tempdir().unwrap();
        let (service, count) = silent(directory.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..5 {
                let given_up = tokio::time::timeout(Duration::from_millis(20), service.nonce()).await;
                assert!(given_up.is_err(), "handle-admin does not answer");
            }
            assert_eq!(count.load(Ordering::SeqCst), 1, "for nonces");
            for number in 0..5 {
                service.end([number; 16], 3);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(count.load(Ordering::SeqCst), 2, "and for sessions");
            {
                let ending = service.ending();
                assert!(ending.is_notified && ending.ids.len() <= 3, "{ending:?}");
            }
            service.end_all().await;
            let ending = service.ending();
            assert!(
                !ending.is_notified && ending.ids.is_empty(),
                "no request waits for a service that is gone"
            );
        });
    }
}
