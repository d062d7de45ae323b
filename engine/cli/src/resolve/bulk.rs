//! `hdl resolve` of many handles: so many at a time, printed in the order in which they were given.

use super::{Args, found, hint, outcome};
use crate::output::{self, printable};
use crate::{Outcome, progress};
use anyhow::{Context as _, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_client::flight::Outcome as LookupOutcome;
use handle_client::lookup::{Client, Options};
use handle_client::reference::{Reference, Rules};
use handle_client::{Driver, Question};
use handle_proto::{Handle, ResponseCode};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// Questions and outcomes that wait, for each job.
const WAITING: usize = 16;
/// Questions that are given or answered before the first of them is printed, so that one that is slow does not make all
/// that come after it wait in memory.
const AHEAD: usize = 1 << 14;

struct Asked {
    number: u64,
    written: String,
    question: anyhow::Result<Question>,
}

struct Done {
    number: u64,
    written: String,
    outcome: anyhow::Result<LookupOutcome>,
}

pub(super) fn run(args: &Args, rules: &Rules) -> anyhow::Result<Outcome> {
    let (client, options) = (args.client.client()?, args.options()?);
    let jobs = usize::from(args.jobs.max(1));
    let (give, take) = bounded::<Asked>(jobs * WAITING);
    let (done, hear) = bounded::<Done>(jobs * WAITING);
    let (occupy, free) = bounded::<()>(AHEAD);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read_all(args, rules, &occupy, &give));
        for _ in 0..jobs {
            let (take, done, client, options) =
                (take.clone(), done.clone(), Arc::clone(&client), options.clone());
            scope.spawn(move || work(client, &options, &take, &done));
        }
        // Only the workers hold them from here on, so that all end when they do.
        drop((take, done));
        let shown = show_in_order(args, &hear, &free);
        // Who does not want to see more ends the others, too.
        drop((hear, free));
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let outcome = shown?;
        read.map(|()| outcome)
    })
}

fn read_all(args: &Args, rules: &Rules, occupy: &Sender<()>, give: &Sender<Asked>) -> anyhow::Result<()> {
    let mut number = 0;
    let mut ask = |written: &str| {
        let question = Reference::parse(written, rules)
            .with_context(|| format!("{written:?} is no handle"))
            .and_then(|reference| {
                ensure!(reference.server.is_none(), "it names a server: resolve it alone");
                args.question(&reference)
            });
        let asked = Asked { number, written: written.to_owned(), question };
        number += 1;
        // Nobody hears any more when the output was closed.
        occupy.send(()).is_ok() && give.send(asked).is_ok()
    };
    for handle in &args.handles {
        if !ask(handle) {
            return Ok(());
        }
    }
    let Some(path) = &args.file else { return Ok(()) };
    let reader: Box<dyn BufRead> = match path == Path::new("-") {
        true => Box::new(BufReader::new(std::io::stdin())),
        false => Box::new(BufReader::new(
            File::open(path).with_context(|| format!("cannot read {}", path.display()))?,
        )),
    };
    for line in reader.lines() {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        if !line.trim().is_empty() && !ask(&line) {
            return Ok(());
        }
    }
    Ok(())
}

fn work(client: Arc<Client>, options: &Options, take: &Receiver<Asked>, done: &Sender<Done>) {
    let mut driver = Driver::new(client);
    for Asked { number, written, question } in take {
        let outcome = question.map(|question| driver.resolve(&question, options).outcome);
        if done.send(Done { number, written, outcome }).is_err() {
            return;
        }
    }
}

/// Prints what came of each, in the order in which they were given; the outcome of the first that failed.
fn show_in_order(args: &Args, hear: &Receiver<Done>, free: &Receiver<()>) -> anyhow::Result<Outcome> {
    let bar = progress::bar("resolving", args.file.is_none().then_some(args.handles.len() as u64));
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut waiting = BTreeMap::new();
    let (mut next, mut first_bad) = (0, None);
    for done in hear {
        waiting.insert(done.number, done);
        while let Some(done) = waiting.remove(&next) {
            next += 1;
            // Its place: whoever asks takes one before.
            let _ = free.try_recv();
            let outcome = show(args, &mut out, &done)?;
            if outcome != Outcome::Good {
                first_bad.get_or_insert(outcome);
            }
            bar.inc(1);
        }
    }
    out.flush()?;
    bar.finish_and_clear();
    Ok(first_bad.unwrap_or(Outcome::Good))
}

fn show(args: &Args, out: &mut impl Write, done: &Done) -> anyhow::Result<Outcome> {
    let answer = match &done.outcome {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let why =
                format!("{error}{}", hint::of(error).map(|hint| format!(" ({hint})")).unwrap_or_default());
            return complain(args, out, done, &why, found::failure(error));
        }
        Err(error) => return complain(args, out, done, &format!("{error:#}"), Outcome::Failed),
    };
    let handle = printable(&Handle(&answer.handle).to_string());
    let url = if args.url { found::target(answer) } else { None };
    if args.json {
        writeln!(out, "{}", output::json_line(&found::to_json(answer)))?;
    } else if answer.code != ResponseCode::SUCCESS {
        eprintln!("hdl: {}: {} {}", printable(&done.written), answer.code.0, answer.code);
    } else if let Some(url) = &url {
        writeln!(out, "{handle}\t{}", printable(url))?;
    } else if args.url {
        eprintln!("hdl: {}: no URL", printable(&done.written));
        return Ok(Outcome::NoValues);
    } else {
        for value in answer.values() {
            let data = output::describe(value.kind, value.data);
            let kind = printable(&Handle(value.kind).to_string());
            writeln!(out, "{handle}\t{}\t{kind}\t{data}", value.index)?;
        }
    }
    Ok(outcome(answer.code))
}

fn complain(
    args: &Args,
    out: &mut impl Write,
    done: &Done,
    why: &str,
    outcome: Outcome,
) -> anyhow::Result<Outcome> {
    match args.json {
        true => writeln!(out, "{}", output::json_line(&json!({ "handle": done.written, "error": why })))?,
        false => eprintln!("hdl: {}", printable(&format!("{}: {why}", done.written))),
    }
    Ok(outcome)
}
