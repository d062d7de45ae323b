//! `hdl resolve`: resolves handles through the responsible service or a given server.

mod bulk;
mod direct;
mod global;
mod hint;

pub(crate) use hint::of_partial_answer;

use crate::client::ClientArgs;
use crate::reference::RulesArgs;
use crate::secret::IdentityArgs;
use crate::server::SESSION_IDLE_S;
use crate::{ExitOutcome, UsageError, exchange, output};
use anyhow::{Context as _, bail};
use handle_client::Question;
use handle_client::lookup::{LookupOptions, LookupTarget};
use handle_client::plan::ServerTarget;
use handle_client::question::AnswerWants;
use handle_client::reference::HandleReference;
use handle_proto::ResponseCode;
use handle_proto::data::site::InterfaceProtocol;
use std::path::PathBuf;
use std::sync::Arc;

/// Resolve handles through the responsible service or a given server.
///
/// Accepts handles in all forms: bare, as hdl:, doi: or info: references, or as the address of a
/// proxy (see `hdl reference`). --root names the file with the global service. Prints a table, or
/// with --json the record in the format of the handle REST API. For several handles, prints one
/// line per value: handle, index, type and data, separated by tabs.
///
/// With --server, asks that server over UDP like deployed clients: sends the request again after
/// 0.5 and 1.5 seconds without an answer, and gives up after 3 seconds. With --tcp, sends one
/// request over a connection and waits 10 seconds.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = concat!("Examples:
  hdl resolve 10.1045/july95-arms
  hdl resolve https://doi.org/10.1045/july95-arms --url
  hdl resolve hdl:10.1045/july95-arms --trace --certify
  hdl resolve --file handles.txt --type URL --json > records.jsonl
  hdl resolve 10.1045/july95-arms --server 127.0.0.1:2641
  hdl resolve 10.1045/july95-arms --server [::1]:2641 --type URL --json
  hdl resolve 0.NA/10.1045 --server 127.0.0.1 --index 1 --index 100 --tcp

Exit codes; for several handles, that of the first failure:
  0 found           3 no such handle    5 server not responsible, or no service known
  1 failed          4 no such value     6 the server answered with another error
  2 usage                               7 no answer"))]
pub(crate) struct Args {
    /// Handles, in any form.
    #[arg(value_name = "HANDLE", required_unless_present = "file")]
    handles: Vec<String>,
    /// File with one handle per line; `-` is standard input.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Server to ask: host, host:port, or an IPv6 address in brackets; the default port is 2641.
    #[arg(long, short, value_name = "HOST[:PORT]", conflicts_with_all = ["file", "site", "trace", "certify", "authoritative", "signatures"])]
    server: Option<String>,
    /// Ask the responsible server of this site, from a siteinfo.json or a site record.
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
    /// Only the value with this index; may be given more than once.
    #[arg(long, short, value_name = "N")]
    index: Vec<i32>,
    /// Only values of this type, in any case; `URL.` selects URL and its sub-types. With --index,
    /// values that match either.
    #[arg(long, short = 't', value_name = "TYPE")]
    r#type: Vec<String>,
    /// Print only the target: the data of the first value of type URL.
    #[arg(long, conflicts_with_all = ["type", "index", "server"])]
    url: bool,
    /// Show each step with the server, the reason, the time and the result.
    #[arg(long)]
    trace: bool,
    /// Accept only answers signed by the responsible server, at every step from the global service.
    #[arg(long)]
    certify: bool,
    /// Verify the signatures of all values, up to the keys of the global service. Fails if a value
    /// is unsigned or was changed, or if a signed value is missing; --url then prints nothing.
    #[arg(long, conflicts_with_all = ["file", "aliases"])]
    signatures: bool,
    /// Ask a primary site.
    #[arg(long)]
    authoritative: bool,
    /// Request values that are not public, too.
    #[arg(long)]
    all: bool,
    /// Request a digest of the request in the answer, and fail if it is missing or wrong.
    #[arg(long, requires = "server")]
    digest: bool,
    /// Follow up to N aliases (HS_ALIAS values). Deployed clients follow none.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "server")]
    aliases: u8,
    /// Do not use cached records, not even within one run.
    #[arg(long)]
    no_cache: bool,
    /// Number of handles resolved at the same time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Print JSON; for several handles, one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rules: RulesArgs,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// Prints all public values of `handle` from `server` as a table, like the command without other
/// options.
///
/// # Errors
/// When there is no answer.
pub fn show_from(handle: &str, server: &str) -> anyhow::Result<ExitOutcome> {
    run(&Args { handles: vec![handle.to_owned()], server: Some(server.to_owned()), ..Args::default() })
}

impl Args {
    /// The question for a reference. Its options `type`, `index`, `auth` and `cert` change the
    /// question; the last two take no value. Other options are for programs that follow links.
    fn question(&self, reference: &HandleReference) -> anyhow::Result<Question> {
        let mut indexes = self.index.clone();
        for &index in &reference.indexes {
            indexes
                .push(i32::try_from(index).with_context(|| format!("{index} is not the index of a value"))?);
        }
        let mut types: Vec<Vec<u8>> =
            self.r#type.iter().chain(&reference.types).map(|kind| kind.clone().into()).collect();
        if self.url {
            types = vec![b"URL".to_vec()];
        }
        let says = |option| reference.options.iter().any(|(name, _)| name == option);
        let wants = AnswerWants {
            certified: self.certify || says("cert"),
            authoritative: self.authoritative || says("auth"),
            public_only: !self.all && self.identity.auth.is_none(),
        };
        Ok(Question { handle: reference.handle.clone().into(), indexes, types, wants })
    }

    /// An option that cannot be used with --server.
    fn unknown_to_servers(&self, wants: AnswerWants) -> Option<&'static str> {
        let options = [
            (self.certify, "--certify"),
            (wants.certified, "?cert"),
            (self.signatures, "--signatures"),
            (self.authoritative, "--authoritative"),
            (wants.authoritative, "?auth"),
            (self.site.is_some(), "--site"),
            (self.trace, "--trace"),
            (self.url, "--url"),
            (self.aliases > 0, "--aliases"),
        ];
        options.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }

    fn options(&self) -> anyhow::Result<LookupOptions> {
        let whom = match &self.site {
            Some(path) => LookupTarget::Sites(vec![Arc::new(crate::client::read_site(path)?)]),
            None => LookupTarget::Responsible,
        };
        Ok(LookupOptions {
            use_cache: !self.no_cache,
            target: whom,
            identity: self.identity.read()?,
            // For one question, several workers would be slower.
            session_timeout_s: (self.file.is_some() || self.handles.len() > 1).then_some(SESSION_IDLE_S),
            allowances: self.identity.allowances(),
            aliases_max: self.aliases,
            trace: self.trace,
            service_only: false,
            ..LookupOptions::default()
        })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(resolve(args), args.json)
}

fn resolve(args: &Args) -> anyhow::Result<ExitOutcome> {
    let rules = args.rules.rules()?;
    if args.file.is_some() || args.handles.len() > 1 {
        if args.server.is_some() || args.trace || args.signatures {
            bail!(UsageError("--server, --trace and --signatures need exactly one handle".to_owned()));
        }
        return bulk::run(args, &rules);
    }
    let written = args.handles.first().context("no handle is given")?;
    let reference = HandleReference::parse(written, &rules)
        .with_context(|| UsageError(format!("invalid handle {written:?}")))?;
    let question = args.question(&reference)?;
    let server = args.server.as_ref().or(reference.server.as_ref());
    if let (Some(server), Some(option)) = (server, args.unknown_to_servers(question.wants)) {
        bail!(UsageError(format!(
            "{option} cannot be used with a named server ({server}): remove it, or give the handle alone"
        )));
    }
    if let (Some(server), Some(named)) = (&args.server, &reference.server)
        && exchange::address(server)? != exchange::address(named)?
    {
        bail!(UsageError(format!(
            "--server is {server}, but the reference names {named}: remove one of them"
        )));
    }
    // The author of a reference must not choose who gets a proof: it could be relayed, and secrets
    // guessed from it.
    if let (None, Some(named), true) = (&args.server, &reference.server, args.identity.auth.is_some()) {
        bail!(UsageError(format!(
            "the reference names the server {named}, and --auth (or HDL_AUTH) would authenticate to it: add --server \
            {named} to allow that, or remove --auth"
        )));
    }
    match server {
        // A request for values that are not public needs a client that answers challenges.
        Some(server) if args.identity.auth.is_some() => {
            let protocol = if args.client.tcp { InterfaceProtocol::TCP } else { InterfaceProtocol::UDP };
            let target = ServerTarget::at(exchange::address(server)?, protocol);
            global::run(
                args,
                &question,
                LookupOptions { target: LookupTarget::Servers(vec![target]), ..args.options()? },
            )
        }
        Some(server) => direct::run(args, &question, &reference.handle, server),
        None => global::run(args, &question, args.options()?),
    }
}

/// The exit code for a response code.
pub(crate) const fn outcome(code: ResponseCode) -> ExitOutcome {
    match code {
        ResponseCode::SUCCESS => ExitOutcome::Good,
        ResponseCode::HANDLE_NOT_FOUND => ExitOutcome::NotFound,
        ResponseCode::VALUES_NOT_FOUND => ExitOutcome::NoValues,
        ResponseCode::SERVER_NOT_RESPONSIBLE
        | ResponseCode::SERVICE_REFERRAL
        | ResponseCode::PREFIX_REFERRAL => ExitOutcome::NotResponsible,
        _ => ExitOutcome::Refused,
    }
}
