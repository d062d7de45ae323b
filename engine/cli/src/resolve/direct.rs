//! `hdl resolve --server`: asks one server for the values of a handle.

use super::{Args, outcome};
use crate::ExitOutcome;
use crate::exchange::{self, OutgoingQuery};
use crate::output::{self, printable};
use crate::style::{Paint, paint};
use anyhow::{Context as _, bail, ensure};
use handle_client::Question;
use handle_client::raw_exchange::{RawAnswer, UNREAD_REQUEST_ID};
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::UDP_RETRY_MS;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::message::Body;
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::{Envelope, Message, Reply, Request, Response, put};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Version};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::time::Duration;

/// Time limit for an answer over TCP, including the connection.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks `server` for a handle and prints the answer.
pub(super) fn run(
    args: &Args,
    question: &Question,
    handle: &str,
    server: &str,
) -> anyhow::Result<ExitOutcome> {
    let server = exchange::address(server)?;
    let indexes: Vec<[u8; 4]> = question.indexes.iter().map(|index| index.to_be_bytes()).collect();
    let mut types = Vec::new();
    question.types.iter().for_each(|kind| put::string(&mut types, kind));
    let query = Query {
        handle: handle.as_bytes(),
        indexes: Indexes::new(&indexes),
        types: Strings::from_encoded(question.types.len(), &types)
            .context("too many types for one request")?,
    };
    let mut flags = OpFlags::PLAIN_REQUEST;
    if args.all {
        flags = flags.without(OpFlags::PUBLIC_ONLY);
    }
    if args.digest {
        flags = flags.with(OpFlags::REQUEST_DIGEST);
    }
    let request = exchange::request(&Request::Resolution(query), flags)?;
    let (answered, within) = match args.client.tcp {
        true => (
            exchange::ask_over_tcp(server, &request, TCP_TIMEOUT)?,
            "10 seconds (check that it answers over TCP,",
        ),
        false => (ask_over_udp(server, &request)?, "3 seconds (check that it listens on UDP,"),
    };
    let Some(answered) = answered else {
        let why = format!("no answer from {server} within {within} and for a firewall)");
        if args.json {
            output::error_as_json(&why);
        }
        eprintln!("hdl: {why}");
        return Ok(ExitOutcome::NoAnswer);
    };
    show(args, handle, server, &request, &answered)
}

/// Sends the query over UDP, and again over TCP where the answer is RC 2: so do servers answer
/// whose answer takes too many datagrams. The first answer counts where there is none over TCP.
fn ask_over_udp(server: SocketAddr, request: &OutgoingQuery) -> anyhow::Result<Option<RawAnswer>> {
    let answered = exchange::ask(server, request, &UDP_RETRY_MS)?;
    let is_refused = |answered: &RawAnswer| {
        let (_, message) = Envelope::split(&answered.message).ok()?;
        Some(Message::decode(message).ok()?.header.response_code == ResponseCode::ERROR)
    };
    if answered.as_ref().and_then(is_refused) == Some(true)
        && let Ok(Some(over_tcp)) = exchange::ask_over_tcp(server, request, TCP_TIMEOUT)
    {
        return Ok(Some(over_tcp));
    }
    Ok(answered)
}

fn show(
    args: &Args,
    handle: &str,
    server: SocketAddr,
    request: &OutgoingQuery,
    answered: &RawAnswer,
) -> anyhow::Result<ExitOutcome> {
    let (envelope, message) = Envelope::split(&answered.message).context("cannot decode the answer")?;
    let message = Message::decode(message).context("cannot decode the answer")?;
    let Body::Reply(reply) = message.decode_body(envelope.version).context("cannot decode the answer")?
    else {
        bail!("{server} sent a request instead of an answer");
    };
    check(args, handle, request, &envelope, &message, &reply)
        .with_context(|| format!("{server} did not answer the question"))?;
    match (&reply.response, reply.code) {
        (Response::Answer(answer), _) => show_values(args, server, answered, answer)?,
        (Response::Failure(failure), code) => {
            show_code(args, handle, server, code, &String::from_utf8_lossy(failure.message));
        }
        (_, code) => show_code(args, handle, server, code, ""),
    }
    Ok(outcome(reply.code))
}

/// Checks that the answer belongs to the question.
fn check(
    args: &Args,
    handle: &str,
    request: &OutgoingQuery,
    envelope: &Envelope,
    message: &Message<'_>,
    reply: &Reply<'_>,
) -> anyhow::Result<()> {
    // A server that could not read the request knows neither its operation nor its digest.
    if envelope.request_id == UNREAD_REQUEST_ID {
        // It cannot say anything about the handle either.
        let code = reply.code;
        ensure!(
            outcome(code) == ExitOutcome::Refused,
            "the answer refers to no request and has the code {} {code}",
            code.0
        );
        return Ok(());
    }
    let op_code = message.header.op_code;
    ensure!(op_code == OpCode::RESOLUTION, "the answer is to operation {} ({op_code})", op_code.0);
    if args.digest {
        match &reply.digest {
            Some(digest) => ensure!(
                digest_of(&request.covered, digest.algorithm)? == digest.digest,
                "wrong request digest in the answer"
            ),
            // Older versions have no digest.
            None => ensure!(envelope.version < Version::LOWEST, "the answer has no request digest"),
        }
    }
    if let Response::Answer(answer) = &reply.response {
        let (echo, handle) = (Handle(answer.handle), Handle(handle.as_bytes()));
        let is_same = echo == handle || echo.0 == handle.looked_up();
        ensure!(is_same, "the answer is for another handle, {echo}");
    }
    Ok(())
}

fn digest_of(covered: &[u8], algorithm: DigestAlgorithm) -> anyhow::Result<Vec<u8>> {
    Ok(match algorithm {
        DigestAlgorithm::OLD_MD5 | DigestAlgorithm::MD5 => md5::Md5::digest(covered).to_vec(),
        DigestAlgorithm::SHA1 => sha1::Sha1::digest(covered).to_vec(),
        DigestAlgorithm::SHA256 => Sha256::digest(covered).to_vec(),
        other => bail!("unknown kind of request digest in the answer ({})", other.0),
    })
}

fn show_values(
    args: &Args,
    server: SocketAddr,
    answered: &RawAnswer,
    answer: &QueryAnswer<'_>,
) -> anyhow::Result<()> {
    if args.json {
        let values: Vec<_> =
            answer.values.iter().map(|value| handle_proto::json::value_to_json(&value)).collect();
        let handle = String::from_utf8_lossy(answer.handle);
        let record = json!({ "responseCode": 1, "handle": handle, "values": values });
        output::print_json(&record);
        return Ok(());
    }
    let transport = match answered.datagrams_count {
        0 => "over TCP".to_owned(),
        count => output::counted(count as u64, "datagram", "datagrams"),
    };
    println!(
        "{}  {} from {server} in {:.1} ms, {transport}",
        paint(Paint::Strong, printable(&Handle(answer.handle).to_string())),
        output::counted(answer.values.len() as u64, "value", "values"),
        answered.took.as_secs_f64() * 1e3,
    );
    output::lines(output::values(answer.values));
    Ok(())
}

fn show_code(args: &Args, handle: &str, server: SocketAddr, code: ResponseCode, text: &str) {
    if args.json {
        let mut json = json!({ "responseCode": code.0, "handle": handle });
        if !text.is_empty() {
            json["message"] = text.into();
        }
        output::print_json(&json);
        return;
    }
    let colon = if text.is_empty() { "" } else { ": " };
    println!(
        "{}  {server} answered {}{colon}{}",
        paint(Paint::Strong, printable(handle)),
        paint(Paint::Odd, format_args!("{} {code}", code.0)),
        printable(text)
    );
}
