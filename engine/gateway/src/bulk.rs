//! Changes of many records, handed over to `handle-admin` ([`handle_local::bulk`]).
//!
//! A connection serves one request of one caller, whose secret answers the challenge of
//! `handle-admin`.

use handle_auth::challenge::{answer_in_session, answer_with_secret};
use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_local::bulk::{
    BEGIN_LEN_MAX, BulkBegin, BulkChange, BulkKey, BulkReply, BulkRequest, BulkResult, BulkSearch,
    CHANGE_HEADER_LEN, RESULTS_LEN_MAX, covered,
};
use handle_local::connection::{FrameReader, LocalConnection};
use handle_local::frame;
use handle_local::kind::LocalKind;
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::admin::StorePosition;
use handle_proto::wire::auth::{GATEWAY_SESSION, SECRET_KEY};
use handle_proto::wire::list::Reference;
use handle_proto::{ResponseCode, Version};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Length that nearly every search fits in. They are not secret, so others may grow.
const USUAL_SEARCH_LEN: usize = 1024;

/// Why changes are not carried out.
#[derive(Debug)]
pub enum BulkError {
    /// `handle-admin` does not answer, or its answer is malformed.
    Lost(io::Error),
    /// The key was used with another body.
    OtherBody,
    /// `handle-admin` refuses.
    Refused(ResponseCode, String),
    /// The identity has neither a secret nor a session.
    NoSecret,
}

impl From<io::Error> for BulkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ResourceBusy => Self::busy(),
            _ => Self::Lost(error),
        }
    }
}

impl BulkError {
    /// The error when too many requests are under way, here or at `handle-admin`.
    #[must_use]
    pub fn busy() -> Self {
        let message = "Too many requests to the administration service are under way";
        Self::Refused(ResponseCode::SERVER_BUSY, message.to_owned())
    }

    /// Whether a caller that could not be proven may be proven a while later: `handle-admin` is
    /// busy, or restarts.
    const fn is_temporary(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Refused(ResponseCode::SERVER_BUSY, _))
    }
}

/// Time after which opening a connection is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Repeated tries to open a connection, before any change is handed over on it.
#[derive(Debug)]
pub(crate) struct OpenTries {
    until: Instant,
}

impl OpenTries {
    /// Tries for as long as `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit }
    }

    /// Waits for the next try, after one that failed with `error`.
    ///
    /// # Errors
    /// `error`, if there is no next try.
    pub(crate) async fn wait_after(&self, error: BulkError) -> Result<(), BulkError> {
        if !error.is_temporary() || Instant::now() >= self.until {
            return Err(error);
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }
}

/// A key under which a request may be repeated: its name, and the digest of the body.
pub type RequestKey = (String, [u8; 32]);

/// Opens a connection for a caller, and authenticates the caller.
///
/// # Errors
/// When `handle-admin` cannot be reached or refuses.
pub async fn open(
    path: &Path,
    timeout: Duration,
    identity: Arc<ClientIdentity>,
    source: IpAddr,
    key: Option<&RequestKey>,
) -> Result<LocalConnection, BulkError> {
    let opened = tokio::time::timeout(timeout, async {
        let mut connection = LocalConnection::connect(path, LocalKind::Bulk).await?;
        let begin_frame = BulkBegin {
            identity: Reference { handle: &identity.handle, index: identity.index },
            source,
            key: key.map(|(name, digest)| BulkKey { name: name.as_bytes(), digest: *digest }),
        };
        let mut begin = Vec::new();
        BulkRequest::Begin(begin_frame).encode(&mut begin);
        connection.send(begin.len(), |content| content.extend_from_slice(&begin)).await?;
        let nonce = match BulkReply::decode(&connection.reader.receive(BEGIN_LEN_MAX).await?) {
            Some(BulkReply::Challenge(nonce)) => nonce,
            _ => return Err(malformed().into()),
        };
        // Deriving a key from the secret takes milliseconds.
        let prover = Arc::clone(&identity);
        let proof = tokio::task::spawn_blocking(move || prove(&prover, nonce, &begin));
        let proof = proof.await.map_err(io::Error::other)?;
        let (auth_type, proof) = proof.ok_or(BulkError::NoSecret)?;
        let proof = BulkRequest::Proof { auth_type, signed_response: &proof };
        connection.writer.send(BEGIN_LEN_MAX, |content| proof.encode(content)).await?;
        match BulkReply::decode(&connection.reader.receive(BEGIN_LEN_MAX).await?) {
            Some(BulkReply::Accepted) => Ok(connection),
            Some(BulkReply::OtherBody) => Err(BulkError::OtherBody),
            Some(BulkReply::Refused(code, text)) => {
                Err(BulkError::Refused(code, String::from_utf8_lossy(text).into_owned()))
            }
            _ => Err(malformed().into()),
        }
    });
    opened.await.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into()))
}

/// The answer to the challenge. It covers the frame `begin`, so it is valid for this request only.
fn prove(
    identity: &ClientIdentity,
    nonce: [u8; NONCE_LEN],
    begin: &[u8],
) -> Option<(&'static [u8], Vec<u8>)> {
    let (version, digest) = (Version::CURRENT, covered(begin));
    let covered: [&[u8]; 2] = [&nonce, &digest];
    match &identity.key {
        IdentityKey::Secret(secret) => {
            let salt = handle_auth::random();
            Some((SECRET_KEY, answer_with_secret(version, version, &covered, secret, &salt)))
        }
        IdentityKey::Session(key) => {
            Some((GATEWAY_SESSION, answer_in_session(&covered, &key.id, &*key.secret)))
        }
        IdentityKey::Private(_) => None,
    }
}

/// Receives the results of one frame of changes, and a state of the store that includes them.
///
/// # Errors
/// When the connection fails, or `handle-admin` refuses to continue.
pub async fn receive_results(
    reader: &mut FrameReader,
    timeout: Duration,
) -> Result<(StorePosition, Vec<BulkResult>), BulkError> {
    let received = tokio::time::timeout(timeout, reader.receive(RESULTS_LEN_MAX)).await;
    let frame = received.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
    match BulkReply::decode(&frame) {
        Some(BulkReply::Results(position, results)) => Ok((position, results)),
        Some(BulkReply::Refused(code, text)) => {
            Err(BulkError::Refused(code, String::from_utf8_lossy(text).into_owned()))
        }
        _ => Err(malformed().into()),
    }
}

/// A part of the handles that a search finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPart {
    /// The handles.
    pub handles: Vec<String>,
    /// Where the next part begins; `None` if there is no other.
    pub next: Option<Vec<u8>>,
}

/// Sends a search and receives its answer.
///
/// # Errors
/// When the connection fails, or `handle-admin` refuses.
pub async fn search(
    connection: &mut LocalConnection,
    timeout: Duration,
    search: BulkSearch<'_>,
) -> Result<FoundPart, BulkError> {
    let request = BulkRequest::Search(search);
    let exchanged = tokio::time::timeout(timeout, async {
        connection.send(USUAL_SEARCH_LEN, |content| request.encode(content)).await?;
        connection.reader.receive(RESULTS_LEN_MAX).await
    });
    let frame = exchanged.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
    match BulkReply::decode(&frame) {
        Some(BulkReply::Found(handles, next)) => Ok(FoundPart {
            handles: handles.into_iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect(),
            next: Some(next.to_vec()).filter(|next| !next.is_empty()),
        }),
        Some(BulkReply::Refused(code, text)) => {
            Err(BulkError::Refused(code, String::from_utf8_lossy(text).into_owned()))
        }
        _ => Err(malformed().into()),
    }
}

/// A frame with changes and their numbers.
#[must_use]
pub fn changes_frame(changes: &[(u32, Vec<u8>)]) -> Zeroizing<Vec<u8>> {
    let len: usize = changes.iter().map(|(_, message)| message.len() + CHANGE_HEADER_LEN).sum();
    let changes = changes.iter().map(|(number, message)| BulkChange { number: *number, message }).collect();
    frame::encode(LocalKind::Bulk, len + 1, |content| BulkRequest::Changes(changes).encode(content))
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a frame cannot be parsed: is handle-admin of another version?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::administration::IdentityKey;
    use handle_local::bulk::{CHANGE_LEN_MAX, FRAME_CHANGES_MAX, FRAME_LEN};
    use handle_local::refusal::LocalRefusal;
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn a_service_with_too_many_connections_is_busy_and_one_that_refuses_this_user_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.socket");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for refusal in [LocalRefusal::Busy, LocalRefusal::User] {
                listener.accept().unwrap().0.write_all(&frame::refuse(refusal)).unwrap();
            }
        });
        let key = IdentityKey::Secret(Zeroizing::new(b"secret".to_vec()));
        let identity = Arc::new(ClientIdentity { handle: b"0.NA/1".to_vec(), index: 300, key });
        let open =
            || open(&path, Duration::from_secs(30), Arc::clone(&identity), [127, 0, 0, 1].into(), None);
        run(async {
            let busy = open().await.unwrap_err();
            assert!(matches!(busy, BulkError::Refused(ResponseCode::SERVER_BUSY, _)), "{busy:?}");
            let BulkError::Lost(refused) = open().await.unwrap_err() else { panic!("another error") };
            assert_eq!(LocalRefusal::of(&refused), Some(LocalRefusal::User));
        });
    }

    #[test]
    fn a_connection_is_opened_again_while_the_service_is_busy_or_restarts_and_not_after_a_refusal() {
        let lost = || BulkError::Lost(ErrorKind::ConnectionRefused.into());
        let refused = || BulkError::Refused(ResponseCode::AUTHENTICATION_FAILED, String::new());
        run(async {
            let tries = OpenTries::new(Duration::from_secs(30));
            for error in [lost(), BulkError::busy()] {
                tries.wait_after(error).await.unwrap();
            }
            for error in [refused(), BulkError::OtherBody, BulkError::NoSecret] {
                tries.wait_after(error).await.unwrap_err();
            }
            OpenTries::new(Duration::ZERO).wait_after(lost()).await.unwrap_err();
        });
    }

    #[test]
    fn the_longest_frame_of_changes_is_no_longer_than_its_kind_allows() {
        let last = vec![0; CHANGE_LEN_MAX];
        let first = vec![0; (FRAME_LEN - 1) / (FRAME_CHANGES_MAX - 1)];
        let mut changes: Vec<(u32, Vec<u8>)> = (1..1024).map(|number| (number, first.clone())).collect();
        changes.push((1024, last));
        assert_eq!(changes.len(), FRAME_CHANGES_MAX);
        let frame = changes_frame(&changes);
        frame::read(&mut &frame[..], LocalKind::Bulk, LocalKind::Bulk.request_len_max()).unwrap();
    }
}
