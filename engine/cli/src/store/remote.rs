//! Records of another server: its listing, and each handle in it resolved.

use super::import::Taken;
use crate::exchange;
use crate::handle::prefix_handle;
use crate::progress;
use crate::secret::IdentityArgs;
use anyhow::{Context as _, bail, ensure};
use crossbeam_channel::bounded;
use handle_client::administration::{Administrator, Identity};
use handle_proto::name::BLANK;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::list::{Indexes, Strings, Values};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Answers that wait to be taken in.
const QUEUE: usize = 256;
/// How long a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which server has the records.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RemoteArgs {
    /// Take the records of this server, over TCP, by listing and resolving them.
    #[arg(long, value_name = "HOST[:PORT]")]
    server: Option<String>,
    /// The prefix to list; may be given more than once. Without it all that the server has homed.
    #[arg(long, value_name = "PREFIX", requires = "server")]
    prefix: Vec<String>,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// A record that came: the handle, how many values, and their encoding.
type Came = anyhow::Result<Option<(Vec<u8>, usize, Vec<u8>)>>;

/// Takes in every record of the server.
pub(super) fn each(args: &RemoteArgs, taken: &mut Taken<'_>) -> anyhow::Result<()> {
    let server = args.server.as_deref().context("name files, or --server")?;
    let address = exchange::address(server)?;
    let identity = args.identity.read()?;
    let connect = || connected(address, identity.clone());
    let mut client = connect();
    let mut prefixes: Vec<Vec<u8>> =
        args.prefix.iter().map(|prefix| prefix_handle(prefix).into_bytes()).collect();
    if prefixes.is_empty() {
        let request = Request::ListHomedNas(HandleBody { handle: BLANK });
        list(&mut client, &request, |name| prefixes.push(name.to_vec())).context("the homed prefixes")?;
    }
    let mut names = Vec::new();
    for prefix in &prefixes {
        let request = Request::ListHandles(HandleBody { handle: prefix });
        list(&mut client, &request, |name| names.push(name.to_vec()))
            .with_context(|| format!("the handles under {}", Handle(prefix)))?;
        taken.homed(prefix);
    }
    let bar = progress::bar("resolving", Some(names.len() as u64));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, receive) = bounded::<Came>(QUEUE);
        for _ in 0..args.parallel {
            let (send, names, next, connect) = (send.clone(), &names, &next, &connect);
            scope.spawn(move || {
                let mut client = connect();
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let came = resolve(&mut client, name);
                    let is_over = came.is_err();
                    if send.send(came).is_err() || is_over {
                        return;
                    }
                }
            });
        }
        drop(send);
        for came in receive {
            bar.inc(1);
            // Deleted in the meantime.
            let Some((handle, count, encoded)) = came? else { continue };
            let values = Values::from_encoded(count, &encoded)?;
            taken.record(&handle, values, || server.to_owned())?;
        }
        bar.finish_and_clear();
        Ok(())
    })
}

fn connected(server: SocketAddr, identity: Option<Arc<Identity>>) -> Administrator {
    let mut client = Administrator::new(server, PATIENCE);
    client.identify(identity);
    client
}

fn list(
    client: &mut Administrator,
    request: &Request<'_>,
    mut take: impl FnMut(&[u8]),
) -> anyhow::Result<()> {
    let answer = client.list(request, |name| {
        take(name);
        ControlFlow::Continue(())
    })?;
    let code = answer.code();
    ensure!(code == ResponseCode::SUCCESS, "the server answers {} {code} {}", code.0, answer.text());
    Ok(())
}

/// The whole record of a handle, with what its administrators see if somebody asks as one of them.
fn resolve(client: &mut Administrator, handle: &[u8]) -> Came {
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE).without(OpFlags::PUBLIC_ONLY);
    let request = Request::Resolution(Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY });
    let answer = client.ask(&request, flags).with_context(|| Handle(handle).to_string())?;
    match (answer.code(), answer.reply().response) {
        (_, Response::Answer(found)) => {
            Ok(Some((handle.to_vec(), found.values.len(), found.values.as_bytes().to_vec())))
        }
        (ResponseCode::HANDLE_NOT_FOUND, _) => Ok(None),
        // A record without values is one, too.
        (ResponseCode::VALUES_NOT_FOUND, _) => Ok(Some((handle.to_vec(), 0, Vec::new()))),
        (code, _) => bail!("{}: the server answers {} {code} {}", Handle(handle), code.0, answer.text()),
    }
}
