//! Why a run did not start or did not finish.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a run did not start or did not finish.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An option is invalid, alone or with another.
    Option(String),
    /// A file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A line of a file is not a handle.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no handle to ask for.
    NoHandles {
        /// The source of handles.
        path: PathBuf,
        /// Handles left out because a request for them would be too long.
        too_long: u64,
        /// Handles left out because their prefix is not homed.
        not_homed: u64,
    },
    /// A published set cannot be read.
    Snapshot {
        /// Its directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A recording cannot be used.
    Recording {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A key cannot be used.
    Key {
        /// Its file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The user stopped it.
    Stopped,
    /// The server did not answer any request.
    NoAnswer {
        /// The address of the server.
        target: String,
        /// The transport.
        transport: String,
    },
    /// A socket or datapath cannot be opened.
    Open(io::Error),
    /// A core cannot be used.
    Core(usize, io::Error),
    /// A datapath failed during the run.
    Datapath(io::Error),
}

impl Error {
    /// Why the file at `path` was not read to its end: `source`, or the user stopped it.
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(Self::Stopped) => Self::Stopped,
            _ => Self::Read { path: path.to_owned(), source },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(reason) => f.write_str(reason),
            Self::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::Line { path, line, reason } => write!(f, "{}:{line}: {reason}", path.display()),
            Self::NoHandles { path, too_long: 0, not_homed: 0 } => {
                write!(f, "{} has no handles to ask for", path.display())
            }
            Self::NoHandles { path, too_long: 0, not_homed } => {
                write!(
                    f,
                    "{} has no handles to ask for: the prefixes of all {not_homed} are not homed",
                    path.display()
                )
            }
            Self::NoHandles { path, too_long, not_homed: _ } => {
                write!(
                    f,
                    "{} has no handles to ask for: all {too_long} are too long for a request",
                    path.display()
                )
            }
            Self::Snapshot { path, reason } => {
                let path = path.display();
                write!(f, "cannot use the set in {path}: {reason} (hdl snapshot verify {path} checks it)")
            }
            Self::Recording { path, reason } => {
                write!(f, "cannot use the recording {}: {reason}", path.display())
            }
            Self::Key { path, reason } => write!(f, "cannot use the key in {}: {reason}", path.display()),
            Self::Stopped => f.write_str("stopped by the user"),
            Self::NoAnswer { target, transport } => {
                write!(
                    f,
                    "no answer from {target} over {transport} (check that the server is running and listens there)"
                )
            }
            Self::Open(source) => write!(f, "cannot open a socket: {source}"),
            Self::Core(core, source) => {
                write!(f, "cannot run on core {core}: {source} (taskset -p $$ shows which are allowed)")
            }
            Self::Datapath(source) => write!(f, "the datapath failed: {source}"),
        }
    }
}

/// The text already contains the error of the system, so it is not a source again.
impl std::error::Error for Error {}
