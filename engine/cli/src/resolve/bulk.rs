//! `hdl resolve` of many handles: several at a time, printed in the given order.

use super::{Args, global, hint, outcome};
use crate::input::open_bytes;
use crate::output::{self, printable};
use crate::{ExitOutcome, progress};
use anyhow::{Context as _, anyhow, bail, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_client::flight::FlightOutcome as LookupOutcome;
use handle_client::lookup::Client;
use handle_client::reference::{HandleReference, ReferenceRules};
use handle_client::{BlockingDriver, Question};
use handle_formats::input::{InputEntry, InputForm, InputReader, InputStream};
use handle_proto::{Handle, ResponseCode};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Questions and outcomes queued for each worker.
const WAITING: usize = 16;
/// Maximum number of questions that are open or answered before the oldest is printed. It bounds
/// the memory when one question is slow.
const AHEAD: usize = 1 << 14;

struct BulkQuestion {
    number: u64,
    written: String,
    question: anyhow::Result<Question>,
}

struct BulkOutcome {
    number: u64,
    written: String,
    outcome: anyhow::Result<LookupOutcome>,
}

/// Answers one question, on a worker.
type ResolveFunction<'a> = Box<dyn FnMut(&Question) -> LookupOutcome + 'a>;

pub(super) fn run(args: &Args, rules: &ReferenceRules) -> anyhow::Result<ExitOutcome> {
    let (client, options) = (args.client.client()?, args.options()?);
    let worker = || -> ResolveFunction<'_> {
        let (mut driver, options) = (BlockingDriver::new(Arc::clone(&client)), &options);
        Box::new(move |question| driver.resolve(question, options).outcome)
    };
    let bar = progress::bar("resolving", args.file.is_none().then_some(args.handles.len() as u64));
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut show_next = |done: &BulkOutcome| {
        bar.inc(1);
        show(args, &client, &mut out, done)
    };
    let ended = in_order(args.jobs.max(1).into(), |ask| read_all(args, rules, ask), &worker, &mut show_next);
    // Results are printed even if the input ended with an error.
    let flushed = out.flush();
    bar.finish_and_clear();
    // Also after the output was closed: servers would keep the sessions until they expire.
    BlockingDriver::new(client).end_sessions();
    flushed?;
    ended
}

/// Takes a handle as written and its question; returns whether more are wanted.
type QuestionSink<'a> = dyn FnMut(&str, anyhow::Result<Question>) -> bool + 'a;

/// Asks the questions of `read` with `workers_count` workers, shows the results in the given order,
/// and returns the outcome of the first failure.
fn in_order<'a>(
    jobs: usize,
    read: impl FnOnce(&mut QuestionSink<'_>) -> anyhow::Result<()> + Send,
    worker: &(impl Fn() -> ResolveFunction<'a> + Sync),
    show: &mut dyn FnMut(&BulkOutcome) -> anyhow::Result<ExitOutcome>,
) -> anyhow::Result<ExitOutcome> {
    let (give, take) = bounded::<BulkQuestion>(jobs * WAITING);
    let (done, hear) = bounded::<BulkOutcome>(jobs * WAITING);
    let (occupy, free) = bounded::<()>(AHEAD);
    let faults = AtomicU64::new(0);
    let outcome = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut number = 0;
            read(&mut |written, question| {
                let bulk_question = BulkQuestion { number, written: written.to_owned(), question };
                number += 1;
                // The receiver is gone once the output was closed.
                occupy.send(()).is_ok() && give.send(bulk_question).is_ok()
            })
        });
        for _ in 0..jobs {
            let (take, done, faults) = (take.clone(), done.clone(), &faults);
            scope.spawn(move || work(worker, &take, &done, faults));
        }
        // Only the workers hold these channels from here on, so that all end together.
        drop((take, done));
        let shown = show_in_order(&hear, &free, show);
        // When the printer stops, the workers stop, too.
        drop((hear, free));
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let outcome = shown?;
        read.map(|()| outcome)
    })?;
    match faults.into_inner() {
        0 => Ok(outcome),
        count => bail!("internal error: handles not resolved: {count} (please report this)"),
    }
}

fn read_all(args: &Args, rules: &ReferenceRules, ask: &mut QuestionSink<'_>) -> anyhow::Result<()> {
    let question = |written: &str| {
        let read =
            HandleReference::parse(written, rules).with_context(|| format!("invalid handle {written:?}"));
        read.and_then(|reference| {
            ensure!(
                reference.server.is_none(),
                "the reference names a server: resolve it with a separate command"
            );
            args.question(&reference)
        })
    };
    for handle in &args.handles {
        if !ask(handle, question(handle)) {
            return Ok(());
        }
    }
    let Some(path) = &args.file else { return Ok(()) };
    let input = open_bytes(path)?;
    each_name(input, |written| match written {
        Ok(written) => ask(written, question(written)),
        Err(why) => ask("", Err(anyhow!("{why}"))),
    })
    .with_context(|| format!("cannot read {}", path.display()))
}

/// Passes each name of an input to `take`, until that returns false: the lines of a list, or the
/// handles of records and operations in any form.
fn each_name(input: impl Read, mut take: impl FnMut(Result<&str, String>) -> bool) -> anyhow::Result<()> {
    let mut stream = InputStream::new(input)?;
    // Names that are written as URLs do not look like a list.
    let form = InputForm::recognise(&mut stream)?.unwrap_or(InputForm::Names);
    let mut reader = InputReader::new(stream, form)?;
    while let Some((position, entry)) = reader.next()? {
        let goes_on = match &entry {
            InputEntry::Homed(_) => true,
            InputEntry::Refused(None, why) => take(Err(format!("{position}: {why}"))),
            entry => match entry.name().map(str::from_utf8) {
                Some(Ok(name)) => take(Ok(name)),
                Some(Err(_)) => take(Err(format!("{position}: the name is not UTF-8"))),
                None => true,
            },
        };
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Runs a worker. A panic is reported as a failure of its question, because the printer waits for
/// every number; the worker then continues with fresh state.
fn work<'a>(
    worker: &impl Fn() -> ResolveFunction<'a>,
    take: &Receiver<BulkQuestion>,
    done: &Sender<BulkOutcome>,
    faults: &AtomicU64,
) {
    let mut resolve = worker();
    for BulkQuestion { number, written, question } in take {
        let resolved = catch_unwind(AssertUnwindSafe(|| question.map(|question| resolve(&question))));
        let outcome = resolved.unwrap_or_else(|_| {
            faults.fetch_add(1, Ordering::Relaxed);
            resolve = worker();
            Err(anyhow!("internal error: not resolved (please report this)"))
        });
        if done.send(BulkOutcome { number, written, outcome }).is_err() {
            return;
        }
    }
}

/// Shows the results in the given order; returns the outcome of the first failure.
fn show_in_order(
    hear: &Receiver<BulkOutcome>,
    free: &Receiver<()>,
    show: &mut dyn FnMut(&BulkOutcome) -> anyhow::Result<ExitOutcome>,
) -> anyhow::Result<ExitOutcome> {
    let mut waiting = BTreeMap::new();
    let (mut next, mut first_bad) = (0, None);
    for done in hear {
        waiting.insert(done.number, done);
        while let Some(done) = waiting.remove(&next) {
            next += 1;
            // Frees its permit; the reader takes a permit before each question.
            let _ = free.try_recv();
            let outcome = show(&done)?;
            if outcome != ExitOutcome::Good {
                first_bad.get_or_insert(outcome);
            }
        }
    }
    Ok(first_bad.unwrap_or(ExitOutcome::Good))
}

fn show(
    args: &Args,
    client: &Client,
    out: &mut impl Write,
    done: &BulkOutcome,
) -> anyhow::Result<ExitOutcome> {
    let answer = match &done.outcome {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let hint = hint::of(error, client, &args.client);
            let why = format!("{error}{}", hint.map(|hint| format!(" ({hint})")).unwrap_or_default());
            return complain(args, out, done, &why, global::failure(error));
        }
        Err(error) => return complain(args, out, done, &format!("{error:#}"), ExitOutcome::Failed),
    };
    let handle = printable(&Handle(&answer.handle).to_string());
    let url = if args.url { global::target(answer) } else { None };
    if args.json {
        writeln!(out, "{}", output::json_line(&global::to_json(answer)))?;
    } else if answer.code != ResponseCode::SUCCESS {
        eprintln!("hdl: {}: {} {}", printable(&done.written), answer.code.0, answer.code);
    } else if let Some(url) = &url {
        writeln!(out, "{handle}\t{}", printable(url))?;
    } else if args.url {
        eprintln!("hdl: {}: no URL", printable(&done.written));
        return Ok(ExitOutcome::NoValues);
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
    done: &BulkOutcome,
    why: &str,
    outcome: ExitOutcome,
) -> anyhow::Result<ExitOutcome> {
    match args.json {
        true => writeln!(out, "{}", output::json_line(&json!({ "handle": done.written, "error": why })))?,
        false => eprintln!("hdl: {}", printable(&format!("{}: {why}", done.written))),
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::LookupAnswer;

    /// Passes numbers as handles until the receiver is gone; `question_count` counts them.
    fn numbers<'a>(
        count: usize,
        question_count: &'a AtomicU64,
    ) -> impl FnOnce(&mut QuestionSink<'_>) -> anyhow::Result<()> + Send + 'a {
        move |ask| {
            for number in (0..count).map(|number| number.to_string()) {
                if !ask(&number, Ok(Question::all(number.as_bytes()))) {
                    break;
                }
                question_count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }
    }

    fn found(question: &Question) -> LookupOutcome {
        Ok(LookupAnswer::new(question.handle.clone(), ResponseCode::SUCCESS, []).into())
    }

    #[test]
    fn names_are_read_in_every_form() {
        let read = |text: &[u8]| {
            let mut names = vec![];
            each_name(text, |name| {
                names.push(name.map_or_else(|why| why, str::to_owned));
                names.len() < 4
            })
            .map(|()| names)
        };
        assert_eq!(read(b"").unwrap(), Vec::<String>::new());
        let expected = ["10.1/a", "line 2: the line is not UTF-8", "hdl:10.1/b c?x"];
        assert_eq!(read(b"\xef\xbb\xbf10.1/a\r\n\xff\n# comment\n\nhdl:10.1/b c?x").unwrap(), expected);
        assert_eq!(read(b"1\n2\n3\n4\n5\n").unwrap().len(), 4, "no more is wanted");
        for text in [
            &b"https://doi.org/10.1/a\n10.1/b\n"[..],
            b"handle;index;type;data\nhttps://doi.org/10.1/a;1;URL;x\n10.1/b;1;URL;x\n",
            b"{\"homed\":\"0.NA/10.1\"}\n{\"handle\":\"https://doi.org/10.1/a\"}\n{\"handle\":\"10.1/b\",\"values\":[]}\n",
            b"CREATE https://doi.org/10.1/a\n1 URL 1 1110 UTF8 x\n\nDELETE 10.1/b\n",
        ] {
            assert_eq!(read(text).unwrap(), ["https://doi.org/10.1/a", "10.1/b"], "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_worker_that_panics_loses_one_handle_and_the_whole_ends_with_an_error() {
        // More numbers than can wait, so that a number that never comes would block the rest.
        let (count, question_count) = (2 * AHEAD, AtomicU64::new(0));
        let worker = || -> ResolveFunction<'_> {
            Box::new(|question| {
                assert_ne!(question.handle, b"7", "an injected panic");
                found(question)
            })
        };
        let mut shown = vec![];
        let mut show = |done: &BulkOutcome| {
            shown.push((done.written.clone(), done.outcome.is_ok()));
            Ok(if done.outcome.is_ok() { ExitOutcome::Good } else { ExitOutcome::Failed })
        };
        let error = in_order(3, numbers(count, &question_count), &worker, &mut show).unwrap_err();
        assert!(error.to_string().contains("not resolved: 1"), "{error}");
        let expected = (0..count).map(|number| (number.to_string(), number != 7));
        assert!(shown.into_iter().eq(expected), "all others are shown, in order");
    }

    #[test]
    fn no_more_is_asked_ahead_of_one_that_is_slow_than_may_wait() {
        let (question_count, ahead) = (AtomicU64::new(0), AHEAD as u64);
        let worker = || -> ResolveFunction<'_> {
            Box::new(|question| {
                // The first is slow: it blocks until the reader has to wait.
                while question.handle == b"0" && question_count.load(Ordering::SeqCst) < ahead {
                    std::thread::yield_now();
                }
                found(question)
            })
        };
        let mut shown_count = 0;
        let mut show = |_: &BulkOutcome| {
            if shown_count == 0 {
                // The permit of the slow question is free again.
                let question_count = question_count.load(Ordering::SeqCst);
                assert!((ahead..=ahead + 1).contains(&question_count), "{question_count}");
            }
            shown_count += 1;
            Ok(ExitOutcome::Good)
        };
        let count = 3 * AHEAD;
        in_order(2, numbers(count, &question_count), &worker, &mut show).unwrap();
        assert_eq!(shown_count, count);
    }

    #[test]
    fn whoever_does_not_want_to_see_more_ends_everything() {
        let question_count = AtomicU64::new(0);
        let worker = || -> ResolveFunction<'_> { Box::new(found) };
        let mut left = 10;
        let mut show = |_: &BulkOutcome| {
            left -= 1;
            if left == 0 { bail!("the output was closed") } else { Ok(ExitOutcome::Good) }
        };
        let error = in_order(2, numbers(usize::MAX, &question_count), &worker, &mut show).unwrap_err();
        assert_eq!(error.to_string(), "the output was closed");
    }
}
