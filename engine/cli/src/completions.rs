//! `hdl completions`: completions for a shell.

use crate::{ExitOutcome, output};

/// Print completions for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  hdl completions bash > /etc/bash_completion.d/hdl")]
pub(crate) struct Args {
    /// The shell.
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "hdl", &mut script);
    output::lines(String::from_utf8_lossy(&script).trim_end());
    Ok(ExitOutcome::Good)
}
