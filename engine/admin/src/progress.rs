//! Lines of progress for a client of the control socket whose command takes a while.

use crate::state::AdminState;
use serde_json::{Value as Json, json};
use std::cell::Cell;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(500);

/// A client that is notified of the progress.
pub(crate) struct ProgressLines<'c> {
    client: &'c UnixStream,
    state: &'c AdminState,
    last: Cell<Option<Instant>>,
}

impl<'c> ProgressLines<'c> {
    /// Before the first line.
    pub(crate) const fn new(client: &'c UnixStream, state: &'c AdminState) -> Self {
        Self { client, state, last: Cell::new(None) }
    }

    /// Sends the client a number, if it is time to. Returns false if the command has to end: the
    /// server stops, or the client is gone.
    pub(crate) fn report(&self, what: &str, number: u64) -> bool {
        if self.last.get().is_some_and(|last| last.elapsed() < INTERVAL) {
            return true;
        }
        self.last.set(Some(Instant::now()));
        !self.state.is_draining() && self.send(&json!({ what: number })).is_ok()
    }

    /// Sends a line.
    pub(crate) fn send(&self, line: &Json) -> io::Result<()> {
        let mut client = self.client;
        writeln!(client, "{line}")
    }
}
