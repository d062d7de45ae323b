//! `hdl resolve`: ask a server for the values of a handle.

use crate::exchange::{self, Answered, Asked};
use crate::{Outcome, output};
use anyhow::{Context as _, bail, ensure};
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::UDP_RETRY_MS;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::message::Body;
use handle_proto::wire::query::{Answer, Query};
use handle_proto::wire::{Envelope, Message, Reply, Request, Response, put};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Version};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::time::Duration;

/// Ask a server for the values of a handle.
///
/// Prints a table, or with --json the record as the handle REST API shows it. Asks over UDP and, as
/// deployed clients do, up to three times: after 0.5, 1.5 and 3 seconds without an answer it gives up. With
/// --tcp it asks once, over a connection, and waits for 10 seconds.
#[derive(clap::Args, Debug)]
#[command(after_help = concat!("Examples:
  hdl resolve 10.1045/july95-arms --server 127.0.0.1:2641
  hdl resolve 10.1045/july95-arms --server [::1]:2641 --type URL --json
  hdl resolve 0.NA/10.1045 --server 127.0.0.1 --index 1 --index 100
  hdl resolve 10.1045/july95-arms --server 127.0.0.1 --tcp

Exit codes:
  0 found           3 no such handle    5 server not responsible, or a referral
  1 failed          4 no such value     6 the server answered with another error
  2 usage                               7 no answer"))]
pub(crate) struct Args {
    /// The handle, as 10.1045/july95-arms.
    handle: String,
    /// Server to ask: host, host:port or an IPv6 address in brackets; the port is 2641 unless given.
    #[arg(long, short, value_name = "HOST[:PORT]")]
    server: String,
    /// Only the value with this index; may be given more than once.
    #[arg(long, short, value_name = "N")]
    index: Vec<i32>,
    /// Only values of this type, in any case; `URL.` takes URL and all its sub-types. Together with
    /// --index the union is meant.
    #[arg(long, short = 't', value_name = "TYPE")]
    r#type: Vec<String>,
    /// Ask over TCP instead of UDP.
    #[arg(long)]
    tcp: bool,
    /// Ask for values that are not public, too.
    #[arg(long)]
    all: bool,
    /// Ask for a digest of the request in the answer, and fail if it is missing or of another request.
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
            tcp: false,
            all: false,
            digest: false,
            json: false,
        }
    }
}

/// How long an answer over TCP may take, connecting included.
const TCP_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let done = ask_and_show(args);
    if let (true, Err(error)) = (args.json, &done) {
        output::error_as_json(&format!("{error:#}"));
    }
    done
}

fn ask_and_show(args: &Args) -> anyhow::Result<Outcome> {
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
    let asked = exchange::request(&Request::Resolution(query), flags)?;
    let (answered, within) = match args.tcp {
        true => {
            (exchange::ask_over_tcp(server, &asked, TCP_PATIENCE)?, "10 seconds (does it answer over TCP?")
        }
        false => (exchange::ask(server, &asked, &UDP_RETRY_MS)?, "3 seconds (does it listen on UDP?"),
    };
    let Some(answered) = answered else {
        let why = format!("no answer from {server} within {within} is a firewall between?)");
        if args.json {
            output::error_as_json(&why);
        }
        eprintln!("hdl: {why}");
        return Ok(Outcome::NoAnswer);
    };
    show(args, server, &asked, &answered)
}

fn show(args: &Args, server: SocketAddr, asked: &Asked, answered: &Answered) -> anyhow::Result<Outcome> {
    let (envelope, message) = Envelope::split(&answered.message).context("the answer does not decode")?;
    let message = Message::decode(message).context("the answer does not decode")?;
    let Body::Reply(reply) = message.decode_body(envelope.version).context("the answer does not decode")?
    else {
        bail!("{server} sent a request where an answer should be");
    };
    check(args, asked, &envelope, &message, &reply)
        .with_context(|| format!("{server} did not answer what was asked"))?;
    match (&reply.response, reply.code) {
        (Response::Answer(answer), _) => show_values(args, server, answered, answer)?,
        (Response::Failure(failure), code) => {
            show_code(args, server, code, &String::from_utf8_lossy(failure.message));
        }
        (_, code) => show_code(args, server, code, ""),
    }
    Ok(outcome(reply.code))
}

/// What a code of a response means to a shell.
pub(crate) const fn outcome(code: ResponseCode) -> Outcome {
    match code {
        ResponseCode::SUCCESS => Outcome::Good,
        ResponseCode::HANDLE_NOT_FOUND => Outcome::NotFound,
        ResponseCode::VALUES_NOT_FOUND => Outcome::NoValues,
        ResponseCode::SERVER_NOT_RESPONSIBLE
        | ResponseCode::SERVICE_REFERRAL
        | ResponseCode::PREFIX_REFERRAL => Outcome::NotResponsible,
        _ => Outcome::Refused,
    }
}

/// Whether the answer is one to what was asked.
fn check(
    args: &Args,
    asked: &Asked,
    envelope: &Envelope,
    message: &Message<'_>,
    reply: &Reply<'_>,
) -> anyhow::Result<()> {
    // A server that could not read the request knows neither its operation nor its digest.
    if envelope.request_id == exchange::NO_REQUEST {
        // So it cannot say anything about the handle either.
        let code = reply.code;
        ensure!(outcome(code) == Outcome::Refused, "the answer is to no request and says {} {code}", code.0);
        return Ok(());
    }
    let op_code = message.header.op_code;
    ensure!(op_code == OpCode::RESOLUTION, "the answer is to operation {} ({op_code})", op_code.0);
    if args.digest {
        match &reply.digest {
            Some(digest) => ensure!(
                digest_of(&asked.covered, digest.algorithm)? == digest.digest,
                "the digest in the answer is of another request"
            ),
            // Older ones have no digest.
            None => ensure!(envelope.version < Version::LOWEST, "a digest was asked for, and none came"),
        }
    }
    if let Response::Answer(answer) = &reply.response {
        let (echo, handle) = (Handle(answer.handle), Handle(args.handle.as_bytes()));
        let is_same = echo == handle || echo.0 == handle.looked_up();
        ensure!(is_same, "the answer is about another handle, {echo}");
    }
    Ok(())
}

fn digest_of(covered: &[u8], algorithm: DigestAlgorithm) -> anyhow::Result<Vec<u8>> {
    Ok(match algorithm {
        DigestAlgorithm::OLD_MD5 | DigestAlgorithm::MD5 => md5::Md5::digest(covered).to_vec(),
        DigestAlgorithm::SHA1 => sha1::Sha1::digest(covered).to_vec(),
        DigestAlgorithm::SHA256 => Sha256::digest(covered).to_vec(),
        other => bail!("the digest in the answer is of an unknown kind ({})", other.0),
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
    let came = match answered.datagrams_count {
        0 => "over TCP".to_owned(),
        1 => "1 datagram".to_owned(),
        count => format!("{count} datagrams"),
    };
    println!(
        "{}  {count} value{} from {server} in {:.1} ms, {came}",
        Handle(answer.handle),
        if count == 1 { "" } else { "s" },
        answered.took.as_secs_f64() * 1e3,
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
