//! `hdl resolve` of one handle without --server, starting at the global service.

use super::{Args, hint, outcome};
use crate::output::{self, printable};
use crate::style::{Paint, paint};
use crate::{ExitOutcome, notice};
use handle_client::lookup::{Client, LookupOptions};
use handle_client::signature::{SignatureReport, ValueVerdict, Verifier};
use handle_client::trace::{LookupEvent, LookupStep};
use handle_client::{BlockingDriver, LookupAnswer, LookupError, Question, driver};
use handle_proto::json::{record_to_json, value_to_json};
use handle_proto::{Handle, ResponseCode};
use serde_json::{Value as Json, json};
use std::sync::Arc;

pub(super) fn run(args: &Args, question: &Question, options: LookupOptions) -> anyhow::Result<ExitOutcome> {
    let client = args.client.client()?;
    let mut driver = BlockingDriver::new(Arc::clone(&client));
    // A signature covers all values; they are filtered later.
    let lookup_question = match args.signatures {
        true => Question { indexes: vec![], types: vec![], ..question.clone() },
        false => question.clone(),
    };
    let resolved = match args.trace && !args.json {
        true => driver.watch(&lookup_question, &options, &mut show_step),
        false => driver.resolve(&lookup_question, &options),
    };
    let answer = match resolved.outcome {
        Ok(answer) => answer,
        Err(error) => return Ok(show_error(args, &client, &error, &resolved.events)),
    };
    let report = args.signatures.then(|| {
        let mut fetch = |question: &Question| {
            let lookup = driver.resolve(question, &LookupOptions::default());
            lookup.outcome.ok().map(|answer| (*answer).clone())
        };
        let root = client.root.get();
        let verifier = Verifier { trusted_keys: &root.trusted_keys, now_unix_s: driver::now().unix_s };
        verifier.verify(&answer, &mut fetch)
    });
    let is_bad =
        answer.code == ResponseCode::SUCCESS && report.as_ref().is_some_and(|report| !report.is_whole());
    let answer = if args.signatures { answer.selected(question).into() } else { answer };
    show(args, &answer, report.as_ref(), is_bad, &resolved.events);
    notice::warn(&client, &answer.handle, question.wants);
    match is_bad {
        true => Ok(ExitOutcome::Failed),
        _ if args.url && target(&answer).is_none() && answer.code == ResponseCode::SUCCESS => {
            Ok(ExitOutcome::NoValues)
        }
        _ => Ok(outcome(answer.code)),
    }
}

fn line(event: &LookupEvent) -> String {
    printable(&format!("{:>6} ms  {event}", event.at_ms))
}

fn show_step(event: &LookupEvent) {
    let of = match &event.step {
        LookupStep::Question { .. } | LookupStep::Alias { .. } => Paint::Strong,
        LookupStep::Answered { code: ResponseCode::SUCCESS, .. } => Paint::Good,
        LookupStep::Answered { .. } => Paint::Odd,
        LookupStep::Failed { .. } => Paint::Bad,
        LookupStep::Asked { .. } => Paint::Dim,
        _ => Paint::Plain,
    };
    println!("{}", paint(of, line(event)));
}

/// The data of the first value of type URL.
pub(super) fn target(answer: &LookupAnswer) -> Option<String> {
    let mut values = answer.values().iter();
    let value = values.find(|value| handle_proto::fold::eq(value.kind, b"URL"))?;
    Some(String::from_utf8_lossy(value.data).into_owned())
}

/// The exit code for a failed lookup.
pub(super) const fn failure(error: &LookupError) -> ExitOutcome {
    match error {
        LookupError::AllFailed { .. } | LookupError::TooSlow { .. } => ExitOutcome::NoAnswer,
        LookupError::NoService { .. } | LookupError::NoServer { .. } | LookupError::Circle { .. } => {
            ExitOutcome::NotResponsible
        }
        LookupError::Challenge(_) | LookupError::OldProof(_) => ExitOutcome::Refused,
        _ => ExitOutcome::Failed,
    }
}

fn show_error(args: &Args, client: &Client, error: &LookupError, events: &[LookupEvent]) -> ExitOutcome {
    let hint = hint::of(error, client, &args.client);
    if args.json {
        let mut json = json!({ "error": error.to_string() });
        if let Some(hint) = &hint {
            json["hint"] = hint.as_str().into();
        }
        add_trace(args, &mut json, events);
        output::print_json(&json);
    }
    eprintln!("hdl: {}", printable(&error.to_string()));
    hint.iter().for_each(|hint| eprintln!("hdl: {}", printable(hint)));
    failure(error)
}

fn add_trace(args: &Args, json: &mut Json, events: &[LookupEvent]) {
    if args.trace {
        json["trace"] = events.iter().map(line).collect();
    }
}

/// Formats an answer as JSON, with the fields of the handle REST API.
pub(super) fn to_json(answer: &LookupAnswer) -> Json {
    let mut json = json!({ "responseCode": answer.code.0 });
    match answer.code {
        ResponseCode::SUCCESS => {
            let record = record_to_json(&answer.handle, []);
            json["handle"] = record["handle"].clone();
            json["values"] = answer.values().iter().map(|value| value_to_json(&value)).collect();
        }
        _ => json["handle"] = String::from_utf8_lossy(&answer.handle).into(),
    }
    if !answer.text.is_empty() {
        json["message"] = answer.text.clone().into();
    }
    json
}

fn show(
    args: &Args,
    answer: &LookupAnswer,
    report: Option<&SignatureReport>,
    is_bad: bool,
    events: &[LookupEvent],
) {
    if args.json {
        let mut json = to_json(answer);
        if let (true, true, Some(members)) = (args.url, is_bad, json.as_object_mut()) {
            members.remove("values");
        }
        json["certified"] = answer.certified.into();
        if let Some(report) = report {
            json["signatures"] = report_json(report);
        }
        add_trace(args, &mut json, events);
        output::print_json(&json);
        return;
    }
    let handle = printable(&Handle(&answer.handle).to_string());
    if answer.code != ResponseCode::SUCCESS {
        let colon = if answer.text.is_empty() { "" } else { ": " };
        println!(
            "{}  {}{colon}{}",
            paint(Paint::Strong, handle),
            paint(Paint::Odd, format_args!("{} {}", answer.code.0, answer.code)),
            printable(&answer.text)
        );
        return;
    }
    if args.url {
        match target(answer) {
            _ if is_bad => {
                eprintln!("hdl: {handle}: a value is missing, or not signed by a trusted key");
                eprintln!("hdl: run without --url to see the state of each value");
            }
            Some(url) => println!("{}", printable(&url)),
            None => eprintln!("hdl: {handle} has no URL"),
        }
        return;
    }
    let from = answer.from.map_or_else(String::new, |from| format!(" from {from}"));
    println!(
        "{}  {}{from}{}{}",
        paint(Paint::Strong, &handle),
        output::counted(answer.values().len() as u64, "value", "values"),
        match answer.certified {
            true => paint(Paint::Good, ", signature good"),
            false => paint(Paint::Plain, ""),
        },
        if answer.cached { ", cached" } else { "" },
    );
    output::lines(output::values(answer.values()));
    if let Some(report) = report {
        show_report(report);
    }
}

fn verdict(verdict: ValueVerdict) -> &'static str {
    match verdict {
        ValueVerdict::Verified => "signed",
        ValueVerdict::BadDigest => "changed after it was signed",
        ValueVerdict::Unsigned => "not signed by a trusted key",
    }
}

fn show_report(report: &SignatureReport) {
    println!();
    for &(index, of) in &report.values {
        let paints = if of == ValueVerdict::Verified { Paint::Good } else { Paint::Bad };
        println!("{}", paint(paints, format_args!("value {index}: {}", verdict(of))));
    }
    for index in &report.missing {
        println!("{}", paint(Paint::Bad, format_args!("value {index}: signed, but missing")));
    }
    for (index, error) in &report.refused {
        let why = printable(&error.to_string());
        println!(
            "{}",
            paint(Paint::Odd, format_args!("the signature in value {index} is not accepted: {why}"))
        );
    }
}

fn report_json(report: &SignatureReport) -> Json {
    let refused =
        report.refused.iter().map(|(index, error)| json!({ "index": index, "why": error.to_string() }));
    json!({
        "good": report.is_whole(),
        "values": report.values.iter().map(|&(index, of)| json!({ "index": index, "is": verdict(of) })).collect::<Vec<_>>(),
        "missing": report.missing,
        "refused": refused.collect::<Vec<_>>(),
    })
}
