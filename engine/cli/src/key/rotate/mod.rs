//! `hdl key rotate`: a new key, with the old one valid until a second step.

mod administrator;
mod files;
mod publisher;
mod server;

use crate::ExitOutcome;

#[derive(clap::Args, Debug)]
pub(super) struct RotateArgs {
    #[command(subcommand)]
    command: RotateCommand,
}

#[derive(clap::Subcommand, Debug)]
enum RotateCommand {
    /// Make a new key for the server of a directory of `hdl init`, for its site record.
    ///
    /// The first command makes the new key and a site record with it, for the registry. The second
    /// one, with --finish, puts both in place; the processes use the new key after a restart. A
    /// command that was interrupted is completed by the same command.
    #[command(after_help = "Examples:
  hdl key rotate server /srv/handle
  hdl key rotate server /srv/handle --finish    when the registry has the new site record")]
    Server(server::ServerArgs),
    /// Make a new key for an administrator, and add it to the record beside the old one.
    ///
    /// The first command adds the new key at a free index, with the rights that the old one has in
    /// this record. Both keys are accepted until the second command, with --finish, puts the new
    /// key at the index of the old one, where other records and settings name it. A command that
    /// was interrupted is completed by the same command.
    #[command(after_help = "Examples:
  hdl key rotate administrator admin-2-private.bin --new-passphrase-file passphrase-2 \\
      --server 127.0.0.1:2642 --auth 300:10.1045/ADMIN --key admin-private.bin --passphrase-file passphrase
  hdl key rotate administrator admin-2-private.bin --finish ...    with the same options")]
    Administrator(Box<administrator::AdministratorArgs>),
    /// Make a new key with which handle-admin signs sets.
    ///
    /// The first command makes the new key; readers are then told to accept both. The second one,
    /// with --finish, puts it in the place of the old one, whose public key stays in the second
    /// file until no reader needs it.
    #[command(after_help = "Examples:
  hdl key rotate publisher publisher-private.bin publisher-public.bin
  hdl key rotate publisher publisher-private.bin publisher-public.bin --finish    when readers accept both")]
    Publisher(publisher::PublisherArgs),
}

pub(super) fn run(args: &RotateArgs) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        RotateCommand::Server(args) => server::run(args)?,
        RotateCommand::Administrator(args) => return administrator::run(args),
        RotateCommand::Publisher(args) => publisher::run(args)?,
    }
    Ok(ExitOutcome::Good)
}
