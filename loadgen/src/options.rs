//! What a run is to do.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use handle_net::Choice;

use crate::error::Error;

/// What a run is to do.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The server.
    pub target: SocketAddr,
    /// Where the handles come from.
    pub names: Names,
    /// Most handles to choose from; of more, a fair sample is taken.
    pub handles_max: usize,
    /// When requests are sent.
    pub load: Load,
    /// For how long.
    pub duration: Duration,
    /// After which an answer is late. Counts from the actual send time.
    pub timeout: Duration,
    /// Compares every answer with a published set.
    pub verify: Option<Verify>,
    /// Chooses handles. The same seed and threads ask for the same handles in the same order.
    pub seed: u64,
    /// Threads, each with a socket of its own.
    pub threads: usize,
    /// Cores to run on, given to threads in turn; empty leaves it to the system.
    pub cores: Vec<usize>,
    /// How datagrams are sent and received.
    pub datapath: Choice,
}

/// Where handles come from.
#[derive(Clone, Debug)]
pub enum Names {
    /// A file with one handle, or one JSON record, in each line.
    File(PathBuf),
    /// The directory of a published set.
    Snapshot(PathBuf),
    /// These.
    List(Vec<Vec<u8>>),
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// At intended times, so many a second, whatever becomes of earlier requests.
    Open {
        /// Requests a second, over all threads.
        rate: NonZeroU64,
    },
    /// As fast as answers come: each thread keeps so many requests waiting.
    Closed {
        /// Requests that wait at a time, for each thread.
        window: usize,
    },
}

/// How answers are verified.
#[derive(Clone, Debug)]
pub struct Verify {
    /// The directory of the published set that the server answers from.
    pub snapshot: PathBuf,
    /// How long after a set was replaced the server may still answer from it.
    pub staleness_max: Duration,
}

impl RunOptions {
    /// The defaults of the command line, for a closed loop.
    #[must_use]
    pub fn new(target: SocketAddr, names: Names) -> Self {
        Self {
            target,
            names,
            handles_max: Self::HANDLES_MAX,
            load: Load::Closed { window: Self::WINDOW },
            duration: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            verify: None,
            seed: 1,
            threads: 1,
            cores: Vec::new(),
            datapath: Choice::Auto,
        }
    }

    /// Handles to choose from, unless said otherwise.
    pub const HANDLES_MAX: usize = 1_000_000;
    /// Requests that wait at a time in a closed loop, unless said otherwise: enough for full batches,
    /// and their answers fit in the receive queue that a system grants by default.
    pub const WINDOW: usize = 256;
    /// How long after its end a set may still be answered from, unless said otherwise.
    pub const STALENESS_MAX: Duration = Duration::from_millis(100);

    /// # Errors
    ///
    /// The first option that makes no sense.
    pub(crate) fn check(&self) -> Result<(), Error> {
        const THREADS_MAX: usize = 1024;
        const WINDOW_MAX: usize = 1 << 20;
        const LONG: Duration = Duration::from_secs(7 * 24 * 3600);
        let option = |bad: bool, what: &str| if bad { Err(Error::Option(what.to_owned())) } else { Ok(()) };
        option(self.threads == 0 || self.threads > THREADS_MAX, "--threads must be 1 to 1024")?;
        option(self.duration.is_zero() || self.duration > LONG, "--duration must be above 0, up to a week")?;
        option(
            self.timeout.is_zero() || self.timeout > Duration::from_secs(60),
            "--timeout must be above 0, up to 60s",
        )?;
        option(self.handles_max == 0, "--handles-max must be above 0")?;
        option(self.target.port() == 0, "the target needs a port other than 0")?;
        if let Load::Closed { window } = self.load {
            option(window == 0 || window > WINDOW_MAX, "--window must be 1 to 1048576")?;
        }
        if let Load::Open { rate } = self.load {
            option(rate.get() > 1_000_000_000, "--rate must be at most 1000000000")?;
        }
        Ok(())
    }

    /// Requests that each thread must be able to remember: those that may wait for an answer, and as
    /// many again, so that what is late is known for what it is.
    pub(crate) fn table_capacity(&self) -> usize {
        match self.load {
            Load::Open { rate } => {
                let timeout_ms = self.timeout.as_millis();
                let waiting = u128::from(rate.get()) * timeout_ms / 1000 / self.threads as u128;
                usize::try_from(2 * waiting + 1024).unwrap_or(usize::MAX)
            }
            // A round of the table takes most of a second at the rates that one thread reaches.
            Load::Closed { window } => (4 * window).max(1 << 18),
        }
    }
}
