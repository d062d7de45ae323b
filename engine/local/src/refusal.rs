//! Why a connection is refused, as the side that connects learns it.

use crate::frame::FrameError;
use std::fmt;
use std::io::{self, ErrorKind};

/// Why a connection is refused. It is sent as a header of its own, before the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LocalRefusal {
    /// The user may not use the socket.
    User = 1,
    /// The user may not use it for this kind.
    Kind = 2,
    /// Too many connections of the kind or of the user are open.
    Busy = 3,
    /// The first frame has another version or kind, or is too long.
    Frame = 4,
    /// The first frame did not arrive in time.
    Late = 5,
}

impl LocalRefusal {
    /// All refusals.
    pub const ALL: [Self; 5] = [Self::User, Self::Kind, Self::Busy, Self::Frame, Self::Late];

    /// The refusal that `error` is for, if it is for one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref()? {
            FrameError::Refused(refusal) => Some(*refusal),
            _ => None,
        }
    }

    /// The refusal with this number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&refusal| refusal as u32 == number)
    }

    /// The kind of errors for it.
    pub(crate) const fn error_kind(self) -> ErrorKind {
        match self {
            Self::User | Self::Kind => ErrorKind::PermissionDenied,
            Self::Busy => ErrorKind::ResourceBusy,
            Self::Frame | Self::Late => ErrorKind::InvalidData,
        }
    }
}

impl fmt::Display for LocalRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "handle-admin refuses this user: no list of users in its section `local` names it",
            Self::Kind => "handle-admin refuses this user for this purpose: see its section `local`",
            Self::Busy => "handle-admin has too many connections of this kind",
            Self::Frame => "handle-admin refuses the first frame: is it of another release?",
            Self::Late => "handle-admin refuses the connection: its first frame did not arrive in time",
        })
    }
}
