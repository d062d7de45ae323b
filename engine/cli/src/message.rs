//! `hdl message decode`: bytes in, annotated fields out.

use crate::{Outcome, dump, output};
use anyhow::{Context as _, bail};
use handle_proto::json::value_to_json;
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_REASSEMBLY_MS};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::reassembly::{Reassembled, Reassembly, ReassemblyLimits};
use handle_proto::wire::{Body, Envelope, Message, Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode, Value};
use serde_json::{Value as Json, json};
use std::io::Read as _;
use std::path::PathBuf;

/// Take protocol messages apart.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Print the fields of messages, with their offsets and meaning.
    ///
    /// Reads plain hex, the dumps of `tcpdump -x`, `xxd` and `hexdump -C`, and pcap files. IP and UDP
    /// headers in front of a message are passed over; fragments are put together. Offsets count from
    /// the first byte of the envelope.
    #[command(after_help = "Examples:
  hdl message decode 020b020b0000000001020304000000000000003b...
  tcpdump -x -i lo udp port 2641 | hdl message decode
  hdl message decode --file capture.pcap --json

Exit codes: 0 all decoded, 1 something did not.")]
    Decode(DecodeArgs),
}

#[derive(clap::Args, Debug)]
struct DecodeArgs {
    /// The message as hex; spaces do not matter. Without it standard input is read.
    hex: Vec<String>,
    /// Read this file instead of standard input.
    #[arg(long, short, conflicts_with = "hex")]
    file: Option<PathBuf>,
    /// Print one JSON object for each message.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let Command::Decode(args) = &args.command;
    let datagrams = dump::datagrams(&input(args)?)?;
    if datagrams.is_empty() {
        bail!("there is no message in the input");
    }
    let mut fragments = Reassembly::new(ReassemblyLimits {
        messages_max: 1024,
        messages_per_sender_max: 1024,
        bytes_max: 64 * MESSAGE_LEN_MAX as usize,
        age_ms_max: UDP_REASSEMBLY_MS.into(),
    });
    let mut outcome = Outcome::Good;
    for datagram in &datagrams {
        let is_fragment =
            Envelope::split(datagram).is_ok_and(|(envelope, _)| envelope.flags.has(EnvelopeFlags::TRUNCATED));
        let message = match fragments.accept((), datagram, 0) {
            Ok(Reassembled::Complete(message)) => message,
            Ok(Reassembled::Incomplete) => continue,
            // What is no whole fragment is shown as far as it goes.
            Ok(Reassembled::Whole(_)) | Err(_) => datagram.clone(),
        };
        let shown = if args.json { as_json(&message) } else { as_text(&message, is_fragment) };
        if let Err(error) = shown {
            outcome = Outcome::Failed;
            eprintln!("hdl: {error:#}");
        }
    }
    if !fragments.is_empty() {
        outcome = Outcome::Failed;
        eprintln!("hdl: of {} messages, fragments are missing", fragments.len());
    }
    Ok(outcome)
}

fn input(args: &DecodeArgs) -> anyhow::Result<Vec<u8>> {
    if !args.hex.is_empty() {
        return Ok(args.hex.join(" ").into_bytes());
    }
    let mut bytes = Vec::new();
    match &args.file {
        Some(path) => {
            bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        }
        None => drop(std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?),
    }
    Ok(bytes)
}

/// Prints lines of offset, bytes, name and meaning.
struct Printer<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Bytes shown in one line; the rest is said to be more.
const SHOWN_LEN: usize = 16;

impl Printer<'_> {
    fn field(&mut self, len: usize, name: &str, meaning: &str) {
        let end = (self.at + len).min(self.bytes.len());
        let bytes = &self.bytes[self.at.min(end)..end];
        let mut hex = output::hex(&bytes[..bytes.len().min(SHOWN_LEN)]);
        if bytes.len() > SHOWN_LEN {
            hex.push_str("..");
        }
        println!("{:>6}  {hex:<34}  {name:<18}  {meaning}", self.at);
        self.at = end;
    }
}

fn as_text(bytes: &[u8], was_cut: bool) -> anyhow::Result<()> {
    let (envelope, rest) = Envelope::split(bytes).with_context(|| {
        format!("{} bytes are no message: {}", bytes.len(), output::hex(&bytes[..bytes.len().min(32)]))
    })?;
    let mut print = Printer { bytes, at: 0 };
    println!("envelope{}", if was_cut { " (of the message put together from fragments)" } else { "" });
    print.field(2, "version", &envelope.version.to_string());
    print.field(2, "flags, suggested", &envelope_flags(&envelope));
    print.field(4, "session id", &envelope.session_id.to_string());
    print.field(4, "request id", &envelope.request_id.to_string());
    print.field(4, "sequence number", &envelope.sequence.to_string());
    print.field(4, "message length", &envelope.message_len.to_string());
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        print.field(rest.len(), "ciphertext", "encrypted: the rest cannot be read without the session key");
        return Ok(());
    }
    let message = Message::decode(rest).context("after the envelope")?;
    let header = message.header;
    println!("header");
    print.field(4, "operation", &format!("{} {}", header.op_code.0, header.op_code));
    print.field(4, "response code", &format!("{} {}", header.response_code.0, header.response_code));
    print.field(4, "flags", &flags(header.flags));
    print.field(2, "site serial", &serial(header.site_serial));
    print.field(1, "recursion count", &header.recursion_count.to_string());
    print.field(1, "reserved", "");
    print.field(4, "expiration", &output::unix_time(header.expiration.into()));
    print.field(4, "body length", &header.body_len.to_string());
    println!("body");
    let body = message.decode_body(envelope.version);
    match &body {
        Ok(Body::Request(request)) => print_request(&mut print, request),
        Ok(Body::Reply(reply)) => {
            if let Some(digest) = &reply.digest {
                print.field(1 + digest.digest.len(), "request digest", &format!("{:?}", digest.algorithm));
            }
            print_response(&mut print, reply.code, &reply.response);
        }
        Err(_) => {}
    }
    let body_end = Envelope::LEN + message.covered.len();
    if print.at < body_end {
        print.field(body_end - print.at, "rest of the body", "");
    }
    println!("credential");
    if print.at < bytes.len() {
        print.field(4, "length", &message.credential.len().to_string());
    }
    match message.decode_credential() {
        Ok(None) => println!("        not signed"),
        Ok(Some(credential)) => {
            let meaning = format!(
                "{} with {}, counter {}",
                Handle(credential.kind),
                Handle(credential.algorithm),
                credential.counter
            );
            print.field(message.credential.len(), "credential", &meaning);
        }
        Err(error) => println!("        does not decode: {error}"),
    }
    println!();
    body.map(drop).context("the body does not decode")
}

fn print_request(print: &mut Printer<'_>, request: &Request<'_>) {
    match request {
        Request::Resolution(query) => {
            string(print, "handle", query.handle);
            print.field(4, "indexes", &query.indexes.len().to_string());
            for index in query.indexes.iter() {
                print.field(4, "index", &index.to_string());
            }
            print.field(4, "types", &query.types.len().to_string());
            for kind in query.types {
                string(print, "type", kind);
            }
        }
        other => match other.handle() {
            Some(handle) => {
                string(print, "handle", handle);
                println!("        {other:?}");
            }
            None => println!("        {other:?}"),
        },
    }
}

fn print_response(print: &mut Printer<'_>, code: ResponseCode, response: &Response<'_>) {
    match response {
        Response::Answer(answer) => {
            string(print, "handle", answer.handle);
            print.field(4, "values", &answer.values.len().to_string());
            answer.values.iter().for_each(|value| print_value(print, &value));
        }
        Response::Failure(failure) => string(print, "message", failure.message),
        Response::Done | Response::Unknown([]) => println!("        nothing: {code}"),
        other => println!("        {other:?}"),
    }
}

fn print_value(print: &mut Printer<'_>, value: &Value<'_>) {
    print.field(4, "index", &value.index.to_string());
    print.field(4, "  timestamp", &output::unix_time(value.timestamp.into()));
    print.field(5, "  ttl", &output::ttl(value.ttl));
    print.field(1, "  permissions", &value.permissions.to_string());
    string(print, "  type", value.kind);
    print.field(4 + value.data.len(), "  data", &output::describe(value.kind, value.data));
    let references = value.references.iter().map(|reference| reference.to_string());
    let references = references.collect::<Vec<_>>().join(", ");
    print.field(4 + value.references.as_bytes().len(), "  references", &references);
}

fn string(print: &mut Printer<'_>, name: &str, bytes: &[u8]) {
    print.field(4 + bytes.len(), name, &format!("{:?}", Handle(bytes)));
}

fn envelope_flags(envelope: &Envelope) -> String {
    let names = [
        (EnvelopeFlags::COMPRESSED, "compressed, "),
        (EnvelopeFlags::ENCRYPTED, "encrypted, "),
        (EnvelopeFlags::TRUNCATED, "truncated, "),
    ];
    let set: String =
        names.iter().filter(|(flag, _)| envelope.flags.has(*flag)).map(|(_, name)| *name).collect();
    format!("{set}speaks up to {}", envelope.effective_suggested())
}

fn flags(flags: OpFlags) -> String {
    let set: Vec<&str> =
        OpFlags::KNOWN.iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, name)| *name).collect();
    set.join(" ")
}

fn serial(serial: i16) -> String {
    if serial == -1 { "none".to_owned() } else { serial.to_string() }
}

fn as_json(bytes: &[u8]) -> anyhow::Result<()> {
    let (envelope, rest) = Envelope::split(bytes).context("no message")?;
    let mut json = json!({
        "envelope": {
            "version": envelope.version.to_string(),
            "compressed": envelope.flags.has(EnvelopeFlags::COMPRESSED),
            "encrypted": envelope.flags.has(EnvelopeFlags::ENCRYPTED),
            "truncated": envelope.flags.has(EnvelopeFlags::TRUNCATED),
            "suggested": envelope.effective_suggested().to_string(),
            "session_id": envelope.session_id,
            "request_id": envelope.request_id,
            "sequence": envelope.sequence,
            "message_len": envelope.message_len,
        }
    });
    if !envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        let message = Message::decode(rest).context("after the envelope")?;
        let header = message.header;
        json["header"] = json!({
            "op_code": header.op_code.0,
            "operation": header.op_code.to_string(),
            "response_code": header.response_code.0,
            "response": header.response_code.to_string(),
            "flags": format!("{:08x}", header.flags.0),
            "flag_names": flags(header.flags).split_whitespace().collect::<Vec<_>>(),
            "site_serial": header.site_serial,
            "recursion_count": header.recursion_count,
            "expiration": header.expiration,
            "body_len": header.body_len,
        });
        json["body"] = body_json(&message, &envelope);
        json["credential"] = match message.decode_credential() {
            Ok(None) => Json::Null,
            Ok(Some(credential)) => json!({
                "type": Handle(credential.kind).to_string(),
                "counter": credential.counter,
                "algorithm": Handle(credential.algorithm).to_string(),
                "signature": output::hex(credential.signature),
            }),
            Err(error) => json!({ "error": error.to_string(), "hex": output::hex(message.credential) }),
        };
    }
    println!("{json}");
    Ok(())
}

fn body_json(message: &Message<'_>, envelope: &Envelope) -> Json {
    let values = |values: handle_proto::Values<'_>| -> Vec<Json> {
        values.iter().map(|value| value_to_json(&value)).collect()
    };
    match message.decode_body(envelope.version) {
        Err(error) => json!({ "error": error.to_string(), "hex": output::hex(message.body) }),
        Ok(Body::Request(Request::Resolution(query))) => json!({
            "handle": Handle(query.handle).to_string(),
            "indexes": query.indexes.iter().collect::<Vec<_>>(),
            "types": query.types.iter().map(|kind| Handle(kind).to_string()).collect::<Vec<_>>(),
        }),
        Ok(Body::Request(request)) => json!({
            "handle": request.handle().map(|handle| Handle(handle).to_string()),
            "debug": format!("{request:?}"),
        }),
        Ok(Body::Reply(reply)) => {
            let mut json = match reply.response {
                Response::Answer(answer) => {
                    json!({ "handle": Handle(answer.handle).to_string(), "values": values(answer.values) })
                }
                Response::Failure(failure) => json!({ "message": Handle(failure.message).to_string() }),
                other => json!({ "debug": format!("{other:?}") }),
            };
            if let Some(digest) = reply.digest {
                json["request_digest"] = output::hex(digest.digest).into();
            }
            json
        }
    }
}
