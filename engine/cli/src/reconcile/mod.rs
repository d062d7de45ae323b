//! `hdl reconcile`: compares records, or a list of names, with what servers answer or with what a
//! set, a store or a file has, here or on another machine, and repairs the differences.

mod compare;
mod location;
mod peer;
mod protocol;
mod questions;
mod repair;
mod report;
mod serve;
mod table;
mod walk;

use crate::server::ServerArgs;
use crate::store::files::RecordFormat;
use crate::{ExitOutcome, UsageError, output};
use anyhow::{bail, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use compare::{CompareOptions, ComparedRecords, Finding};
use handle_client::administration::ClientIdentity;
use handle_snapshot::comparison::ComparisonScope;
use location::RecordLocation;
use peer::ReconcilePeer;
use repair::Repairer;
use report::ReconcileCounts;
use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{ReconcileTable, TableOptions};
use walk::{TreeWalk, WantedSide};

/// The help.
const LONG_ABOUT: &str = "\
Compare records, or a list of names, with what servers answer, or with another copy of the records,
and repair them.

WANTED and FOUND are each one of these:

  DIRECTORY           of a published set, also while it is served
  FILE                a layer; the file of a store that handle-admin does not have open; a file as
                      `hdl import` reads it: lines of JSON, the JSON export or SQL tables of a
                      reference server; or a list of handles, one per line; `-` is standard input
  server:HOST[:PORT]  a server that lists its handles to the identity of --auth; each is resolved
  ssh://[USER@]HOST[:PORT]/PATH
                      a directory or file of another machine that has hdl. Both machines make a
                      tree of digests, and only what lies on the way to differing records is sent

Without FOUND, each handle of WANTED is resolved, by --server or by the server responsible for it.
Extra handles are not found in this way. Only public values are compared without an identity, or
where the identity may not read all values.

Sets and layers are read where they are; other files are sorted in a temporary file first, so memory
is bounded for any number of records. Timestamps are not compared unless --timestamps is given,
because servers set them.";

/// Arguments of `hdl reconcile`.
#[derive(clap::Args, Debug)]
#[command(
    about = "Compare records or names with what servers answer or with another copy, and repair them",
    long_about = LONG_ABOUT,
    override_usage = "hdl reconcile [OPTIONS] <WANTED> [FOUND]\n       hdl reconcile --serve <PATH>",
    after_help = "Examples:
  hdl reconcile ./set /mnt/other/set                    two sets
  hdl reconcile ./set ssh://mirror.example/srv/handle/snapshot
                                                        a set here and one on another machine
  hdl reconcile export.json /srv/handle/snapshot        the export of a reference server
  hdl reconcile ./set --server mirror.example:2641      ask a server for each handle
  hdl reconcile names.txt --server 192.0.2.1            is there a record of each name?
  hdl reconcile server:192.0.2.1 ./set --auth 300:10.1045/ADMIN --key admin-private.bin
                                                        all handles that a server lists
  hdl reconcile ./set /srv/handle/snapshot --repair --server 127.0.0.1 \\
      --auth 300:10.1045/ADMIN --key admin-private.bin

Exit codes: 0 the same, or all repaired; 1 different, not answered, or failed; 6 a server refuses to
list its handles."
)]
pub(crate) struct Args {
    /// Expected records or names.
    #[arg(required_unless_present = "serve", value_parser = OsStringValueParser::new().try_map(|text| location::parse(&text)))]
    wanted: Option<RecordLocation>,
    /// Actual records. Default: the answers of servers.
    #[arg(value_parser = OsStringValueParser::new().try_map(|text| location::parse(&text)))]
    found: Option<RecordLocation>,
    /// The format of WANTED and FOUND, if they are files. Default: detected from each.
    #[arg(long, value_enum)]
    from: Option<RecordFormat>,
    /// Compare timestamps as well.
    #[arg(long)]
    timestamps: bool,
    /// Distinguish the case of local names in files. Sets and stores know it themselves.
    #[arg(long)]
    case_sensitive: bool,
    /// Send missing and different records to --server, or to the server responsible for each: the
    /// record there is replaced by that of WANTED.
    #[arg(long)]
    repair: bool,
    /// Delete extra handles as well.
    #[arg(long, requires = "repair", requires = "found")]
    delete_extra: bool,
    /// Maximum number of handles to ask for, and of records to repair, per second.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Number of connections for questions.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Prefix whose handles `server:` lists; may be given more than once. Records of other prefixes
    /// are left out. Default: all homed prefixes of the server.
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<String>,
    /// Maximum memory for the handles that `server:` lists, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    list_mib: u32,
    /// Memory for sorting, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=16384))]
    memory: u32,
    /// Directory for temporary files. They need as much space as the records. Default: that of the
    /// system.
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
    /// Command for `ssh://`, with its options.
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// Path of hdl on the other machine.
    #[arg(long, value_name = "PATH", default_value = "hdl")]
    remote_hdl: String,
    /// Answer the hdl reconcile of another machine about this directory or file, at standard input
    /// and output; `ssh://` runs this.
    #[arg(long, value_name = "PATH", conflicts_with = "wanted")]
    serve: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print a line of JSON for each difference, and one with the counts.
    #[arg(long)]
    json: bool,
}

/// One side of a comparison.
enum ReconcileSide {
    Table(Box<ReconcileTable>),
    Peer(Box<ReconcilePeer>),
}

impl ReconcileSide {
    fn folds(&self) -> anyhow::Result<bool> {
        match self {
            Self::Table(table) => table.folds(),
            Self::Peer(peer) => Ok(peer.hello().folds),
        }
    }

    fn has_names_only(&self) -> bool {
        match self {
            Self::Table(table) => table.has_names_only(),
            Self::Peer(peer) => peer.hello().has_names_only,
        }
    }
}

/// Both sides.
struct ReconcileSides {
    wanted: ReconcileSide,
    found: Option<ReconcileSide>,
}

/// The identity to authenticate as, if one is named.
type NamedIdentity = Option<Arc<ClientIdentity>>;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    if let Some(path) = &args.serve {
        let table = ReconcileTable::open(path, &table_options(args, !args.case_sensitive))?;
        let mut input = BufReader::new(std::io::stdin().lock());
        serve::serve(&table, &mut input, &mut BufWriter::new(std::io::stdout().lock()))?;
        return Ok(ExitOutcome::Good);
    }
    output::or_as_json(reconcile(args), args.json)
}

fn reconcile(args: &Args) -> anyhow::Result<ExitOutcome> {
    let started = Instant::now();
    let identity = args.server.identity.read()?;
    let mut sides = open_sides(args, &identity)?;
    if args.repair && sides.wanted.has_names_only() && !args.delete_extra {
        bail!(UsageError("a list of names has no records to repair with".to_owned()));
    }
    let mut repairer = args.repair.then(|| Repairer::connect(args, &identity)).transpose()?;
    let mut counts = ReconcileCounts::default();
    let mut take = |finding: Finding| -> anyhow::Result<()> {
        let repaired = match &mut repairer {
            Some(repairer) => repairer.repair(&finding)?,
            None => None,
        };
        counts.add(&finding, repaired.as_ref());
        report::show(&finding, repaired.as_ref(), args.json);
        // A closed pipe ends a long run.
        output::check()
    };
    let compared = compare_sides(args, &identity, &mut sides, &mut take)?;
    counts.show(args, &sides, &compared, started.elapsed());
    Ok(if counts.are_good() { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// Compares both sides, and returns the number of different handles, and those left out.
fn compare_sides(
    args: &Args,
    identity: &NamedIdentity,
    sides: &mut ReconcileSides,
    take: &mut dyn FnMut(Finding) -> anyhow::Result<()>,
) -> anyhow::Result<ComparedRecords> {
    let is_side_of_names = |side: &ReconcileSide| side.has_names_only();
    let scope = match () {
        () if is_side_of_names(&sides.wanted) => ComparisonScope::Names,
        () if sides.found.as_ref().is_some_and(is_side_of_names) => ComparisonScope::Names,
        () if args.timestamps => ComparisonScope::ValuesAndTimestamps,
        () => ComparisonScope::Values,
    };
    match (&mut sides.wanted, &mut sides.found) {
        (ReconcileSide::Table(wanted), None) => questions::ask_all(args, identity, wanted, take),
        (ReconcileSide::Table(wanted), Some(ReconcileSide::Table(found))) => {
            let public_only = wanted.has_public_values_only() || found.has_public_values_only();
            compare::tables(wanted, found, CompareOptions { scope, public_only }, take)
        }
        (ReconcileSide::Table(table), Some(ReconcileSide::Peer(peer))) => {
            TreeWalk { table, peer, wanted: WantedSide::Here, scope }.run(take)
        }
        (ReconcileSide::Peer(peer), Some(ReconcileSide::Table(table))) => {
            TreeWalk { table, peer, wanted: WantedSide::There, scope }.run(take)
        }
        (ReconcileSide::Peer(_), _) => bail!(one_side_here()),
    }
}

fn one_side_here() -> UsageError {
    UsageError("one of WANTED and FOUND has to be on this machine, if the other is not".to_owned())
}

fn table_options(args: &Args, folds: bool) -> TableOptions {
    TableOptions {
        from: args.from,
        folds,
        memory_len: usize::try_from(args.memory).unwrap_or(usize::MAX) << 20,
        temp_dir: args.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
    }
}

fn open_sides(args: &Args, identity: &NamedIdentity) -> anyhow::Result<ReconcileSides> {
    let Some(wanted) = &args.wanted else { bail!(UsageError("nothing to compare".to_owned())) };
    let locations: Vec<_> = std::iter::once(wanted).chain(&args.found).collect();
    let is_remote = |location: &RecordLocation| matches!(location, RecordLocation::Remote(_));
    match (is_remote(wanted), &args.found) {
        (true, None) => bail!(one_side_here()),
        (true, Some(found)) if is_remote(found) => bail!(one_side_here()),
        _ => {}
    }
    let mut peers = Vec::new();
    for location in &locations {
        peers.push(match location {
            RecordLocation::Remote(remote) => {
                Some(ReconcilePeer::connect(remote, &args.ssh, &args.remote_hdl)?)
            }
            _ => None,
        });
    }
    // Files have no rule about letter case; they are read by that of the other side.
    let mut known = peers.iter().flatten().map(|peer| peer.hello().folds).next();
    for location in &locations {
        if let (None, RecordLocation::Path(path)) = (known, location) {
            known = table::folds(path)?;
        }
    }
    let options = table_options(args, known.unwrap_or(!args.case_sensitive));
    let mut sides = locations.iter().zip(peers).map(|(location, peer)| {
        Ok(match (location, peer) {
            (_, Some(peer)) => ReconcileSide::Peer(Box::new(peer)),
            (RecordLocation::Server(server), _) => {
                ReconcileSide::Table(Box::new(ReconcileTable::of_server(server, args, identity, &options)?))
            }
            (RecordLocation::Path(path), _) => {
                ReconcileSide::Table(Box::new(ReconcileTable::open(path, &options)?))
            }
            (RecordLocation::Remote(_), None) => bail!("not connected"),
        })
    });
    let (Some(wanted), found) = (sides.next().transpose()?, sides.next().transpose()?) else {
        bail!(UsageError("nothing to compare".to_owned()));
    };
    if let Some(found) = &found {
        ensure!(
            wanted.folds()? == found.folds()?,
            "one of WANTED and FOUND distinguishes the case of local names, and the other does not"
        );
        let partial = [&wanted, found].iter().any(|side| match side {
            ReconcileSide::Table(table) => table.has_public_values_only(),
            ReconcileSide::Peer(_) => false,
        });
        let has_peer = [&wanted, found].iter().any(|side| matches!(side, ReconcileSide::Peer(_)));
        ensure!(
            !(partial && has_peer),
            "the server does not show all values, so its records cannot be compared by digests: use an identity that \
             may read them, or compare with a set or file on this machine"
        );
    }
    Ok(ReconcileSides { wanted, found })
}

/// Keeps a rate.
struct RequestPace {
    pause: Duration,
    next_at: Instant,
}

impl RequestPace {
    fn new(rate: u32) -> Self {
        Self { pause: Duration::from_secs(1) / rate, next_at: Instant::now() }
    }

    /// Waits until the next request is due.
    fn wait(&mut self) {
        std::thread::sleep(self.next_at.saturating_duration_since(Instant::now()));
        self.next_at = self.next_at.max(Instant::now()) + self.pause;
    }
}
