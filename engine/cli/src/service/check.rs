//! `hdl check`: asks every site and server of a service for the same handle, and shows where they
//! differ.

use super::{LocatedService, locate};
use crate::client::ClientArgs;
use crate::output;
use crate::style::{Paint, paint};
use crate::{ExitOutcome, exchange};
use anyhow::{Context as _, bail};
use handle_client::administration::Administrator;
use handle_client::lookup::{Client, LookupOptions, LookupTarget};
use handle_client::plan::ServerTarget;
use handle_client::reference::{HandleReference, ReferenceRules};
use handle_client::service::SharedSite;
use handle_client::trace::{AnswerOrigin, LookupStep};
use handle_client::{BlockingDriver, LookupAnswer, LookupError, Question};
use handle_proto::data::SiteBuf;
use handle_proto::data::site::{InterfaceKind, InterfaceProtocol};
use handle_proto::name::BLANK;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the connection that the site record comes over, and for its answer.
const SITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Compare the answers of all servers of a service for one handle.
///
/// In each site, the server that the hash chooses has to answer over every protocol it supports
/// (with --tcp only over TCP), with the same values as the other sites. All other servers have to
/// answer that they are not responsible. An outdated mirror shows up as different.
/// `hdl mirror compare` compares all records of a mirror with those of its primaries.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl check 10.1045/july95-arms --certify
  hdl check 10.1045/first --server 127.0.0.1            before the registry has the prefix

Exit codes: 0 all agree, 1 servers disagree or do not answer.")]
pub(crate) struct Args {
    /// The handle.
    handle: String,
    /// Take the site from this server, over TCP, instead of looking the service up: for a service
    /// that the global registry does not have yet, or cannot be asked about.
    #[arg(long, short, value_name = "HOST[:PORT]")]
    server: Option<String>,
    /// Request signatures, and verify them.
    #[arg(long)]
    certify: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// The answer of one server over one protocol.
struct ServerReport {
    site: usize,
    server: usize,
    /// Without port and protocol if the server cannot be asked.
    address: String,
    protocol: Option<InterfaceProtocol>,
    is_responsible: bool,
    is_primary: bool,
    took_ms: Option<u32>,
    outcome: Result<LookupAnswer, LookupError>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(check(args), args.json)
}

fn check(args: &Args) -> anyhow::Result<ExitOutcome> {
    let client = args.client.client()?;
    let located = match &args.server {
        Some(server) => named(server, &args.handle)?,
        None => locate(&client, &args.handle, args.certify)?,
    };
    let mut reports = vec![];
    for (number, site) in located.sites.iter().enumerate() {
        reports.extend(ask_site(&client, args, &located, number, site));
    }
    let expected = most_common(&reports);
    let is_right = |report: &ServerReport| is_good(report, expected.as_ref());
    let good: Vec<bool> =
        reports.iter().map(|one| is_right(one) || over_tcp(one, &reports).is_some_and(is_right)).collect();
    let agree = good.iter().all(|&good| good) && !reports.is_empty();
    let in_time: Vec<bool> =
        reports.iter().map(|report| differs_in_time(report, expected.as_ref())).collect();
    show(args, &reports, &good, &in_time);
    Ok(if agree { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// The service of one site, whose record `server` has.
fn named(server: &str, written: &str) -> anyhow::Result<LocatedService> {
    let reference = HandleReference::parse(written, &ReferenceRules::typed())
        .with_context(|| format!("invalid handle {written:?}"))?;
    let address = exchange::address(server)?;
    let request = Request::GetSiteInfo(HandleBody { handle: BLANK });
    let answer = Administrator::new(address, SITE_TIMEOUT).ask(&request, OpFlags::PLAIN_REQUEST)?;
    let Response::SiteInfo(bytes) = answer.reply().response else {
        bail!("{server} does not tell its site record: it answered {} {}", answer.code().0, answer.code());
    };
    let site = SiteBuf::from_bytes(bytes.to_vec()).with_context(|| format!("the site record of {server}"))?;
    let handle = reference.handle.into_bytes();
    Ok(LocatedService { handle, from: AnswerOrigin::Caller, sites: vec![Arc::new(site)] })
}

/// Asks each server of a site over each protocol.
fn ask_site(
    client: &Arc<Client>,
    args: &Args,
    located: &LocatedService,
    number: usize,
    site: &SharedSite,
) -> Vec<ServerReport> {
    let (view, preferences) = (site.view(), &client.preferences);
    let responsible = view.server_at(Handle(&located.handle));
    let mut reports = vec![];
    for (at, server) in view.servers.iter().enumerate() {
        let report_of = |address: String, protocol, took_ms, outcome| ServerReport {
            site: number,
            server: at,
            address,
            protocol,
            is_responsible: responsible == Some(at),
            is_primary: view.is_primary(),
            took_ms,
            outcome,
        };
        let target = |&protocol| ServerTarget::of(&view, at, protocol, InterfaceKind::QUERY, preferences);
        let targets: Vec<ServerTarget> = preferences.protocols.iter().filter_map(target).collect();
        // Other servers that cannot be asked from here are not a fault.
        if targets.is_empty() && responsible == Some(at) {
            let error = LookupError::NoServer { handle: located.handle.clone() };
            reports.push(report_of(server.address.to_string(), None, None, Err(error)));
        }
        for target in targets {
            let (address, protocol) = (target.address, target.protocol);
            let mut question = Question::all(located.handle.clone());
            question.wants.certified = args.certify;
            let options = LookupOptions {
                use_cache: false,
                target: LookupTarget::Servers(vec![target]),
                trace: true,
                ..LookupOptions::default()
            };
            let resolved = BlockingDriver::new(Arc::clone(client)).resolve(&question, &options);
            let took_ms = resolved.events.iter().find_map(|event| match event.step {
                LookupStep::Answered { took_ms, .. } => Some(took_ms),
                _ => None,
            });
            // If the record has only its name, the answer shows the address.
            let from = resolved.outcome.as_ref().ok().and_then(|answer| answer.from).unwrap_or(address);
            let outcome = resolved.outcome.map(|answer| (*answer).clone());
            reports.push(report_of(from.to_string(), Some(protocol), took_ms, outcome));
        }
    }
    reports
}

/// The content of an answer, independent of the order of its values.
type CheckContent = (ResponseCode, Vec<Vec<u8>>);

fn content(answer: &LookupAnswer) -> CheckContent {
    let mut values: Vec<Vec<u8>> = answer
        .values()
        .iter()
        .map(|value| {
            let mut encoded = vec![];
            value.encode(&mut encoded);
            encoded
        })
        .collect();
    values.sort_unstable();
    (answer.code, values)
}

/// Whether the server answered over UDP with RC 2, as it does where the answer takes too many
/// datagrams. Clients then ask over TCP.
fn is_too_long_for_udp(report: &ServerReport) -> bool {
    report.protocol == Some(InterfaceProtocol::UDP)
        && report.outcome.as_ref().is_ok_and(|answer| answer.code == ResponseCode::ERROR)
}

/// What the server of an answer that was too long for UDP said over TCP.
fn over_tcp<'a>(report: &ServerReport, all: &'a [ServerReport]) -> Option<&'a ServerReport> {
    let is_same = |other: &&ServerReport| (other.site, other.server) == (report.site, report.server);
    let is_over_tcp = |other: &&ServerReport| other.protocol == Some(InterfaceProtocol::TCP);
    is_too_long_for_udp(report).then(|| all.iter().filter(is_same).find(is_over_tcp)).flatten()
}

/// The most frequent answer of the responsible servers; on a tie, that of primary sites.
fn most_common(reports: &[ServerReport]) -> Option<CheckContent> {
    let mut counted: Vec<(CheckContent, usize)> = vec![];
    for report in reports.iter().filter(|report| report.is_responsible && !is_too_long_for_udp(report)) {
        let Ok(answer) = &report.outcome else { continue };
        let (content, weight) = (content(answer), if report.is_primary { 1001 } else { 1000 });
        match counted.iter_mut().find(|(known, _)| *known == content) {
            Some((_, count)) => *count += weight,
            None => counted.push((content, weight)),
        }
    }
    counted.into_iter().max_by_key(|(_, count)| *count).map(|(content, _)| content)
}

/// Whether an answer differs from `expected` only in the timestamps of values.
fn differs_in_time(report: &ServerReport, expected: Option<&CheckContent>) -> bool {
    let timeless = |(code, values): &CheckContent| -> CheckContent {
        let mut values = values.clone();
        // The timestamp follows the index in each value. RFC 3651 section 3.1, in the order on the
        // wire.
        values.iter_mut().for_each(|value| value[4..8].fill(0));
        values.sort_unstable();
        (*code, values)
    };
    let (Ok(answer), Some(expected)) = (&report.outcome, expected) else { return false };
    let content = content(answer);
    report.is_responsible && content != *expected && timeless(&content) == timeless(expected)
}

fn is_good(report: &ServerReport, expected: Option<&CheckContent>) -> bool {
    match &report.outcome {
        Ok(answer) if report.is_responsible => Some(&content(answer)) == expected,
        Ok(answer) => answer.code == ResponseCode::SERVER_NOT_RESPONSIBLE,
        Err(_) => false,
    }
}

fn show(args: &Args, reports: &[ServerReport], good: &[bool], in_time: &[bool]) {
    let all = reports;
    let agree = good.iter().all(|&good| good) && !reports.is_empty();
    let found = |report: &ServerReport| match &report.outcome {
        Ok(answer) if answer.code == ResponseCode::SUCCESS => {
            output::counted(answer.values().len() as u64, "value", "values")
        }
        Ok(_) if over_tcp(report, all).is_some() => "too long for UDP, see TCP".to_owned(),
        Ok(answer) => format!("{} {}", answer.code.0, answer.code),
        Err(LookupError::AllFailed { last, .. }) => last.to_string(),
        Err(LookupError::NoServer { .. }) => "no interface that is reachable from here".to_owned(),
        Err(error) => error.to_string(),
    };
    let what = |at: usize| match in_time[at] {
        true => format!("{}, differs only in timestamps", found(&reports[at])),
        false => found(&reports[at]),
    };
    if args.json {
        let servers: Vec<Json> = reports
            .iter()
            .zip(good)
            .enumerate()
            .map(|(at, (report, good))| {
                json!({
                    "site": report.site + 1, "server": report.server + 1, "address": report.address,
                    "protocol": report.protocol.and_then(InterfaceProtocol::name),
                    "responsible": report.is_responsible, "says": what(at),
                    "ms": report.took_ms, "good": good,
                })
            })
            .collect();
        let json = json!({ "handle": args.handle, "agree": agree, "servers": servers });
        output::print_json(&json);
        return;
    }
    let mut table = output::table(&["", "site", "server", "address", "over", "responsible", "says", "ms"]);
    for (at, (report, &good)) in reports.iter().zip(good).enumerate() {
        // Servers that refused correctly are many and uninteresting, so they are dimmed.
        let of = match (good, report.is_responsible) {
            (false, _) => Paint::Bad,
            (true, true) => Paint::Good,
            (true, false) => Paint::Dim,
        };
        table.add_painted(
            of,
            [
                if good { "ok" } else { "!!" }.to_owned(),
                format!("{}{}", report.site + 1, if report.is_primary { "" } else { " (secondary)" }),
                (report.server + 1).to_string(),
                report.address.clone(),
                report.protocol.map_or("-", |protocol| protocol.name().unwrap_or("?")).to_owned(),
                if report.is_responsible { "yes" } else { "no" }.to_owned(),
                what(at),
                report.took_ms.map_or_else(|| "-".to_owned(), |ms| ms.to_string()),
            ],
        );
    }
    output::lines(&table);
    let (of, verdict) = if agree { (Paint::Good, "all agree") } else { (Paint::Bad, "servers disagree") };
    println!("{}", paint(of, verdict));
}
