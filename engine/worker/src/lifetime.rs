//! The life of a process with workers: from the start until a signal or command stops it.

use crate::server::Server;
use crate::watchdog::Watchdog;
use anyhow::Context as _;
use handle_daemon::readiness;
use handle_daemon::signals::Signals;
use handle_daemon::text::listed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Reports that `server` serves, and waits until a signal or command stops it.
///
/// # Errors
/// When all workers have stopped because of errors.
pub fn serve_until_stopped(server: Server, signals: Signals) -> anyhow::Result<()> {
    readiness::ready("serving");
    tracing::info!(addresses = %listed(server.addresses()), generation = server.shared().live.current().generation(), "serving");
    let (to_reload, to_stop) = (Arc::clone(server.shared()), Arc::clone(server.shared()));
    let reload = move || {
        to_reload.reopen_log();
        let reply = to_reload.reload();
        tracing::info!(outcome = %reply, "reloaded");
    };
    let obeyed = signals.obey(reload, move || to_stop.drain());
    obeyed.context("cannot start the thread that listens to signals")?;
    let mut watchdog =
        readiness::watchdog_timeout().map(|timeout| Watchdog::new(server.shared(), timeout, Instant::now()));
    while !server.shared().has_ended() && !server.shared().is_draining() {
        if watchdog.as_mut().is_some_and(|it| it.is_due(server.shared(), Instant::now())) {
            readiness::alive();
        }
        server.shared().wait(watchdog.as_ref().map(Watchdog::interval));
    }
    // After a takeover, the service continues.
    if !server.shared().is_handed_over() {
        readiness::stopping();
    }
    let drained = server.shared().is_draining();
    tracing::info!("stopping: answering received requests");
    server.stop()?;
    anyhow::ensure!(drained, "all workers have stopped because of errors; see the log");
    Ok(())
}

/// Logs only the first panics: a datagram may cause one, and a sender must not fill the log. Panics
/// while answering are counted.
pub fn show_few_panics() {
    const SHOWN_MAX: u32 = 10;
    static SHOWN: AtomicU32 = AtomicU32::new(0);
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if SHOWN.fetch_add(1, Ordering::Relaxed) < SHOWN_MAX {
            show(panic);
        }
    }));
}
