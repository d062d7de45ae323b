//! What the connections of the socket are for, and what each of them may do.

use crate::{bulk, callers, forward, relay};

/// The purpose of a connection. Every frame of it has this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LocalKind {
    /// Requests that `handled` forwards ([`forward`]).
    Forward = 1,
    /// Changes of many records, and searches ([`bulk`]).
    Bulk = 2,
    /// Requests about callers over HTTP ([`callers`]).
    Callers = 3,
    /// Messages whose answers may be streams ([`relay`]).
    Relay = 4,
    /// Lines of JSON about the changes of the store, for programs that follow them.
    Changes = 5,
}

/// Who connects, besides processes of the user of `handle-admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalPeer {
    /// `handled`.
    Handled,
    /// `handle-gateway`.
    Gateway,
    /// Programs that follow changes.
    Follower,
}

/// Length of the request of a program that follows changes.
const CHANGES_REQUEST_LEN_MAX: usize = 8192;
/// Maximum length of a frame of lines about changes. A program needs this much memory besides that
/// for one line.
const CHANGES_LEN_MAX: usize = 256 << 10;

impl LocalKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Forward, Self::Bulk, Self::Callers, Self::Relay, Self::Changes];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// Its name, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Bulk => "bulk",
            Self::Callers => "callers",
            Self::Relay => "relay",
            Self::Changes => "changes",
        }
    }

    /// Who connects.
    #[must_use]
    pub const fn peer(self) -> LocalPeer {
        match self {
            Self::Forward => LocalPeer::Handled,
            Self::Bulk | Self::Callers | Self::Relay => LocalPeer::Gateway,
            Self::Changes => LocalPeer::Follower,
        }
    }

    /// Maximum length of the content of a frame to `handle-admin`.
    #[must_use]
    pub const fn request_len_max(self) -> usize {
        match self {
            Self::Forward => forward::REQUEST_LEN_MAX,
            Self::Bulk => bulk::REQUEST_LEN_MAX,
            Self::Callers => callers::LEN_MAX,
            Self::Relay => relay::REQUEST_LEN_MAX,
            Self::Changes => CHANGES_REQUEST_LEN_MAX,
        }
    }

    /// Maximum length of the content of a frame from `handle-admin`.
    #[must_use]
    pub const fn reply_len_max(self) -> usize {
        match self {
            Self::Forward => forward::ANSWER_LEN_MAX,
            Self::Bulk => bulk::RESULTS_LEN_MAX,
            Self::Callers => callers::LEN_MAX,
            Self::Relay => relay::PART_LEN_MAX,
            Self::Changes => CHANGES_LEN_MAX,
        }
    }
}
