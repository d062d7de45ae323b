//! Notices of publication: `handle-admin` tells machines of each set, over TCP.
//!
//! Machine and publisher have the same key. Both prove it with nonces (HMAC-SHA-256), and every
//! notice has a MAC with its number in the connection. Notices are not encrypted: they have the
//! epoch and the generation of a set, and nothing is believed because of them. A machine that gets
//! one looks at its source, as it does at intervals anyway. [`listener`] is the side of the
//! machine.
//!
//! | from | bytes |
//! |---|---|
//! | machine | [`MAGIC`], nonce |
//! | publisher | nonce, proof |
//! | machine | proof |
//! | publisher | notices, each with epoch, generation and MAC, until the connection ends |

pub mod listener;

use crate::server_key::{SecretFileError, read_secret};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The first bytes of a connection.
pub const MAGIC: [u8; 8] = *b"HANDLEN1";
/// Length of a nonce, and of a MAC.
const NONCE_LEN: usize = 32;
/// Length of the first message of the machine.
pub const HELLO_LEN: usize = MAGIC.len() + NONCE_LEN;
/// Length of the first message of the publisher.
pub const CHALLENGE_LEN: usize = 2 * NONCE_LEN;
/// Length of the second message of the machine.
pub const PROOF_LEN: usize = NONCE_LEN;
/// Length of a notice.
pub const NOTICE_LEN: usize = 16 + NONCE_LEN;
/// Least bytes of a key.
pub const KEY_LEN_MIN: usize = 32;

/// A number that is used once.
pub type Nonce = [u8; NONCE_LEN];

/// The set that machines can fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicationNotice {
    /// Its epoch; 0 if there is no set yet.
    pub epoch: u64,
    /// Its generation; 0 if there is no set yet.
    pub generation: u64,
}

/// The key that machines and publisher share.
pub struct NoticeKey(Zeroizing<Vec<u8>>);

impl fmt::Debug for NoticeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoticeKey")
    }
}

/// Why a key cannot be used.
#[derive(Debug)]
pub enum NoticeKeyError {
    /// The file cannot be read, or others may read it.
    File(SecretFileError),
    /// The key is too short: its file, and its length.
    Short(PathBuf, usize),
}

impl fmt::Display for NoticeKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "cannot read the key of notices: {error}"),
            Self::Short(path, len) => write!(
                f,
                "the key of notices in {} has {len} bytes; it needs at least {KEY_LEN_MIN} \
                 (openssl rand -hex 32)",
                path.display()
            ),
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for NoticeKeyError {}

impl NoticeKey {
    /// Reads a key: the content of the file, without the white space at its end.
    ///
    /// # Errors
    /// When the file cannot be read, others may read it, or it is too short.
    pub fn read(path: &Path) -> Result<Self, NoticeKeyError> {
        let mut bytes = read_secret(path).map_err(NoticeKeyError::File)?;
        let len = bytes.trim_ascii_end().len();
        bytes.truncate(len);
        if len < KEY_LEN_MIN {
            return Err(NoticeKeyError::Short(path.to_owned(), len));
        }
        Ok(Self(bytes))
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeSide {
    /// The machine that fetches.
    Machine,
    /// The publisher.
    Publisher,
}

/// The MACs of one connection.
#[derive(Debug)]
pub struct NoticeSession {
    mac: Hmac<Sha256>,
    /// Number of notices so far.
    count: u64,
}

impl NoticeSession {
    /// The session of a connection with these nonces.
    ///
    /// # Panics
    /// Never: HMAC takes keys of any length.
    #[must_use]
    pub fn new(key: &NoticeKey, machine: &Nonce, publisher: &Nonce) -> Self {
        let keyed = |key: &[u8]| Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
        let derived = keyed(&key.0).chain_update(machine).chain_update(publisher).finalize();
        Self { mac: keyed(&derived.into_bytes()), count: 0 }
    }

    fn proof_mac(&self, side: NoticeSide) -> Hmac<Sha256> {
        self.mac.clone().chain_update(match side {
            NoticeSide::Machine => &b"machine"[..],
            NoticeSide::Publisher => b"publisher",
        })
    }

    /// Proves that this side has the key.
    #[must_use]
    pub fn proof(&self, side: NoticeSide) -> [u8; PROOF_LEN] {
        self.proof_mac(side).finalize().into_bytes().into()
    }

    /// Whether the other side has the key.
    #[must_use]
    pub fn is_proof(&self, side: NoticeSide, proof: &[u8]) -> bool {
        self.proof_mac(side).verify_slice(proof).is_ok()
    }

    fn notice_mac(&mut self, notice: &[u8]) -> Hmac<Sha256> {
        self.count += 1;
        self.mac.clone().chain_update(b"notice").chain_update(self.count.to_be_bytes()).chain_update(notice)
    }

    /// The bytes of the next notice.
    #[must_use]
    pub fn seal(&mut self, notice: PublicationNotice) -> [u8; NOTICE_LEN] {
        let mut bytes = [0; NOTICE_LEN];
        bytes[..8].copy_from_slice(&notice.epoch.to_be_bytes());
        bytes[8..16].copy_from_slice(&notice.generation.to_be_bytes());
        let mac = self.notice_mac(&bytes[..16]).finalize().into_bytes();
        bytes[16..].copy_from_slice(&mac);
        bytes
    }

    /// The next notice; `None` if its MAC is wrong.
    #[must_use]
    pub fn open(&mut self, bytes: &[u8; NOTICE_LEN]) -> Option<PublicationNotice> {
        let (notice, mac) = bytes.split_at(16);
        self.notice_mac(notice).verify_slice(mac).ok()?;
        let (epoch, generation) = notice.split_at(8);
        Some(PublicationNotice {
            epoch: u64::from_be_bytes(epoch.try_into().ok()?),
            generation: u64::from_be_bytes(generation.try_into().ok()?),
        })
    }
}

/// The first message of a machine.
#[must_use]
pub fn hello(nonce: &Nonce) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(nonce);
    bytes
}

/// The nonce of a machine; `None` if its message is not one of this protocol.
#[must_use]
pub fn parse_hello(bytes: &[u8; HELLO_LEN]) -> Option<Nonce> {
    bytes.strip_prefix(&MAGIC)?.try_into().ok()
}

/// The first message of the publisher.
#[must_use]
pub fn challenge(nonce: &Nonce, session: &NoticeSession) -> [u8; CHALLENGE_LEN] {
    let mut bytes = [0; CHALLENGE_LEN];
    bytes[..NONCE_LEN].copy_from_slice(nonce);
    bytes[NONCE_LEN..].copy_from_slice(&session.proof(NoticeSide::Publisher));
    bytes
}

/// The session that the publisher's first message opens; `None` if the publisher has another key.
#[must_use]
pub fn accept_challenge(
    key: &NoticeKey,
    nonce: &Nonce,
    bytes: &[u8; CHALLENGE_LEN],
) -> Option<NoticeSession> {
    let (theirs, proof) = bytes.split_at(NONCE_LEN);
    let session = NoticeSession::new(key, nonce, theirs.try_into().ok()?);
    session.is_proof(NoticeSide::Publisher, proof).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NoticeKey {
        NoticeKey(Zeroizing::new(vec![byte; KEY_LEN_MIN]))
    }

    #[test]
    fn notices_arrive_in_order_and_unchanged_or_not_at_all() {
        let (ours, theirs) = ([1; NONCE_LEN], [2; NONCE_LEN]);
        assert_eq!(parse_hello(&hello(&ours)), Some(ours));
        let mut sender = NoticeSession::new(&key(7), &ours, &theirs);
        let opening = challenge(&theirs, &sender);
        let mut receiver = accept_challenge(&key(7), &ours, &opening).unwrap();
        assert!(sender.is_proof(NoticeSide::Machine, &receiver.proof(NoticeSide::Machine)));
        assert!(!sender.is_proof(NoticeSide::Machine, &sender.proof(NoticeSide::Publisher)), "reflected");
        let notices = [(1, 1), (1, 2), (2, 1), (u64::MAX, u64::MAX)];
        for (epoch, generation) in notices {
            let notice = PublicationNotice { epoch, generation };
            assert_eq!(receiver.open(&sender.seal(notice)), Some(notice));
        }
        let first = sender.seal(PublicationNotice::default());
        let second = sender.seal(PublicationNotice::default());
        assert_eq!(receiver.open(&second), None, "a notice is missing");
        for at in 0..NOTICE_LEN {
            let mut changed = first;
            changed[at] ^= 1;
            let mut receiver = NoticeSession::new(&key(7), &ours, &theirs);
            receiver.count = 4;
            assert_eq!(receiver.open(&changed), None, "byte {at}");
            receiver.count = 4;
            assert!(receiver.open(&first).is_some());
        }
    }

    #[test]
    fn another_key_or_nonce_is_refused() {
        let (ours, theirs) = ([1; NONCE_LEN], [2; NONCE_LEN]);
        let opening = challenge(&theirs, &NoticeSession::new(&key(7), &ours, &theirs));
        assert!(accept_challenge(&key(8), &ours, &opening).is_none());
        assert!(accept_challenge(&key(7), &theirs, &opening).is_none());
        assert!(parse_hello(&[0; HELLO_LEN]).is_none());
    }

    #[test]
    fn keys_have_a_least_length_and_are_secret() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for (text, is_good) in
            [("x".repeat(31), false), ("x".repeat(32), true), ("x".repeat(31) + "\n", false)]
        {
            std::fs::write(&path, &text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(NoticeKey::read(&path).is_ok(), is_good, "{text:?}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(NoticeKey::read(&path), Err(NoticeKeyError::File(_))));
        assert_eq!(format!("{:?}", key(7)), "NoticeKey");
    }
}
