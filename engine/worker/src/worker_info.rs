//! The description of a worker.

use handle_net::{DatapathKind, TrainSupport};
use std::net::SocketAddr;

/// The description of a worker in `status`.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Number of the worker.
    pub at: usize,
    /// Address on which the worker answers.
    pub address: SocketAddr,
    /// Core to which the worker is pinned.
    pub core: Option<usize>,
    /// Datapath in use.
    pub kind: DatapathKind,
    /// Reason for the choice of datapath.
    pub reason: String,
    /// Whether the datapath receives and sends trains.
    pub trains: TrainSupport,
}
