//! Certified answers in a session as a share of unsigned ones, of the same server in the same run.
//!
//! Every request in the session has a MAC of its own, made beforehand, and so has every answer.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use handle_benches::requests::{Ask, Requests};
use handle_benches::serve::{self, Child};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_benches::{certified, sessions, sets};
use handle_server::config::Datapath;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Measures certified answers in a session as a share of unsigned ones.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set; built if it is not there.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Turns of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Messages made for each turn; none is sent twice.
    #[arg(long, default_value_t = 1_000_000)]
    messages: usize,
    /// Core of the server.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a child is; not for people.
#[derive(Clone, Subcommand)]
#[command(hide = true)]
enum Role {
    #[command(hide = true)]
    Serve { records: u64, key: PathBuf, core: usize },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match &args.role {
        None => measure(&args),
        Some(Role::Serve { records, key, core }) => {
            let server = certified::start(sets::directory(*records), key.clone(), Datapath::Auto, *core)?;
            serve::announce(*server.addresses().first().context("an address")?)?;
            serve::wait_for_end();
            server.stop()
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    drop(sets::open(args.records)?);
    let directory = tempfile::tempdir()?;
    let key = certified::key_file(directory.path())?;
    let plain = Requests::new(args.records, 1 << 14, Ask::Plain, 1)?;
    let certified_requests = Requests::new(args.records, 1 << 14, Ask::Certified, 1)?;
    let arguments = [
        "serve".to_owned(),
        args.records.to_string(),
        key.display().to_string(),
        args.server_core.to_string(),
    ];
    let child = Child::start(&arguments)?;
    let pid = child.pid();
    serve::pin(Some(args.client_core));
    let duration = Duration::from_secs_f64(args.seconds);
    let used = || Ok(Usage::of(pid)?.total());
    let (mut rates, mut shares, mut unsigned, mut with_mac) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.rounds {
        let (id, key) = sessions::open(child.address)?;
        let messages = sessions::messages(&certified_requests, id, &key, args.messages)?;
        let bare = certified::ask(child.address, &plain, &certified::BARE, duration, used)?;
        let sealed = certified::ask(child.address, &messages, &certified::WITH_MAC, duration, used)
            .context("in a session (had there to be more `--messages`?)")?;
        rates.push(sealed.per_second() / bare.per_second());
        shares.push(bare.used_each().as_secs_f64() / sealed.used_each().as_secs_f64());
        unsigned.push(bare.per_second());
        with_mac.push(sealed.per_second());
    }
    let [rate, share, unsigned, with_mac] = [rates, shares, unsigned, with_mac].map(Spread::of);
    if args.json {
        println!(
            "{}",
            json!({
                "machine": usage::machine(), "records": args.records,
                "unsigned_per_s": unsigned.median, "in_session_per_s": with_mac.median,
                "share_of_rate": rate.median, "share_by_cpu": share.median,
            })
        );
        return Ok(());
    }
    println!("{}, {} rounds of {} s", usage::machine(), args.rounds, args.seconds);
    println!("unsigned answers/s    {unsigned:.0}");
    println!("in a session          {with_mac:.0}");
    println!("share of the rate     {rate:.3}");
    println!("share by CPU time     {share:.3}");
    Ok(())
}
