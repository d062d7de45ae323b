//! `hdl completions`: completions for a shell.

use crate::{ExitOutcome, output};
use clap_complete::Shell;
use std::fmt::Write as _;

/// Print completions for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  hdl completions bash > /etc/bash_completion.d/hdl")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let script = completions(args.shell, &mut crate::command(), "hdl");
    output::lines(String::from_utf8_lossy(&script).trim_end());
    Ok(ExitOutcome::Good)
}

/// The script with the completions of a program.
pub fn completions(shell: Shell, program: &mut clap::Command, name: &str) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, program, name, &mut script);
    if shell == Shell::Fish {
        let mut text = String::new();
        let begin = format!("__fish_{}_using_subcommand", name.replace('-', "_"));
        add_deep_options(&mut text, name, &begin, program, 1);
        script.extend_from_slice(text.as_bytes());
    }
    script
}

/// Adds the options of commands of three words or more, such as `hdl key rotate server`, which
/// `clap_complete` leaves out for fish. `condition` is that of the commands below `command`, whose
/// names are the word `level` of the command line.
fn add_deep_options(text: &mut String, name: &str, condition: &str, command: &clap::Command, level: u32) {
    let joined = if level == 1 { " " } else { "; and __fish_seen_subcommand_from " };
    for below in command.get_subcommands() {
        let condition = format!("{condition}{joined}{}", below.get_name());
        add_deep_options(text, name, &condition, below, level + 1);
        let options = below.get_arguments().filter(|option| level > 2 && !option.is_hide_set());
        for option in options {
            let Some(long) = option.get_long() else { continue };
            let help = option.get_help().map(ToString::to_string).unwrap_or_default();
            let help = help.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', " ");
            let value = if option.get_action().takes_values() { " -r" } else { "" };
            let _ = writeln!(text, "complete -c {name} -n \"{condition}\" -l {long} -d '{help}'{value}");
        }
    }
}
