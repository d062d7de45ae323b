//! `handle-lab manuals`: manual pages and completions of all programs, made from the definitions of
//! their command lines. The other programs do not link what writes them.

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use handle_admin::program::AdminProgram;
use handle_cache::program::CacheProgram;
use handle_cli::ExitOutcome;
use handle_cli::completions::completions;
use handle_daemon::program::command;
use handle_fetch::program::FetchProgram;
use handle_gateway::program::GatewayProgram;
use handle_server::program::HandledProgram;
use std::fs;
use std::path::{Path, PathBuf};

/// The section of manuals for daemons.
const DAEMONS: &str = "8";
/// The section of manuals for commands.
const COMMANDS: &str = "1";

/// Arguments of `handle-lab manuals`.
#[derive(clap::Args, Debug)]
pub(crate) struct ManualsArgs {
    /// The directory; it is created, and files in it are replaced.
    directory: PathBuf,
}

/// Writes the pages and completions of every program.
pub(crate) fn write(args: &ManualsArgs) -> anyhow::Result<ExitOutcome> {
    for (section, mut program) in programs() {
        program.build();
        let pages = args.directory.join(format!("man/man{section}"));
        write_pages(&program, section, create(&pages)?)?;
        let name = program.get_name().to_owned();
        let places = [
            (Shell::Bash, "bash-completion/completions", name.clone()),
            (Shell::Zsh, "zsh/site-functions", format!("_{name}")),
            (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
        ];
        for (shell, place, file) in places {
            let script = completions(shell, &mut program, &name);
            let path = create(&args.directory.join(place))?.join(file);
            fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(ExitOutcome::Good)
}

/// Every program, with the section of its manual.
fn programs() -> [(&'static str, clap::Command); 8] {
    [
        (DAEMONS, command::<HandledProgram>()),
        (DAEMONS, command::<AdminProgram>()),
        (DAEMONS, command::<GatewayProgram>()),
        (DAEMONS, command::<FetchProgram>()),
        (DAEMONS, command::<CacheProgram>()),
        (COMMANDS, handle_cli::command()),
        (COMMANDS, crate::Args::command()),
        (COMMANDS, handle_loadgen::cli::command()),
    ]
    .map(|(section, command)| (section, command.disable_help_subcommand(true)))
}

/// Writes the page of `command`, and one for each command below it.
fn write_pages(command: &clap::Command, section: &str, directory: &Path) -> anyhow::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, section, directory)?;
    }
    let page = Man::new(command.clone()).section(section).manual("Handle System");
    page.generate_to(directory)
        .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
    Ok(())
}

fn create(directory: &Path) -> anyhow::Result<&Path> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}
