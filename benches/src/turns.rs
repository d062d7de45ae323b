//! One server under load for a time: answers received and processor time used.

use crate::flood::Flood;
use crate::flood::FloodTotals;
use crate::spread::Spread;
use crate::usage::{self, Usage};
use anyhow::ensure;
use std::net::SocketAddr;
use std::time::Duration;

/// One turn of one server.
#[derive(Clone, Copy, Debug)]
pub struct ServerTurn {
    /// Answers received.
    pub totals: FloodTotals,
    /// Processor time of the server.
    pub used: Usage,
    /// Share of the time for which the server's core was idle.
    pub idle: f64,
}

impl ServerTurn {
    /// Loads the server at `address` for `seconds`. The server is the process `pid` with its
    /// children, on `core`.
    ///
    /// # Errors
    /// When it does not answer, or answers wrongly.
    pub fn measure(
        flood: &mut Flood<'_>,
        (pid, address): (u32, SocketAddr),
        core: usize,
        seconds: f64,
    ) -> anyhow::Result<Self> {
        Self::of(pid, core, || Ok(flood.run(address, Duration::from_secs_f64(seconds))?))
    }

    /// Measures the process `pid` with its children on `core` while `load` runs.
    ///
    /// # Errors
    /// When it does not answer, or answers wrongly.
    pub fn of(
        pid: u32,
        core: usize,
        load: impl FnOnce() -> anyhow::Result<FloodTotals>,
    ) -> anyhow::Result<Self> {
        let (used, idle) = (Usage::of_tree(pid)?, usage::idle(core)?);
        let totals = load()?;
        let (used, idle) = (Usage::of_tree(pid)? - used, usage::idle(core)?.saturating_sub(idle));
        ensure!(totals.answers > 0, "process {pid} does not answer");
        ensure!(totals.wrong == 0, "{} of {} answers are wrong", totals.wrong, totals.answers);
        Ok(Self { totals, used, idle: idle.as_secs_f64() / totals.seconds })
    }

    /// Returns the answers per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.totals.rate()
    }

    /// Returns the processor time of the server per second.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.used.total().as_secs_f64() / self.totals.seconds
    }

    /// Returns the processor time of the server per answer, in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> f64 {
        self.used.total().as_secs_f64() * 1e6 / self.totals.answers as f64
    }

    /// Returns the answers per train; `None` without trains.
    #[must_use]
    pub fn train_len(&self) -> Option<f64> {
        (self.totals.trains > 0).then(|| self.totals.answers as f64 / self.totals.trains as f64)
    }
}

/// Returns the spread of one figure over several turns.
#[must_use]
pub fn spread(turns: &[ServerTurn], figure: impl Fn(&ServerTurn) -> f64) -> Spread {
    Spread::of(turns.iter().map(figure))
}

/// Returns the user time per answer in all turns, in microseconds. User time is sampled, so one
/// turn alone is too short.
#[must_use]
pub fn user_us(turns: &[ServerTurn]) -> f64 {
    let user: Duration = turns.iter().map(|turn| turn.used.user).sum();
    user.as_secs_f64() * 1e6 / turns.iter().map(|turn| turn.totals.answers).sum::<u64>() as f64
}

/// Returns the ratio of the rates of two servers, round by round.
#[must_use]
pub fn share(turns: &[ServerTurn], base: &[ServerTurn]) -> Spread {
    Spread::of(turns.iter().zip(base).map(|(one, other)| one.rate() / other.rate()))
}

/// Returns the ratio by processor time per answer, which is right even if the load generator was
/// the limit.
#[must_use]
pub fn share_by_cpu(turns: &[ServerTurn], base: &[ServerTurn]) -> Spread {
    Spread::of(turns.iter().zip(base).map(|(one, other)| other.cpu_us() / one.cpu_us()))
}
