//! `hdl find`: handles by the public values of their records.

use crate::{ExitOutcome, UsageError, control, output};
use anyhow::Context as _;
use serde_json::json;
use std::path::PathBuf;

/// Find handles by the public values of their records.
///
/// Asks a running handle-admin, whose setting `index.types` has the types that can be found. The
/// user of its control socket finds all handles; other callers search at the gateway.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl find type=URL value=https://example.org/report.pdf
  hdl find URL='https://example.org/*' --prefix 10.1045 --limit 100
  hdl find URL='https://*' CHECKSUM=9f86d081 --json

A * stands for any characters. Without characters before it, all values of the type are looked at.

Exit codes: 0 found, 3 nothing found, 6 refused.")]
pub(crate) struct Args {
    /// The values that a record must have, as TYPE=VALUE, or as type=TYPE value=VALUE.
    #[arg(required = true, value_name = "TYPE=VALUE")]
    values: Vec<String>,
    /// Only handles with this prefix, as 10.1045.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Print at most this many handles, and then where to go on. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Go on where an earlier search ended.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// The control socket of handle-admin.
    #[arg(long, short, default_value = "/run/handle-admin/control.sock", env = "HANDLE_ADMIN_CONTROL")]
    socket: PathBuf,
    /// Print one object with `handles` and `next`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let conditions = conditions(&args.values)?;
    let (mut handles, mut after, mut count) = (Vec::new(), args.after.clone(), 0);
    loop {
        let left = args.limit.map(|limit| limit - count);
        let command = json!({ "where": conditions, "prefix": args.prefix, "after": after, "limit": left });
        let answer = control::ask(&args.socket, &format!("find {}", output::json_line(&command)))?;
        if let Some(error) = answer["error"].as_str() {
            eprintln!("hdl: {error}");
            return Ok(ExitOutcome::Refused);
        }
        for handle in answer["handles"].as_array().context("the answer has no handles")? {
            count += 1;
            match args.json {
                true => handles.push(handle.clone()),
                false => println!("{}", handle.as_str().unwrap_or_default()),
            }
        }
        after = answer["next"].as_str().map(str::to_owned);
        if after.is_none() || args.limit.is_some_and(|limit| count >= limit) {
            break;
        }
    }
    match &after {
        _ if args.json => println!("{}", output::json_line(&json!({ "handles": handles, "next": after }))),
        Some(after) => eprintln!("hdl: there may be more: --after {after}"),
        None => {}
    }
    Ok(if count > 0 { ExitOutcome::Good } else { ExitOutcome::NotFound })
}

/// The types and values of the arguments.
fn conditions(arguments: &[String]) -> anyhow::Result<Vec<[String; 2]>> {
    let usage = |text: String| anyhow::Error::from(UsageError(text));
    let (mut conditions, mut kind) = (Vec::new(), None);
    for argument in arguments {
        let (name, value) = argument
            .split_once('=')
            .ok_or_else(|| usage(format!("{argument} is not TYPE=VALUE, as URL=https://example.org/")))?;
        match (name, kind.take()) {
            ("type", None) => kind = Some(value.to_owned()),
            ("value", Some(kind)) => conditions.push([kind, value.to_owned()]),
            (_, Some(kind)) => return Err(usage(format!("type={kind} has no value=VALUE behind it"))),
            (name, None) => conditions.push([name.to_owned(), value.to_owned()]),
        }
    }
    match kind {
        Some(kind) => Err(usage(format!("type={kind} has no value=VALUE behind it"))),
        None => Ok(conditions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_written_in_two_ways() {
        let of = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            conditions(&arguments).map_err(|error| error.to_string())
        };
        let pair = |kind: &str, value: &str| [kind.to_owned(), value.to_owned()];
        assert_eq!(of(&["type=URL", "value=a=b"]).unwrap(), [pair("URL", "a=b")]);
        assert_eq!(of(&["URL=x", "type=A", "value="]).unwrap(), [pair("URL", "x"), pair("A", "")]);
        for (arguments, part) in [
            (&["URL"][..], "is not TYPE=VALUE"),
            (&["type=URL"], "no value=VALUE"),
            (&["type=URL", "type=A", "value=b"], "no value=VALUE"),
            (&["type=URL", "A=b"], "no value=VALUE"),
        ] {
            assert!(of(arguments).unwrap_err().contains(part), "{arguments:?}");
        }
    }
}
