//! The loads. The table has one row for each server under each load.

use handle_benches::flood::Shape;
use handle_benches::turns::ServerTurn;

/// A load that all participants get in turn.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// Peers and length of trains; `None` for single datagrams.
    trains: Option<Trains>,
    /// Whether name servers take part.
    pub(crate) with_dns: bool,
}

#[derive(Clone, Copy, Debug)]
struct Trains {
    peers: u32,
    min: usize,
    max: usize,
}

/// Selection of the requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Random handles of all lengths.
    AnyLength,
    /// Handles of one length whose answers have one length.
    OneLength,
}

const fn trains(name: &'static str, load: Load, peers: u32) -> Scenario {
    Scenario { name, load, trains: Some(Trains { peers, min: 16, max: 64 }), with_dns: false }
}

/// All scenarios, in the order of the table.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "one at a time", load: Load::AnyLength, trains: None, with_dns: true },
    trains("trains, 4 peers", Load::AnyLength, 4),
    trains("trains, 32 peers", Load::AnyLength, 32),
    trains("trains of one length, 4 peers", Load::OneLength, 4),
    trains("trains of one length, 32 peers", Load::OneLength, 32),
];

impl Scenario {
    pub(crate) fn shape(&self, window: usize, train_window: usize) -> Shape {
        match self.trains {
            None => Shape::single(window),
            Some(Trains { peers, min, max }) => {
                Shape { peers, train_min: min, train_max: max, window: train_window }
            }
        }
    }
}

/// Result of one server under a load.
#[derive(Debug)]
pub(crate) struct Result {
    pub(crate) load: &'static str,
    pub(crate) server: String,
    pub(crate) turns: Vec<ServerTurn>,
    /// The upper limit, measured in the same rounds: the echo over the same datapath, or the key
    /// alone.
    pub(crate) ceiling: Option<Vec<ServerTurn>>,
}

/// How often and how long each server is loaded.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct TurnArgs {
    /// Turns of each server.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,
}

/// Lets `count` servers take turns: a short one to warm up, then one in each round. `turn` runs one
/// server for a number of seconds.
pub(crate) fn take_turns(
    args: &TurnArgs,
    count: usize,
    mut turn: impl FnMut(usize, f64) -> anyhow::Result<ServerTurn>,
) -> anyhow::Result<Vec<Vec<ServerTurn>>> {
    let mut turns: Vec<Vec<ServerTurn>> = vec![Vec::new(); count];
    for at in 0..count {
        turn(at, (args.seconds / 4.0).max(0.2))?;
    }
    for round in 0..args.rounds {
        for at in 0..count {
            // Alternating cancels slow changes of the machine.
            let at = if round % 2 == 0 { at } else { count - 1 - at };
            turns[at].push(turn(at, args.seconds)?);
        }
    }
    Ok(turns)
}
