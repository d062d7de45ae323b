//! Notices of publication: `handle-admin` notifies machines of each set, over TCP.
//!
//! Machine and publisher have the same key. Both prove it with nonces (HMAC-SHA-256), and every
//! notice has a MAC with its number in the connection. Notices are not encrypted: they have the
//! epoch and the generation of a set, the names of changed handles if the machine asks for them,
//! and no record is believed because of them. A machine that gets one looks at its source, as it
//! does at intervals anyway. [`listener`] is the side of the machine.
//!
//! | from | bytes |
//! |---|---|
//! | machine | [`MAGIC`], 1 if it asks for names or else 0, nonce |
//! | publisher | nonce, proof |
//! | machine | proof |
//! | publisher | notices until the connection ends: epoch, generation, length of the names or [`UNKNOWN_CHANGES`], names, MAC |

mod changed;
pub mod listener;

pub use changed::{CHANGED_LEN_MAX, ChangedHandles, NAME_HEAD_LEN};

use crate::server_key::{SecretFileError, read_secret};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The first bytes of a connection.
pub const MAGIC: [u8; 8] = *b"HANDLEN2";
/// Length of a nonce, and of a MAC.
const NONCE_LEN: usize = 32;
/// Length of the first message of the machine.
pub const HELLO_LEN: usize = MAGIC.len() + 1 + NONCE_LEN;
/// Length of the first message of the publisher.
pub const CHALLENGE_LEN: usize = 2 * NONCE_LEN;
/// Length of the second message of the machine.
pub const PROOF_LEN: usize = NONCE_LEN;
/// Length of what is in front of the names in a notice.
pub const NOTICE_HEAD_LEN: usize = 20;
/// Length of the MAC behind the names.
pub const NOTICE_MAC_LEN: usize = 32;
/// In place of the length of the names: any handle may have changed since the notice before.
pub const UNKNOWN_CHANGES: u32 = u32::MAX;
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

/// The first message of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineHello {
    /// Whether notices are to name the changed handles.
    pub wants_names: bool,
    /// The nonce of the machine.
    pub nonce: Nonce,
}

impl MachineHello {
    /// A message with a new nonce.
    #[must_use]
    pub fn new(wants_names: bool) -> Self {
        Self { wants_names, nonce: handle_auth::random() }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()] = u8::from(self.wants_names);
        bytes[MAGIC.len() + 1..].copy_from_slice(&self.nonce);
        bytes
    }

    /// The message in `bytes`; `None` if it is not one of this protocol.
    #[must_use]
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let (&wants_names, nonce) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        (wants_names <= 1).then_some(Self { wants_names: wants_names == 1, nonce: nonce.try_into().ok()? })
    }
}

/// The first bytes of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeHead {
    /// The set that it announces.
    pub notice: PublicationNotice,
    /// Length of the names of changed handles; `None` if they are not known.
    pub names_len: Option<usize>,
}

impl NoticeHead {
    fn encode(self) -> [u8; NOTICE_HEAD_LEN] {
        let mut bytes = [0; NOTICE_HEAD_LEN];
        let names_len = self.names_len.and_then(|len| u32::try_from(len).ok()).unwrap_or(UNKNOWN_CHANGES);
        bytes[..8].copy_from_slice(&self.notice.epoch.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.notice.generation.to_be_bytes());
        bytes[16..].copy_from_slice(&names_len.to_be_bytes());
        bytes
    }

    /// Reads the first bytes; `None` if there would be more names than [`CHANGED_LEN_MAX`].
    #[must_use]
    pub fn parse(bytes: &[u8; NOTICE_HEAD_LEN]) -> Option<Self> {
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (generation, len) = rest.split_first_chunk()?;
        let (epoch, generation) = (u64::from_be_bytes(*epoch), u64::from_be_bytes(*generation));
        let names_len = match u32::from_be_bytes(len.try_into().ok()?) {
            UNKNOWN_CHANGES => None,
            len => Some(usize::try_from(len).ok().filter(|&len| len <= CHANGED_LEN_MAX)?),
        };
        Some(Self { notice: PublicationNotice { epoch, generation }, names_len })
    }
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
    /// The session of a connection that these messages have begun.
    ///
    /// # Panics
    /// Never: HMAC takes keys of any length.
    #[must_use]
    pub fn new(key: &NoticeKey, machine: &MachineHello, publisher: &Nonce) -> Self {
        let keyed = |key: &[u8]| Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
        let derived = keyed(&key.0).chain_update(machine.encode()).chain_update(publisher).finalize();
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

    /// The bytes of the next notice. `changed` are the handles that have changed since the notice
    /// before, if they are known.
    #[must_use]
    pub fn seal(&mut self, notice: PublicationNotice, changed: Option<&ChangedHandles>) -> Vec<u8> {
        let names = changed.map(ChangedHandles::as_bytes);
        let head = NoticeHead { notice, names_len: names.map(<[u8]>::len) }.encode();
        let mut bytes = [&head, names.unwrap_or_default()].concat();
        let mac = self.notice_mac(&bytes).finalize().into_bytes();
        bytes.extend(mac);
        bytes
    }

    /// The names in a notice, all of whose bytes these are: `Some(None)` if they are not known, and
    /// `None` if the MAC is wrong.
    #[must_use]
    pub fn open(&mut self, head: &NoticeHead, bytes: &[u8]) -> Option<Option<ChangedHandles>> {
        let (notice, mac) = bytes.split_at_checked(bytes.len().checked_sub(NOTICE_MAC_LEN)?)?;
        self.notice_mac(notice).verify_slice(mac).ok()?;
        match head.names_len {
            None => Some(None),
            Some(_) => ChangedHandles::parse(notice.get(NOTICE_HEAD_LEN..)?.to_vec()).map(Some),
        }
    }
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
    hello: &MachineHello,
    bytes: &[u8; CHALLENGE_LEN],
) -> Option<NoticeSession> {
    let (theirs, proof) = bytes.split_at(NONCE_LEN);
    let session = NoticeSession::new(key, hello, theirs.try_into().ok()?);
    session.is_proof(NoticeSide::Publisher, proof).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NoticeKey {
        NoticeKey(Zeroizing::new(vec![byte; KEY_LEN_MIN]))
    }

    const OURS: MachineHello = MachineHello { wants_names: true, nonce: [1; NONCE_LEN] };
    const THEIRS: Nonce = [2; NONCE_LEN];

    /// What a machine reads from the bytes of a notice.
    fn read(
        session: &mut NoticeSession,
        bytes: &[u8],
    ) -> Option<(PublicationNotice, Option<ChangedHandles>)> {
        let head = NoticeHead::parse(bytes.first_chunk().unwrap())?;
        if bytes.len() != NOTICE_HEAD_LEN + head.names_len.unwrap_or(0) + NOTICE_MAC_LEN {
            return None;
        }
        Some((head.notice, session.open(&head, bytes)?))
    }

    #[test]
    fn notices_arrive_in_order_and_unchanged_or_not_at_all() {
        assert_eq!(MachineHello::parse(&OURS.encode()), Some(OURS));
        let mut sender = NoticeSession::new(&key(7), &OURS, &THEIRS);
        let opening = challenge(&THEIRS, &sender);
        let mut receiver = accept_challenge(&key(7), &OURS, &opening).unwrap();
        assert!(sender.is_proof(NoticeSide::Machine, &receiver.proof(NoticeSide::Machine)));
        assert!(!sender.is_proof(NoticeSide::Machine, &sender.proof(NoticeSide::Publisher)), "reflected");
        let mut names = ChangedHandles::default();
        assert!(names.add(b"10.1/x") && names.add(b""));
        let none = ChangedHandles::default();
        let notices = [(1, 1, None), (1, 2, Some(&names)), (2, 1, Some(&none)), (u64::MAX, u64::MAX, None)];
        for (epoch, generation, changed) in notices {
            let notice = PublicationNotice { epoch, generation };
            let sealed = sender.seal(notice, changed);
            assert_eq!(read(&mut receiver, &sealed), Some((notice, changed.cloned())));
        }
        let first = sender.seal(PublicationNotice::default(), Some(&names));
        let second = sender.seal(PublicationNotice::default(), None);
        assert_eq!(read(&mut receiver, &second), None, "a notice is missing");
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 1;
            let mut receiver = NoticeSession::new(&key(7), &OURS, &THEIRS);
            receiver.count = 4;
            assert_eq!(read(&mut receiver, &changed), None, "byte {at}");
            receiver.count = 4;
            assert!(read(&mut receiver, &first).is_some());
        }
    }

    #[test]
    fn more_names_than_fit_are_refused_before_they_are_read() {
        for (len, is_good) in [(CHANGED_LEN_MAX, true), (CHANGED_LEN_MAX + 1, false)] {
            let head = NoticeHead { notice: PublicationNotice::default(), names_len: Some(len) };
            assert_eq!(NoticeHead::parse(&head.encode()).is_some(), is_good, "{len}");
        }
    }

    #[test]
    fn another_key_or_hello_is_refused() {
        let opening = challenge(&THEIRS, &NoticeSession::new(&key(7), &OURS, &THEIRS));
        assert!(accept_challenge(&key(8), &OURS, &opening).is_none());
        for other in [MachineHello { nonce: THEIRS, ..OURS }, MachineHello { wants_names: false, ..OURS }] {
            assert!(accept_challenge(&key(7), &other, &opening).is_none());
        }
        let mut wrong = OURS.encode();
        wrong[MAGIC.len()] = 2;
        assert!(MachineHello::parse(&[0; HELLO_LEN]).is_none() && MachineHello::parse(&wrong).is_none());
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
