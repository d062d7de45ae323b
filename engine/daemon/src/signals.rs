//! Signals: SIGTERM and SIGINT stop a process, SIGHUP makes it read its configuration again.

use crate::shutdown::Shutdown;
use crate::threads;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as PendingSignals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a process looks whether its work has ended by a failure. It is notified of
/// every other end.
const FAILURE_INTERVAL: Duration = Duration::from_secs(1);

/// The signals of this process. From its creation on, signals are kept until they are taken.
#[derive(Debug)]
pub struct Signals(PendingSignals);

/// While it exists, SIGTERM and SIGINT end the process at once.
#[derive(Debug)]
#[must_use = "without it signals are kept"]
pub struct ImmediateExit(Arc<AtomicBool>);

impl Drop for ImmediateExit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Signals {
    /// Begins to keep signals. No thread is started.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new() -> io::Result<Self> {
        PendingSignals::new([SIGTERM, SIGINT, SIGHUP]).map(Self)
    }

    /// Lets SIGTERM and SIGINT end the process with code 0 while nothing is under way that they
    /// could harm.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn exit_at_once(&self) -> io::Result<ImmediateExit> {
        let is_on = Arc::new(AtomicBool::new(true));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&is_on))?;
        }
        Ok(ImmediateExit(is_on))
    }

    /// Takes the signals so far. Returns whether one of them was to stop the process; others are
    /// dropped.
    pub fn is_stopping(&mut self) -> bool {
        self.0.pending().any(|signal| signal != SIGHUP)
    }

    /// Starts the thread that carries out what signals ask for. It ends with the process.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn obey(
        mut self,
        reload: impl Fn() + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let thread = threads::spawn("signals", move || {
            for signal in self.0.forever() {
                if signal == SIGHUP { reload() } else { stop() }
            }
        });
        thread.map(drop)
    }

    /// Carries out what signals ask for until `is_finished`, which is looked at when the process
    /// begins to drain.
    ///
    /// # Errors
    /// When the thread for signals cannot be started.
    pub fn obey_until(
        self,
        shutdown: &Shutdown,
        is_finished: impl Fn() -> bool,
        reload: impl Fn() + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        self.obey(reload, stop).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start the thread that listens to signals: {error}"))
        })?;
        while !is_finished() {
            shutdown.poll(&mut [], Some(FAILURE_INTERVAL));
        }
        Ok(())
    }
}
