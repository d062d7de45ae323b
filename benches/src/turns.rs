//! One server under load for a while: what came back, and what it took.

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
    /// What came back.
    pub got: FloodTotals,
    /// Processor time of the server.
    pub used: Usage,
    /// Of the server's core, how much was idle.
    pub idle: f64,
}

impl ServerTurn {
    /// Loads the server at `address`, a process `pid` with its children on `core`, for `seconds`.
    ///
    /// # Errors
    /// When it does not answer, or wrongly.
    pub fn measure(
        flood: &mut Flood<'_>,
        (pid, address): (u32, SocketAddr),
        core: usize,
        seconds: f64,
    ) -> anyhow::Result<Self> {
        Self::of(pid, core, || Ok(flood.run(address, Duration::from_secs_f64(seconds))?))
    }

    /// Lets `load` ask a process `pid` with its children on `core`.
    ///
    /// # Errors
    /// When it does not answer, or wrongly.
    pub fn of(
        pid: u32,
        core: usize,
        load: impl FnOnce() -> anyhow::Result<FloodTotals>,
    ) -> anyhow::Result<Self> {
        let (used, idle) = (Usage::of_tree(pid)?, usage::idle(core)?);
        let got = load()?;
        let (used, idle) = (Usage::of_tree(pid)? - used, usage::idle(core)?.saturating_sub(idle));
        ensure!(got.answers > 0, "process {pid} does not answer");
        ensure!(got.wrong == 0, "{} of {} answers are wrong", got.wrong, got.answers);
        Ok(Self { got, used, idle: idle.as_secs_f64() / got.seconds })
    }

    /// Answers a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.got.rate()
    }

    /// Processor time of the server for each second.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.used.total().as_secs_f64() / self.got.seconds
    }

    /// Microseconds of processor time for an answer.
    #[must_use]
    pub fn cpu_us(&self) -> f64 {
        self.used.total().as_secs_f64() * 1e6 / self.got.answers as f64
    }

    /// Answers in one train; nothing where there are no trains.
    #[must_use]
    pub fn train_len(&self) -> Option<f64> {
        (self.got.trains > 0).then(|| self.got.answers as f64 / self.got.trains as f64)
    }
}

/// The spread of one thing over several turns.
#[must_use]
pub fn spread(turns: &[ServerTurn], what: impl Fn(&ServerTurn) -> f64) -> Spread {
    Spread::of(turns.iter().map(what))
}

/// Microseconds of user time for an answer. It is sampled, so all turns together tell more than each.
#[must_use]
pub fn user_us(turns: &[ServerTurn]) -> f64 {
    let user: Duration = turns.iter().map(|turn| turn.used.user).sum();
    user.as_secs_f64() * 1e6 / turns.iter().map(|turn| turn.got.answers).sum::<u64>() as f64
}

/// How the rates of two servers compare, round by round.
#[must_use]
pub fn share(turns: &[ServerTurn], of: &[ServerTurn]) -> Spread {
    Spread::of(turns.iter().zip(of).map(|(one, other)| one.rate() / other.rate()))
}

/// The same by processor time for an answer: also right where the load was the limit.
#[must_use]
pub fn share_by_cpu(turns: &[ServerTurn], of: &[ServerTurn]) -> Spread {
    Spread::of(turns.iter().zip(of).map(|(one, other)| other.cpu_us() / one.cpu_us()))
}
