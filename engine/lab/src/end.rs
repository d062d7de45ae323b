//! What stops a lab.

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal as _, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Longest run time of a lab in seconds: ten years.
pub(crate) const SECONDS_MAX: u64 = 10 * 365 * 86_400;

/// What stops the lab: a signal, the end of standard input, or the end of its time.
pub(crate) struct LabEnd {
    is_signalled: Arc<AtomicBool>,
    is_input_over: Arc<AtomicBool>,
    causes: mpsc::Receiver<EndCause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    Signal,
    Input,
}

impl LabEnd {
    /// Begins to wait for each of them.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let (send, causes) = mpsc::channel();
        let is_signalled = Arc::new(AtomicBool::new(false));
        let is_input_over = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
        std::thread::spawn({
            let (send, is_signalled) = (send.clone(), Arc::clone(&is_signalled));
            move || {
                for _ in &mut signals {
                    is_signalled.store(true, Ordering::Relaxed);
                    let _ = send.send(EndCause::Signal);
                }
            }
        });
        std::thread::spawn({
            let is_input_over = Arc::clone(&is_input_over);
            move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                is_input_over.store(true, Ordering::Relaxed);
                send.send(EndCause::Input)
            }
        });
        Ok(Self { is_signalled, is_input_over, causes })
    }

    /// Whether a signal arrived before the lab was ready.
    pub(crate) fn has_come(&self) -> bool {
        self.is_signalled.load(Ordering::Relaxed)
    }

    /// Whether standard input is at its end, and is not a terminal. Read once, before the user is
    /// told what stops the lab: an end after that stops it.
    pub(crate) fn input_has_ended(&self) -> bool {
        self.is_input_over.load(Ordering::Relaxed) && !std::io::stdin().is_terminal()
    }

    /// Waits for the end. The end of a standard input that was closed from the start is ignored.
    pub(crate) fn wait(&self, is_input_closed: bool, at_most: Option<Duration>) {
        self.wait_and(is_input_closed, at_most, Duration::from_secs(60), || ());
    }

    /// As [`wait`](Self::wait), and meanwhile does `work` at this interval.
    pub(crate) fn wait_and(
        &self,
        is_input_closed: bool,
        at_most: Option<Duration>,
        interval: Duration,
        mut work: impl FnMut(),
    ) {
        let deadline = at_most.map(|at_most| Instant::now() + at_most);
        let mut input_counts = !is_input_closed;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            match self.causes.recv_timeout(left.map_or(interval, |left| left.min(interval))) {
                Ok(EndCause::Input) if !input_counts => input_counts = true,
                Ok(EndCause::Signal | EndCause::Input) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => work(),
                // Without senders nothing else could stop the lab.
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the end of standard input, which has arrived, stops a lab.
    fn stops(is_input_closed: bool) -> bool {
        let (send, causes) = mpsc::channel();
        send.send(EndCause::Input).unwrap();
        let end =
            LabEnd { is_signalled: Arc::default(), is_input_over: Arc::new(AtomicBool::new(true)), causes };
        let turns = std::cell::Cell::new(0);
        // The sender lives on, so that nothing else stops the lab before its time.
        end.wait_and(is_input_closed, Some(Duration::from_millis(20)), Duration::from_millis(1), || {
            turns.set(turns.get() + 1);
        });
        drop(send);
        turns.get() == 0
    }

    #[test]
    fn the_end_of_an_input_that_was_open_stops_the_lab() {
        assert!(stops(false), "the input ended after the user was told that this stops the lab");
        assert!(!stops(true), "the input was closed from the start");
    }
}
