//! The server of the demo.

use super::{Args, cores};
use crate::server_process::{self, ServerProcess};
use handle_cli::ExitOutcome;
use handle_loadgen::DatapathChoice;
use handle_worker::config::{Config, Datapath};
use std::path::{Path, PathBuf};

/// Options of the server process of the demo.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    snapshot: PathBuf,
    #[arg(long)]
    control: PathBuf,
    #[arg(long)]
    datapath: DatapathChoice,
}

/// The server process.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<ExitOutcome> {
    let cores = cores()?;
    server_process::serve(&Config {
        snapshot: args.snapshot.clone(),
        control: Some(args.control.clone()),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        cores: cores.map(|(server, _)| server).into_iter().collect(),
        pin: cores.is_some(),
        datapath: match args.datapath {
            DatapathChoice::Auto => Datapath::Auto,
            DatapathChoice::Uring => Datapath::Uring,
            DatapathChoice::Portable => Datapath::Portable,
        },
        ..Config::default()
    })
}

/// Starts the server process and returns once it answers.
pub(super) fn start(args: &Args, set: &Path, control: PathBuf) -> anyhow::Result<ServerProcess> {
    let datapath = args.datapath.to_string();
    let args = ["demo-server".as_ref(), "--snapshot".as_ref(), set.as_os_str(), "--control".as_ref()];
    let rest = [control.as_os_str(), "--datapath".as_ref(), datapath.as_ref()];
    ServerProcess::start(args.into_iter().chain(rest), control.clone())
}
