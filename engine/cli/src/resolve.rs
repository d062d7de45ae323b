//! `hdl resolve`: ask a server for the values of a handle.

use crate::exchange::{self, Answered};
use crate::{Outcome, output};
use anyhow::{Context as _, bail};
use handle_proto::limit::UDP_RETRY_MS;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::message::Body;
use handle_proto::wire::query::{Answer, Query};
use handle_proto::wire::{Envelope, Message, Request, Response, put};
use handle_proto::{Handle, OpFlags, ResponseCode};
use serde_json::json;
use std::net::SocketAddr;

/// Ask a server for the values of a handle.
///
/// Prints a table, or with --json the record as the handle REST API shows it. Asks over UDP and, as
/// deployed clients do, up to three times: after 0.5, 1.5 and 3 seconds without an answer it gives up.
#[derive(clap::Args, Debug)]
#[command(after_help = concat!("Examples:
  hdl resolve 10.1045/july95-arms --server 127.0.0.1:2641
  hdl resolve 10.1045/july95-arms --server [::1]:2641 --type URL --json
  hdl resolve 0.NA/10.1045 --server 127.0.0.1 --index 1 --index 100

Exit codes:
  0 found           3 no such handle    5 server not responsible, or a referral
  1 failed          4 no such value     6 the server answered with another error
  2 usage                               7 no answer"))]
pub(crate) struct Args {
    /// The handle, as 10.1045/july95-arms.
    handle: String,
    /// Server to ask: host, host:port or [IPv6]:port; the port is 2641 unless given.
    #[arg(long, short, value_name = "HOST[:PORT]")]
    server: String,
    /// Only the value with this index; may be given more than once.
    #[arg(long, short, value_name = "N")]
    index: Vec<i32>,
    /// Only values of this type, in any case; `URL.` takes URL and all its sub-types. Together with
    /// --index the union is meant.
    #[arg(long, short = 't', value_name = "TYPE")]
    r#type: Vec<String>,
    /// Ask for values that are not public, too.
    #[arg(long)]
    all: bool,
    /// Ask for a digest of the request in the answer.
    #[arg(long)]
    digest: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Everything that is public of `handle`, from `server`, as a table.
    pub(crate) fn plain(handle: &str, server: &str) -> Self {
        Self {
            handle: handle.to_owned(),
            server: server.to_owned(),
            index: vec![],
            r#type: vec![],
            all: false,
            digest: false,
            json: false,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let server = exchange::address(&args.server)?;
    let indexes: Vec<[u8; 4]> = args.index.iter().map(|index| index.to_be_bytes()).collect();
    let mut types = Vec::new();
    args.r#type.iter().for_each(|kind| put::string(&mut types, kind.as_bytes()));
    let query = Query {
        handle: args.handle.as_bytes(),
        indexes: Indexes::new(&indexes),
        types: Strings::from_encoded(args.r#type.len(), &types).context("the types do not fit")?,
    };
    let mut flags = OpFlags::PLAIN_REQUEST;
    if args.all {
        flags = flags.without(OpFlags::PUBLIC_ONLY);
    }
    if args.digest {
        flags = flags.with(OpFlags::REQUEST_DIGEST);
    }
    // Positive, as deployed clients choose it, and hard to guess for those who would answer falsely.
    let request_id = rand::random_range(1..i32::MAX);
    let datagrams = exchange::request(&Request::Resolution(query), flags, request_id)?;
    match exchange::ask(server, &datagrams, request_id, &UDP_RETRY_MS)? {
        Some(answered) => show(args, server, &answered),
        None => {
            eprintln!(
                "hdl: no answer from {server} within 3 seconds (does it listen on UDP? is a firewall between?)"
            );
            Ok(Outcome::NoAnswer)
        }
    }
}

fn show(args: &Args, server: SocketAddr, answered: &Answered) -> anyhow::Result<Outcome> {
    let (envelope, message) = Envelope::split(&answered.message).context("the answer does not decode")?;
    let message = Message::decode(message).context("the answer does not decode")?;
    let Body::Reply(reply) = message.decode_body(envelope.version).context("the answer does not decode")?
    else {
        bail!("{server} sent a request where an answer should be");
    };
    match (&reply.response, reply.code) {
        (Response::Answer(answer), _) => show_values(args, server, answered, answer)?,
        (Response::Failure(failure), code) => {
            show_code(args, server, code, &String::from_utf8_lossy(failure.message));
        }
        (_, code) => show_code(args, server, code, ""),
    }
    Ok(match reply.code {
        ResponseCode::SUCCESS => Outcome::Good,
        ResponseCode::HANDLE_NOT_FOUND => Outcome::NotFound,
        ResponseCode::VALUES_NOT_FOUND => Outcome::NoValues,
        ResponseCode::SERVER_NOT_RESPONSIBLE
        | ResponseCode::SERVICE_REFERRAL
        | ResponseCode::PREFIX_REFERRAL => Outcome::NotResponsible,
        _ => Outcome::Refused,
    })
}

fn show_values(
    args: &Args,
    server: SocketAddr,
    answered: &Answered,
    answer: &Answer<'_>,
) -> anyhow::Result<()> {
    if args.json {
        let values: Vec<_> =
            answer.values.iter().map(|value| handle_proto::json::value_to_json(&value)).collect();
        let handle = String::from_utf8_lossy(answer.handle);
        let record = json!({ "responseCode": 1, "handle": handle, "values": values });
        println!("{}", serde_json::to_string_pretty(&record)?);
        return Ok(());
    }
    let count = answer.values.len();
    println!(
        "{}  {count} value{} from {server} in {:.1} ms, {} datagram{}",
        Handle(answer.handle),
        if count == 1 { "" } else { "s" },
        answered.took.as_secs_f64() * 1e3,
        answered.datagrams_count,
        if answered.datagrams_count == 1 { "" } else { "s" },
    );
    println!("{}", output::values(answer.values));
    Ok(())
}

fn show_code(args: &Args, server: SocketAddr, code: ResponseCode, text: &str) {
    if args.json {
        let mut json = json!({ "responseCode": code.0, "handle": args.handle });
        if !text.is_empty() {
            json["message"] = text.into();
        }
        println!("{json:#}");
        return;
    }
    let colon = if text.is_empty() { "" } else { ": " };
    println!("{}  {server} answers {} {code}{colon}{text}", args.handle, code.0);
}
