//! What is measured: loads, one row of the table for each server under each.

use super::Args;
use handle_benches::flood::Shape;
use handle_benches::turns::ServerTurn;

/// A load that all who take part get in turn.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// Who asks, if in trains.
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

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Handles at random, of all lengths.
    AsTheyCome,
    /// Only handles of one length whose answers have one length.
    OneLength,
}

const fn trains(name: &'static str, load: Load, peers: u32) -> Scenario {
    Scenario { name, load, trains: Some(Trains { peers, min: 16, max: 64 }), with_dns: false }
}

/// All of them, in the order of the table.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "one at a time", load: Load::AsTheyCome, trains: None, with_dns: true },
    trains("trains, 4 peers", Load::AsTheyCome, 4),
    trains("trains, 32 peers", Load::AsTheyCome, 32),
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

/// What a server did under a load.
#[derive(Debug)]
pub(crate) struct Result {
    pub(crate) load: &'static str,
    pub(crate) server: String,
    pub(crate) turns: Vec<ServerTurn>,
    /// What can at most be done, in the same rounds: by the echo of the same datapath, or by the key alone.
    pub(crate) ceiling: Option<Vec<ServerTurn>>,
}

/// Lets `count` servers take turns, `turn` that of one for so many seconds: first shortly, to get warm, then once in
/// each round.
pub(crate) fn take_turns(
    args: &Args,
    count: usize,
    mut turn: impl FnMut(usize, f64) -> anyhow::Result<ServerTurn>,
) -> anyhow::Result<Vec<Vec<ServerTurn>>> {
    let mut turns: Vec<Vec<ServerTurn>> = vec![Vec::new(); count];
    for at in 0..count {
        turn(at, (args.seconds / 4.0).max(0.2))?;
    }
    for round in 0..args.rounds {
        for at in 0..count {
            // Whoever comes second would always profit from what changes slowly.
            let at = if round % 2 == 0 { at } else { count - 1 - at };
            turns[at].push(turn(at, args.seconds)?);
        }
    }
    Ok(turns)
}
