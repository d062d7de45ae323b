//! How much of what a key can sign is left when the signatures are those of handle answers.
//!
//! A server that signs and the key alone take turns on one core, under a load from another.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use handle_benches::requests::{Ask, Requests};
use handle_benches::serve::{self, Child};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_benches::{certified, sets};
use handle_server::config::Datapath;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Measures certified answers as a share of the key's own signing rate.
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
    /// Core of the server, and of the key alone.
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
    let requests = Requests::new(args.records, 1 << 14, Ask::Certified, 1)?;
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
    let (mut rates, mut shares, mut answers, mut signatures) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.rounds {
        let signed = certified::sign(args.server_core, duration)?;
        let asked = certified::ask(child.address, &requests, &certified::SIGNED, duration, || {
            Ok(Usage::of(pid)?.total())
        })?;
        rates.push(asked.per_second() / signed.per_second());
        shares.push(signed.used_each().as_secs_f64() / asked.used_each().as_secs_f64());
        answers.push(asked.per_second());
        signatures.push(signed.per_second());
    }
    let [rate, share, answers, signatures] = [rates, shares, answers, signatures].map(Spread::of);
    if args.json {
        println!(
            "{}",
            json!({
                "machine": usage::machine(), "backend": handle_auth::BACKEND, "records": args.records,
                "answers_per_s": answers.median, "signatures_per_s": signatures.median,
                "share_of_rate": rate.median, "share_by_cpu": share.median,
            })
        );
        return Ok(());
    }
    println!("{}, {}, {} rounds of {} s", usage::machine(), handle_auth::BACKEND, args.rounds, args.seconds);
    println!("answers/s           {answers:.0}");
    println!("signatures/s alone  {signatures:.0}");
    println!("share of the rate   {rate:.3}");
    println!("share by CPU time   {share:.3}");
    Ok(())
}
