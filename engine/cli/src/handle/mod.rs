//! `hdl handle`: creates, updates, deletes, gets and lists handles at the server that administers
//! them.

pub(crate) mod values;

use crate::resolve::outcome;
use crate::server::ServerArgs;
use crate::{ExitOutcome, output};
use anyhow::{Context as _, ensure};
use handle_client::administration::AdministrationAnswer;
use handle_proto::name::BLANK;
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode, json};
use serde_json::json;
use std::ops::ControlFlow;
use values::ValueArgs;

const EXIT_CODES: &str = "Exit codes:
  0 done            3 no such handle    5 server not responsible
  1 failed          4 no such value     6 refused, for another reason
  2 usage";

/// Create, update, delete, get and list handles.
///
/// The requests go over TCP to the server given with --server, or to the server for administration
/// of the responsible service, which is found as in `hdl resolve`. --auth names the identity, which
/// a key or a secret authenticates.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a handle.
    #[command(after_help = "Examples:
  hdl handle create 10.1045/new 1:URL=https://example.org/ 100:HS_ADMIN=300:10.1045/ADMIN \\
      --server 127.0.0.1 --auth 300:10.1045/ADMIN --key admin-private.bin
  hdl handle create 10.1045/ --mint 1:URL=https://example.org/ ...       with a random local name
  hdl handle create 10.1045/new ... --root bootstrap_handles --certify   find the server that administers it")]
    Create(CreateArgs),
    /// Add or replace values of a handle; with --remove, remove values.
    #[command(after_help = "Examples:
  hdl handle update 10.1045/new 1:URL=https://example.org/moved ...    add or replace
  hdl handle update 10.1045/new --remove 2 --remove 3 ...

HS_ADMIN=INDEX:HANDLE grants all rights to the record; HS_ADMIN=BITS:INDEX:HANDLE grants those in
BITS.")]
    Update(UpdateArgs),
    /// Delete handles.
    #[command(after_help = "Example:
  hdl handle delete 10.1045/old 10.1045/older --server 127.0.0.1:2642 ...")]
    Delete(NamesArgs),
    /// Get a handle from the server that administers it, including values that are not public.
    #[command(after_help = "Examples:
  hdl handle get 10.1045/new --server 127.0.0.1:2642 --auth 300:10.1045/ADMIN --key admin-private.bin
  hdl handle get 10.1045/new --type HS_ADMIN --json ...")]
    Get(GetArgs),
    /// List the handles under a prefix, or the homed prefixes of the server.
    #[command(after_help = "Examples:
  hdl handle list 10.1045 --server 127.0.0.1:2642 --auth 300:10.1045/ADMIN --key admin-private.bin
  hdl handle list --homed --server 127.0.0.1:2642 ...")]
    List(ListArgs),
    /// Home prefixes at the server, as 0.NA/10.1045.
    #[command(after_help = "Example:
  hdl handle home 0.NA/10.1045 --server 127.0.0.1:2642 ...")]
    Home(NamesArgs),
    /// Unhome prefixes at the server.
    #[command(after_help = "Example:
  hdl handle unhome 0.NA/10.1045 --server 127.0.0.1:2642 ...")]
    Unhome(NamesArgs),
}

#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// The handle, as 10.1045/july95-arms.
    handle: String,
    #[command(flatten)]
    values: ValueArgs,
    /// Replace the handle if it exists.
    #[arg(long)]
    overwrite: bool,
    /// Let the server append a random local name, and print the new handle.
    #[arg(long)]
    mint: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args, Debug)]
struct UpdateArgs {
    /// The handle.
    handle: String,
    #[command(flatten)]
    values: ValueArgs,
    /// Only add: fail if a value with that index exists.
    #[arg(long, conflicts_with_all = ["modify", "remove"])]
    add: bool,
    /// Only replace: fail if no value with that index exists.
    #[arg(long, conflicts_with = "remove")]
    modify: bool,
    /// Remove the value with this index; may be given more than once.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["values", "json_values"])]
    remove: Vec<i32>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args, Debug)]
struct NamesArgs {
    /// One or more handles, each in its own request.
    #[arg(required = true, value_name = "HANDLE")]
    handles: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args, Debug)]
struct GetArgs {
    /// The handle.
    handle: String,
    /// Only the value with this index; may be given more than once.
    #[arg(long, short, value_name = "N")]
    index: Vec<i32>,
    /// Only values of this type. With --index, values that match either.
    #[arg(long, short = 't', value_name = "TYPE")]
    r#type: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// The prefix, as 10.1045.
    #[arg(required_unless_present = "homed")]
    prefix: Option<String>,
    /// List the homed prefixes of the server.
    #[arg(long, conflicts_with = "prefix")]
    homed: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args, Debug)]
struct CommonArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[expect(clippy::redundant_closure, reason = "the variants are for one lifetime, the closures for any")]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let (done, json) = match &args.command {
        Command::Create(args) => (create(args), args.common.json),
        Command::Update(args) => (update(args), args.common.json),
        Command::Delete(args) => (each(args, |body| Request::DeleteHandle(body)), args.common.json),
        Command::Get(args) => (get(args), args.common.json),
        Command::List(args) => (list(args), args.common.json),
        Command::Home(args) => (each_prefix(args, |body| Request::HomeNa(body)), args.common.json),
        Command::Unhome(args) => (each_prefix(args, |body| Request::UnhomeNa(body)), args.common.json),
    };
    if let (true, Err(error)) = (json, &done) {
        output::error_as_json(&format!("{error:#}"));
    }
    done
}

fn create(args: &CreateArgs) -> anyhow::Result<ExitOutcome> {
    let values = args.values.read()?;
    let mut storage = Vec::new();
    let body =
        HandleValues { handle: args.handle.as_bytes(), values: values::encoded(&values, &mut storage) };
    let mut flags = OpFlags::PLAIN_REQUEST;
    for (is_set, flag) in [(args.overwrite, OpFlags::OVERWRITE), (args.mint, OpFlags::MINT_SUFFIX)] {
        flags = if is_set { flags.with(flag) } else { flags };
    }
    let mut clients = args.common.server.clients()?;
    let answer = clients.of(args.handle.as_bytes())?.ask(&Request::CreateHandle(body), flags)?;
    let created = match answer.reply().response {
        // Old servers do not return the name of the new handle; it is then the requested name.
        Response::Created(created) => created.handle.map(|name| Handle(name).to_string()),
        _ => None,
    };
    Ok(report(&args.common, created.as_deref().unwrap_or(&args.handle), &answer))
}

fn update(args: &UpdateArgs) -> anyhow::Result<ExitOutcome> {
    let handle = args.handle.as_bytes();
    ensure!(
        !args.values.is_empty() || !args.remove.is_empty(),
        "nothing to change: give values, or --remove INDEX"
    );
    let mut clients = args.common.server.clients()?;
    let client = clients.of(handle)?;
    let flags = OpFlags::PLAIN_REQUEST;
    let answer = if args.remove.is_empty() {
        let values = args.values.read()?;
        let mut storage = Vec::new();
        let body = HandleValues { handle, values: values::encoded(&values, &mut storage) };
        match (args.modify, args.add) {
            (true, _) => client.ask(&Request::ModifyValue(body), flags)?,
            (_, true) => client.ask(&Request::AddValue(body), flags)?,
            _ => client.ask(&Request::AddValue(body), flags.with(OpFlags::OVERWRITE))?,
        }
    } else {
        let mut storage = Vec::new();
        let indexes = Indexes::build(args.remove.iter().copied(), &mut storage);
        client.ask(&Request::RemoveValue(HandleIndexes { handle, indexes }), flags)?
    };
    Ok(report(&args.common, &args.handle, &answer))
}

/// Each server has its own homed prefixes, so the server must be named.
fn each_prefix(
    args: &NamesArgs,
    request: impl Fn(HandleBody<'_>) -> Request<'_>,
) -> anyhow::Result<ExitOutcome> {
    args.common.server.named("each server has its own homed prefixes")?;
    each(args, request)
}

/// Sends one request for each name; returns the outcome of the first that was refused.
fn each(args: &NamesArgs, request: impl Fn(HandleBody<'_>) -> Request<'_>) -> anyhow::Result<ExitOutcome> {
    let mut clients = args.common.server.clients()?;
    let mut outcome = ExitOutcome::Good;
    for handle in &args.handles {
        let body = HandleBody { handle: handle.as_bytes() };
        let client = clients.of(body.handle)?;
        let answer = client.ask(&request(body), OpFlags::PLAIN_REQUEST).with_context(|| handle.clone())?;
        let handle_outcome = report(&args.common, handle, &answer);
        if outcome == ExitOutcome::Good {
            outcome = handle_outcome;
        }
    }
    Ok(outcome)
}

fn get(args: &GetArgs) -> anyhow::Result<ExitOutcome> {
    let indexes: Vec<[u8; 4]> = args.index.iter().map(|index| index.to_be_bytes()).collect();
    let mut storage = Vec::new();
    let types = Strings::build(args.r#type.iter().map(String::as_bytes), &mut storage);
    let query = Query { handle: args.handle.as_bytes(), indexes: Indexes::new(&indexes), types };
    let mut flags = OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE);
    if args.common.server.identity.auth.is_some() {
        flags = flags.without(OpFlags::PUBLIC_ONLY);
    }
    let mut clients = args.common.server.clients()?;
    let answer = clients.of(query.handle)?.ask(&Request::Resolution(query), flags)?;
    let Response::Answer(found) = answer.reply().response else {
        return Ok(report(&args.common, &args.handle, &answer));
    };
    if args.common.json {
        let values: Vec<_> = found.values.iter().map(|value| json::value_to_json(&value)).collect();
        let record =
            json!({ "responseCode": 1, "handle": String::from_utf8_lossy(found.handle), "values": values });
        output::print_json(&record);
    } else {
        output::lines(output::values(found.values));
    }
    Ok(ExitOutcome::Good)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitOutcome> {
    let mut clients = args.common.server.clients()?;
    let name = args.prefix.as_deref().map(prefix_handle);
    let client = match &name {
        Some(name) => clients.of_prefix(name)?,
        None => {
            args.common.server.named("each server has its own homed prefixes")?;
            clients.of(BLANK)?
        }
    };
    let body = HandleBody { handle: name.as_ref().map_or(BLANK, |name| name.as_bytes()) };
    let request = if args.homed { Request::ListHomedNas(body) } else { Request::ListHandles(body) };
    let mut names = Vec::new();
    // Names are printed as they arrive: there may be very many.
    let is_json = args.common.json;
    let answer = client.list(&request, |name| {
        match is_json {
            true => names.push(String::from_utf8_lossy(name).into_owned()),
            false => println!("{}", Handle(name)),
        }
        if output::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if answer.code() != ResponseCode::SUCCESS {
        return Ok(report(&args.common, name.as_deref().unwrap_or("/"), &answer));
    }
    if is_json {
        output::print_json(&json!({ "responseCode": 1, "handles": names }));
    }
    Ok(ExitOutcome::Good)
}

/// The handle of a prefix, which may be written without `0.NA/`.
pub(crate) fn prefix_handle(prefix: &str) -> String {
    if prefix.contains('/') { prefix.to_owned() } else { format!("0.NA/{prefix}") }
}

/// Prints the result of a request and returns its exit code.
fn report(common: &CommonArgs, handle: &str, answer: &AdministrationAnswer) -> ExitOutcome {
    let (code, text) = (answer.code(), answer.text());
    if common.json {
        let mut json = json!({ "responseCode": code.0, "handle": handle });
        if !text.is_empty() {
            json["message"] = text.into();
        }
        println!("{json}");
    } else if code == ResponseCode::SUCCESS {
        println!("{handle}  done");
    } else {
        let colon = if text.is_empty() { "" } else { ": " };
        eprintln!("hdl: {handle}: the server answered {} {code}{colon}{text}", code.0);
    }
    if answer.was_repeated() && code != ResponseCode::SUCCESS {
        eprintln!(
            "hdl: {handle}: the session had ended and the request was sent again: the first request may have succeeded"
        );
    }
    outcome(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_named_with_or_without_their_naming_authority() {
        assert_eq!(prefix_handle("10.1045"), "0.NA/10.1045");
        assert_eq!(prefix_handle("0.NA/10.1045"), "0.NA/10.1045");
    }
}
