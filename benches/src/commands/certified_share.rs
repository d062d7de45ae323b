//! Rate of signed answers as a share of the key's own signing rate; or, in a session, rate of
//! answers with a MAC as a share of the rate of unsigned answers.
//!
//! A signing server, loaded from another core, and the key alone take turns on one core. In a
//! session, the same server answers with and without MACs in turn; the requests then have MACs as
//! well, made beforehand.

use anyhow::Context as _;
use clap::Subcommand;
use handle_benches::args::BenchArgs;
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_benches::{certified, sessions, sets};
use handle_worker::config::Datapath;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Measures certified answers as a share of the key's own signing rate, or of unsigned answers.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Measure answers in a session, as a share of unsigned answers.
    #[arg(long)]
    in_session: bool,
    /// With `--in-session`, messages made for each turn; no message is sent twice.
    #[arg(long, default_value_t = 1_000_000)]
    messages: usize,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Turns of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Serve { records: u64, key: PathBuf, core: usize },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.role {
        None => measure(&args),
        Some(Role::Serve { records, key, core }) => {
            certified::serve(sets::directory(*records), key.clone(), Datapath::Auto, *core)
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    drop(sets::open(args.records)?);
    let directory = tempfile::tempdir()?;
    let key = certified::key_file(directory.path())?;
    let requests = Requests::new(args.records, 1 << 14, RequestKind::Certified, 1)?;
    let arguments = [
        "serve".to_owned(),
        args.records.to_string(),
        key.display().to_string(),
        args.common.server_core.to_string(),
    ];
    let child = Child::start(&arguments)?;
    let pid = child.pid();
    serve::pin(Some(args.common.client_core));
    let duration = Duration::from_secs_f64(args.seconds);
    let used = || Ok(Usage::of(pid)?.total());
    let plain = Requests::new(args.records, 1 << 14, RequestKind::Plain, 1)?;
    let (mut rates, mut shares, mut answers, mut compared) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.rounds {
        let (certified, other) = if args.in_session {
            let (id, key) = sessions::open(child.address)?;
            let messages = sessions::messages(&requests, id, &key, args.messages)?;
            let bare = certified::ask(child.address, &plain, &certified::BARE, duration, used)?;
            let certified = certified::ask(child.address, &messages, &certified::WITH_MAC, duration, used);
            (certified.context("in a session (increase `--messages` if it used them up)")?, bare)
        } else {
            let signed = certified::sign(args.common.server_core, duration)?;
            (certified::ask(child.address, &requests, &certified::SIGNED, duration, used)?, signed)
        };
        rates.push(certified.per_second() / other.per_second());
        shares.push(other.used_each().as_secs_f64() / certified.used_each().as_secs_f64());
        answers.push(certified.per_second());
        compared.push(other.per_second());
    }
    let [rate, share, answers, compared] = [rates, shares, answers, compared].map(Spread::of);
    let other = if args.in_session { "unsigned answers" } else { "signatures alone" };
    if args.common.json {
        println!(
            "{}",
            json!({
                "machine": usage::machine(), "backend": handle_auth::BACKEND, "records": args.records,
                "compared_with": other, "answers_per_s": answers.median, "compared_per_s": compared.median,
                "share_of_rate": rate.median, "share_by_cpu": share.median,
            })
        );
        return Ok(());
    }
    println!("{}, {}, {} rounds of {} s", usage::machine(), handle_auth::BACKEND, args.rounds, args.seconds);
    println!("certified answers/s   {answers:.0}");
    println!("{:<20}  {compared:.0}", format!("{other}/s"));
    println!("share of the rate     {rate:.3}");
    println!("share by CPU time     {share:.3}");
    Ok(())
}
