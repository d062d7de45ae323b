//! `hdl reference`: shows which handle a reference means, and its preferred forms.

use crate::ExitOutcome;
use crate::output::{self, printable};
use anyhow::Context as _;
use handle_client::reference::{HandleReference, PROXY, ReferenceRules, canonical, charset, url};
use serde_json::json;

/// Show which handle a reference means, and print its two preferred forms.
///
/// The text form is hdl: and the handle, with only %, ", # and ? percent-encoded; the other form is
/// safe in web addresses. Accepts bare handles, hdl:, doi:, urn:hdl:, info:hdl/, addresses of
/// proxies, hdl://server/handle for one server, 300:handle for one value, options as in
/// hdl:20.500.1/x?type=URL, and encodings as in hdl:iso-2022-jp@cnri.test/...
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl reference https://doi.org/10.1000/456%23789
  hdl reference 'hdl:latin1@handles-in-germany/Universit%E4t-Karlsruhe'
  hdl reference --lenient '<doi:10.1000/182>.'

Exit codes: 0 all valid, 1 at least one invalid; the others are shown.")]
pub(crate) struct Args {
    /// The references, one per argument.
    #[arg(required = true, value_name = "REFERENCE")]
    references: Vec<String>,
    #[command(flatten)]
    rules: RulesArgs,
    /// Print addresses of this proxy.
    #[arg(long, value_name = "URL", default_value = PROXY)]
    proxy: String,
    /// Print JSON, one object per line; an invalid reference has the field `error`.
    #[arg(long)]
    json: bool,
}

/// How references are parsed.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RulesArgs {
    /// Encoding of percent-encoded bytes that are not UTF-8.
    #[arg(long, value_name = "NAME")]
    charset: Option<String>,
    /// Strip angle brackets and the punctuation of running text.
    #[arg(long)]
    lenient: bool,
    /// Additional proxy host whose addresses contain handles, like hdl.handle.net and doi.org; may
    /// be given more than once.
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
}

impl RulesArgs {
    pub(crate) fn rules(&self) -> anyhow::Result<ReferenceRules> {
        let charset = match &self.charset {
            Some(name) => Some(charset(name).with_context(|| format!("unknown encoding {name}"))?),
            None => None,
        };
        let mut rules = ReferenceRules { lenient: self.lenient, charset, ..ReferenceRules::typed() };
        rules.hosts.extend(self.host.iter().cloned());
        Ok(rules)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let rules = output::or_as_json(args.rules.rules(), args.json)?;
    let slash = if args.proxy.ends_with('/') { "" } else { "/" };
    let proxy = format!("{}{slash}", args.proxy);
    let mut outcome = ExitOutcome::Good;
    for written in &args.references {
        match HandleReference::parse(written, &rules) {
            Ok(reference) => show(args, &reference, &proxy),
            Err(error) => {
                outcome = ExitOutcome::Failed;
                if args.json {
                    println!(
                        "{}",
                        output::json_line(&json!({ "reference": written, "error": error.to_string() }))
                    );
                }
                eprintln!("hdl: {}", printable(&format!("invalid reference {written:?}: {error}")));
            }
        }
    }
    Ok(outcome)
}

fn show(args: &Args, reference: &HandleReference, proxy: &str) {
    let (text, address) = (canonical(&reference.handle), url(&reference.handle, proxy));
    if args.json {
        let options: Vec<_> =
            reference.options.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let json = json!({
            "handle": reference.handle, "text": text, "url": address, "indexes": reference.indexes,
            "types": reference.types, "options": options, "fragment": reference.fragment,
            "server": reference.server,
        });
        println!("{}", output::json_line(&json));
        return;
    }
    let line = |name: &str, what: &str| println!("{name:<9} {}", printable(what));
    line("handle", &reference.handle);
    line("text", &text);
    line("address", &address);
    reference.server.iter().for_each(|server| line("server", server));
    reference.indexes.iter().for_each(|index| line("index", &index.to_string()));
    reference.types.iter().for_each(|kind| line("type", kind));
    reference.options.iter().for_each(|(name, value)| line("option", &format!("{name}={value}")));
    reference.fragment.iter().for_each(|fragment| line("fragment", fragment));
}
