//! Comparing the published set of a mirror with its primaries: a conversation on the control
//! socket.
//!
//! The client sends one line and reads lines with the progress until the last one, which has `ok`.
//! When it closes the connection, or the server stops, the comparison ends.

use crate::mirror::compare::{MirrorComparison, compare};
use crate::mirror::primary::RequestLimits;
use crate::progress::ProgressLines;
use crate::state::AdminState;
use anyhow::{Context as _, bail};
use serde_json::json;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The command, before its argument.
pub(crate) const COMMAND: &str = "compare-mirror ";

/// Compares, and repeats what differs for the seconds in `argument`.
pub(crate) fn converse(state: &AdminState, argument: &str, client: &UnixStream) -> io::Result<()> {
    let progress = ProgressLines::new(client, state);
    let line = match compared(state, argument, &progress) {
        Ok(all) => {
            json!({ "ok": true, "done": all.iter().map(MirrorComparison::to_json).collect::<Vec<_>>() })
        }
        Err(error) => json!({ "ok": false, "error": format!("{error:#}") }),
    };
    progress.send(&line)
}

fn compared(
    state: &AdminState,
    argument: &str,
    progress: &ProgressLines<'_>,
) -> anyhow::Result<Vec<MirrorComparison>> {
    let seconds: u32 = argument.parse().context("expected compare-mirror SECONDS")?;
    let config = state.config();
    let mirror = state.mirror.as_ref().context("this is not a mirror: `mirror.primary` is not set")?;
    let directory = config.publish.directory.as_deref();
    let directory = directory.context("this server publishes nothing: `publish.directory` is not set")?;
    // Each takes 8 bytes for each record, and has a primary read all of them.
    let Ok(_only) = state.comparing.try_lock() else { bail!("another comparison is in progress") };
    let limits = RequestLimits::new(&config.mirror);
    let timeout = Duration::from_secs(seconds.into());
    compare(mirror.servers(), limits, directory, timeout, &|records| progress.report("compared", records))
}
