//! `hdl message decode`: prints the fields of messages.

mod body;

use crate::{ExitOutcome, dump, output};
use anyhow::{Context as _, bail, ensure};
use handle_proto::code::DigestAlgorithm;
use handle_proto::json::message_to_json;
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX, UDP_REASSEMBLY_MS};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::{Body, Envelope, Header, Message};
use handle_proto::{DecodeError, Handle, OpFlags};
use std::borrow::Cow;
use std::io::Read as _;
use std::path::PathBuf;

/// Decode protocol messages.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Print the fields of messages with their offsets and meaning.
    ///
    /// Reads plain hex, the dumps of `tcpdump -x`, `xxd` and `hexdump -C`, and captures (pcap or
    /// pcapng). Skips IP and UDP headers, reassembles fragments, and splits the messages of a
    /// stream. Offsets count from the first byte of the envelope.
    #[command(after_help = "Examples:
  hdl message decode 020b020b0000000001020304000000000000003b...
  tcpdump -x -i lo udp port 2641 | hdl message decode
  hdl message decode --file capture.pcap --json

Exit codes: 0 all decoded, 1 at least one not decoded.")]
    Decode(DecodeArgs),
}

#[derive(clap::Args, Debug)]
struct DecodeArgs {
    /// The message as hex, with or without spaces. Default: standard input.
    hex: Vec<String>,
    /// Read this file instead of standard input.
    #[arg(long, short, conflicts_with = "hex")]
    file: Option<PathBuf>,
    /// Print one JSON object for each message, with all its fields.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let Command::Decode(args) = &args.command;
    let datagrams = dump::datagrams(&input(args)?)?;
    if datagrams.is_empty() {
        bail!("no message in the input");
    }
    let mut fragments = Reassembly::new(ReassemblyLimits {
        messages_max: 1024,
        messages_per_sender_max: 1024,
        bytes_max: 64 * MESSAGE_LEN_MAX as usize,
        age_ms_max: UDP_REASSEMBLY_MS.into(),
    });
    let mut outcome = ExitOutcome::Good;
    for datagram in &datagrams {
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let (bytes, after) = unit(rest);
            rest = after;
            let (message, was_cut) = match fragments.accept((), bytes, 0) {
                Ok(ReassemblyOutcome::Complete(message)) => (Cow::Owned(message), true),
                Ok(ReassemblyOutcome::Incomplete) => continue,
                // An invalid fragment is printed as far as it can be decoded.
                Ok(ReassemblyOutcome::Whole(_)) | Err(_) => (Cow::Borrowed(bytes), false),
            };
            if let Err(error) = show(&message, was_cut, args.json) {
                outcome = ExitOutcome::Failed;
                eprintln!("hdl: {error:#}");
            }
            output::check()?;
        }
    }
    if !fragments.is_empty() {
        outcome = ExitOutcome::Failed;
        eprintln!(
            "hdl: fragments of {} are missing",
            output::counted(fragments.len() as u64, "message", "messages")
        );
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
struct MessagePrinter<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Maximum number of bytes shown on one line; more are indicated by dots.
const SHOWN_LEN: usize = 16;

impl MessagePrinter<'_> {
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

    /// Prints the rest of a message that cannot be decoded.
    fn broken(&mut self, error: DecodeError) -> anyhow::Error {
        self.field(self.bytes.len() - self.at, "rest", "");
        println!();
        anyhow::Error::from(error).context("after the envelope")
    }
}

/// Splits an envelope and its message from the bytes after it: a stream contains messages one after
/// another, and so may a capture of datagrams.
fn unit(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Ok((envelope, rest)) = Envelope::split(bytes) else { return (bytes, &[]) };
    let message_len = envelope.message_len as usize;
    let is_fragment = envelope.flags.has(EnvelopeFlags::TRUNCATED) && rest.len() != message_len;
    let len = if is_fragment {
        let start = UDP_DATA_LEN_MAX.saturating_mul(envelope.sequence as usize);
        message_len.saturating_sub(start).min(UDP_DATA_LEN_MAX)
    } else {
        message_len
    };
    bytes.split_at_checked(Envelope::LEN + len).unwrap_or((bytes, &[]))
}

fn show(bytes: &[u8], was_cut: bool, as_json: bool) -> anyhow::Result<()> {
    let (envelope, rest) = Envelope::split(bytes).with_context(|| {
        format!("{} bytes are not a message: {}", bytes.len(), output::hex(&bytes[..bytes.len().min(32)]))
    })?;
    if as_json {
        let json = message_to_json(&envelope, rest);
        println!("{json}");
        let in_body = json.get("body").and_then(|body| body.get("error"));
        if let Some(error) = json.get("error").or(in_body).and_then(|error| error.as_str()) {
            bail!("cannot decode the message: {error}");
        }
    } else {
        as_text(&envelope, bytes, was_cut)?;
    }
    let message_len = envelope.message_len as usize;
    ensure!(
        rest.len() == message_len,
        "truncated message: expected {message_len} bytes, found {}",
        rest.len()
    );
    Ok(())
}

fn as_text(envelope: &Envelope, bytes: &[u8], was_cut: bool) -> anyhow::Result<()> {
    let rest = &bytes[Envelope::LEN..];
    let mut print = MessagePrinter { bytes, at: 0 };
    println!("envelope{}", if was_cut { " (of the message reassembled from fragments)" } else { "" });
    print.field(2, "version", &envelope.version.to_string());
    print.field(2, "flags, suggested", &envelope_flags(envelope));
    print.field(4, "session id", &envelope.session_id.to_string());
    print.field(4, "request id", &envelope.request_id.to_string());
    print.field(4, "sequence number", &envelope.sequence.to_string());
    print.field(4, "message length", &envelope.message_len.to_string());
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        print.field(rest.len(), "ciphertext", "encrypted: the rest cannot be read without the session key");
        println!();
        return Ok(());
    }
    println!("header");
    let header = match Header::split(rest) {
        Ok((header, _)) => header,
        Err(error) => return Err(print.broken(error)),
    };
    print.field(4, "operation", &format!("{} {}", header.op_code.0, header.op_code));
    print.field(4, "response code", &format!("{} {}", header.response_code.0, header.response_code));
    print.field(4, "flags", &flags(header.flags));
    print.field(2, "site serial", &serial(header.site_serial));
    print.field(1, "recursion count", &header.recursion_count.to_string());
    print.field(1, "reserved", "");
    print.field(4, "expiration", &output::unix_time(header.expiration.into()));
    print.field(4, "body length", &header.body_len.to_string());
    println!("body");
    let message = match Message::decode(rest) {
        Ok(message) => message,
        Err(error) => return Err(print.broken(error)),
    };
    let body = message.decode_body(envelope.version);
    match &body {
        Ok(Body::Request(request)) => body::request(&mut print, request, envelope.version),
        Ok(Body::Reply(reply)) => body::reply(&mut print, reply, envelope.version),
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
                algorithm(credential.algorithm),
                credential.counter
            );
            print.field(message.credential.len(), "credential", &meaning);
        }
        Err(error) => println!("        cannot be decoded: {error}"),
    }
    if print.at < bytes.len() {
        print.field(bytes.len() - print.at, "rest", "after the credential, ignored");
    }
    println!();
    body.map(drop).context("cannot decode the body")
}

/// The name of an algorithm. Old credentials have a code instead.
fn algorithm(identifier: &[u8]) -> String {
    match (identifier, DigestAlgorithm::from_identifier(identifier)) {
        ([_], Some(algorithm)) => algorithm.to_string(),
        _ => Handle(identifier).to_string(),
    }
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
