//! `hdl site` and `hdl check`: the sites of a service, and whether they agree.

pub(crate) mod check;

use crate::ExitOutcome;
use crate::client::ClientArgs;
use crate::notice;
use crate::output::{self, printable};
use crate::style::{Paint, paint};
use anyhow::{Context as _, bail};
use handle_auth::PublicKey;
use handle_client::lookup::{Client, LookupOptions};
use handle_client::question::AnswerWants;
use handle_client::reference::{HandleReference, ReferenceRules};
use handle_client::service::SharedSite;
use handle_client::trace::{AnswerOrigin, LookupStep};
use handle_client::{BlockingDriver, Question};
use handle_proto::data::site::{Interface, Server};
use handle_proto::json::site_to_json;
use handle_proto::{Handle, HashOption, ResponseCode};
use handle_template::Notice;
use serde_json::json;
use std::sync::Arc;

/// Show the sites and servers of the service responsible for a handle or a prefix.
///
/// Marks the server that the hash chooses in each site. If the namespace (HS_NAMESPACE) of the
/// prefix has them, also prints its contact and whether it is inactive.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl site 10.1045/july95-arms
  hdl site 10.1045 --json

Exit codes: 0 shown, 1 failed.")]
pub(crate) struct Args {
    /// A handle, or a prefix.
    handle: String,
    /// Accept only signed answers of the global service.
    #[arg(long)]
    certify: bool,
    /// Print the site records as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// The sites of a service, and their source.
pub(crate) struct LocatedService {
    pub(crate) handle: Vec<u8>,
    pub(crate) from: AnswerOrigin,
    pub(crate) sites: Vec<SharedSite>,
}

/// Finds the service for a handle, or for a prefix whose handles are meant.
pub(crate) fn locate(client: &Arc<Client>, written: &str, certify: bool) -> anyhow::Result<LocatedService> {
    let reference = HandleReference::parse(written, &ReferenceRules::typed())
        .with_context(|| format!("invalid handle {written:?}"))?;
    let mut handle = reference.handle;
    if !handle.contains('/') {
        handle.push('/');
    }
    let mut question = Question::all(handle.as_bytes());
    question.wants.certified = certify;
    let options = LookupOptions { trace: true, ..LookupOptions::default() };
    let resolved = BlockingDriver::new(Arc::clone(client)).resolve(&question, &options);
    // The last sites for the handle itself: a referral leads to others.
    let steps = resolved.events.into_iter().filter(|event| {
        event.depth == 0 || matches!(event.step, LookupStep::Sites { from: AnswerOrigin::Referral, .. })
    });
    let sites = steps.filter_map(|event| match event.step {
        LookupStep::Sites { from, sites } => Some((from, sites)),
        _ => None,
    });
    match (sites.last(), resolved.outcome) {
        // The sites found so far belong to a service on the path.
        (_, Err(error)) if !error.is_of_the_servers_of(handle.as_bytes()) => Err(error.into()),
        (Some((from, sites)), _) => Ok(LocatedService { handle: handle.into_bytes(), from, sites }),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(_)) => bail!("the service of {handle} is not known"),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(show(args), args.json)
}

fn show(args: &Args) -> anyhow::Result<ExitOutcome> {
    let client = args.client.client()?;
    let located = locate(&client, &args.handle, args.certify)?;
    let find_notice = || match located.from {
        AnswerOrigin::Prefix => said_to_people(&client, &located.handle, args.certify),
        _ => (Notice::default(), None),
    };
    if args.json {
        let sites: Vec<_> = located.sites.iter().map(|site| site_to_json(&site.view())).collect();
        let (notice, unknown) = find_notice();
        let mut namespace =
            json!({ "contact": notice.contact, "status": notice.status, "statusMessage": notice.message });
        if let Some(why) = unknown {
            namespace["error"] = why.into();
        }
        output::print_json(&json!({ "handle": args.handle, "namespace": namespace, "sites": sites }));
        return Ok(ExitOutcome::Good);
    }
    println!("{}: {}", paint(Paint::Strong, printable(&args.handle)), located.from);
    for (number, site) in located.sites.iter().enumerate() {
        show_site(number + 1, site, Handle(&located.handle));
    }
    // Flushed first, because the global service is asked next and may take long.
    let (notice, unknown) = find_notice();
    let inactive = notice::inactive(&notice).map(|what| paint(Paint::Odd, what).to_string());
    let contact = notice.contact.map(|contact| format!("contact {}", output::short(&contact, contact.len())));
    let lines: Vec<String> = inactive.into_iter().chain(contact).collect();
    if !lines.is_empty() {
        println!();
        println!("{}", paint(Paint::Strong, "namespace"));
        lines.iter().for_each(|line| println!("  {line}"));
    }
    if let Some(why) = unknown {
        eprintln!("hdl: the namespace is only partly known: {}", printable(&why));
    }
    Ok(ExitOutcome::Good)
}

/// The notices in the namespaces of a handle: those of the global service, and of its prefix. Also
/// why some are unknown, if so.
fn said_to_people(client: &Arc<Client>, handle: &[u8], certified: bool) -> (Notice, Option<String>) {
    let mut driver = BlockingDriver::new(Arc::clone(client));
    let mut unknown = None;
    let notice = notice::of(handle, AnswerWants { certified, ..AnswerWants::default() }, |question| {
        let why = match driver.resolve(question, &LookupOptions::default()).outcome {
            Ok(answer) => match answer.code {
                ResponseCode::SUCCESS | ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND => {
                    return Some((*answer).clone());
                }
                code => format!("{}: {} {code}", Handle(&question.handle), code.0),
            },
            Err(error) => error.to_string(),
        };
        unknown.get_or_insert(why);
        None
    });
    (notice, unknown)
}

fn show_site(number: usize, site: &SharedSite, handle: Handle<'_>) {
    let view = site.view();
    let hash = match view.hash_option() {
        Some(HashOption::Prefix) => "the prefix",
        Some(HashOption::Suffix) => "the local name",
        Some(HashOption::Handle) => "the whole handle",
        None => "an unknown method",
    };
    println!();
    println!(
        "{}: {}, serial {}, protocol {}, servers by {hash}",
        paint(Paint::Strong, format_args!("site {number}")),
        if view.is_primary() { "primary" } else { "secondary" },
        view.serial,
        view.protocol
    );
    for attribute in view.attributes {
        println!("  {}", printable(&format!("{} {}", Handle(attribute.name), Handle(attribute.value))));
    }
    let responsible = view.server_at(handle);
    let mut table = output::table(&["", "server", "address", "interfaces", "key"]);
    for (at, server) in view.servers.iter().enumerate() {
        let mark = if responsible == Some(at) { "->" } else { "" };
        let interfaces: Vec<String> = server.interfaces.iter().map(interface).collect();
        let of = if responsible == Some(at) { Paint::Good } else { Paint::Plain };
        table.add_painted(
            of,
            [
                mark.to_owned(),
                server.id.to_string(),
                server.address.to_string(),
                interfaces.join(" "),
                key(&server),
            ],
        );
    }
    output::lines(&table);
}

fn interface(interface: Interface) -> String {
    use handle_proto::data::site::InterfaceKind;
    let kind = match interface.kind {
        InterfaceKind::ADMIN => "(admin)",
        InterfaceKind::BOTH => "(all)",
        InterfaceKind::QUERY => "",
        _ => "(out of service)",
    };
    format!("{}/{}{kind}", interface.protocol.name().unwrap_or("?"), interface.port_number)
}

fn key(server: &Server<'_>) -> String {
    match PublicKey::from_record(server.public_key) {
        Ok(key) => format!("{key:?}"),
        Err(_) if server.public_key.is_empty() => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}
