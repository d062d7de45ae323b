//! Imports the records of another server: lists its handles and resolves each.

use super::files::RecordSink;
use super::import::ImportState;
use crate::exchange::ServerRefusal;
use crate::handle::prefix_handle;
use crate::input::InputPosition;
use crate::secret::IdentityArgs;
use crate::server::SESSION_IDLE_S;
use crate::{exchange, key, progress};
use anyhow::{Context as _, bail};
use crossbeam_channel::bounded;
use handle_auth::PublicKey;
use handle_client::administration::{AdministrationAnswer, Administrator, AskError};
use handle_proto::name::BLANK;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::list::{Indexes, Strings, Values};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Answers queued for the import.
const QUEUE: usize = 256;
/// Time limit for a connection or an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server with the records.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RemoteArgs {
    /// Import the records of this server, over TCP, by listing and resolving them.
    #[arg(long, value_name = "HOST[:PORT]")]
    server: Option<String>,
    /// Prefix to list; may be given more than once. Default: all homed prefixes of the server.
    #[arg(long, value_name = "PREFIX", requires = "server")]
    prefix: Vec<String>,
    /// Public key of the server. With it, only answers signed by the server are accepted, and
    /// values that are not public are sent encrypted in a session.
    #[arg(long, value_name = "FILE", requires = "server")]
    server_key: Option<PathBuf>,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Maximum memory for the handles that the server lists, in MiB: each takes its length and 40
    /// bytes. A longer list stops the import.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    list_mib: u32,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// The handles that the server has listed, up to a number of bytes.
struct ListedHandles {
    handles: Vec<Vec<u8>>,
    bytes_left: u64,
}

impl ListedHandles {
    /// Memory per handle besides its bytes: its place in the list, and the overhead of the
    /// allocator.
    const OVERHEAD: u64 = 40;

    const fn new(mib: u32) -> Self {
        Self { handles: Vec::new(), bytes_left: (mib as u64) << 20 }
    }

    /// Keeps `handle`; breaks if there is no capacity left.
    fn push(&mut self, handle: &[u8]) -> ControlFlow<()> {
        let needed = handle.len() as u64 + Self::OVERHEAD;
        let Some(left) = self.bytes_left.checked_sub(needed) else { return ControlFlow::Break(()) };
        self.bytes_left = left;
        self.handles.push(handle.to_vec());
        ControlFlow::Continue(())
    }
}

impl RemoteArgs {
    /// Whether a server is named.
    pub(super) const fn is_named(&self) -> bool {
        self.server.is_some()
    }
}

/// The answer of the server about a listed handle.
enum FetchedHandle {
    Record {
        handle: Vec<u8>,
        values_count: usize,
        encoded: Vec<u8>,
        /// Why only the public values are readable, if so.
        withheld: Option<String>,
    },
    /// Not readable at all.
    Unreadable { handle: Vec<u8>, why: String },
    /// Deleted in the meantime.
    Gone,
}

/// Takes the records that a server lists.
pub(crate) trait RemoteSink: RecordSink {
    /// Takes note that the next record has only its `count` public values.
    fn withheld(&mut self, handle: &[u8], count: usize, why: &str);

    /// Takes note of a handle or prefix that is not readable.
    fn unreadable(&mut self, name: &[u8], why: &str);
}

/// Imports every record of the server, as far as it is readable.
pub(super) fn each(args: &RemoteArgs, keep_going: bool, taken: &mut ImportState<'_>) -> anyhow::Result<()> {
    let server = args.server.as_deref().context("no input: name files, or --server")?;
    let connect = args.connector(server)?;
    let listing = RemoteListing {
        server,
        prefixes: &args.prefix,
        parallel: args.parallel,
        list_mib: args.list_mib,
        connect: &|| Ok(connect()),
    };
    listing.each(keep_going, taken)
}

/// A server that lists its handles.
pub(crate) struct RemoteListing<'a> {
    /// Its name in messages.
    pub(crate) server: &'a str,
    /// The prefixes to list; if there are none, all homed prefixes of the server.
    pub(crate) prefixes: &'a [String],
    /// Number of connections.
    pub(crate) parallel: u16,
    /// Maximum memory for the listed handles, in MiB.
    pub(crate) list_mib: u32,
    /// Makes a connection, as the identity that lists and resolves.
    pub(crate) connect: &'a (dyn Fn() -> anyhow::Result<Administrator> + Sync),
}

impl RemoteListing<'_> {
    /// Passes every record of the server to `taken`, as far as it is readable. With `keep_going`, a
    /// handle that is refused for another reason than missing rights is not an error.
    ///
    /// # Errors
    /// When nothing may be listed, or a question is not answered.
    pub(crate) fn each(&self, keep_going: bool, taken: &mut impl RemoteSink) -> anyhow::Result<()> {
        let RemoteListing { server, parallel, connect, .. } = *self;
        let names = list_all(self, &mut connect()?, taken)?;
        let bar = progress::bar("resolving", Some(names.len() as u64));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (send, receive) = bounded::<anyhow::Result<FetchedHandle>>(QUEUE);
            for _ in 0..parallel {
                let (send, names, next) = (send.clone(), &names, &next);
                scope.spawn(move || {
                    let mut client = match connect() {
                        Ok(client) => client,
                        // If the other side is gone, the reason is known.
                        Err(error) => return drop(send.send(Err(error))),
                    };
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let fetched =
                            fetch(&mut client, name, keep_going).with_context(|| Handle(name).to_string());
                        let is_over = fetched.is_err();
                        if send.send(fetched).is_err() || is_over {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for fetched in receive {
                bar.inc(1);
                match fetched? {
                    FetchedHandle::Record { handle, values_count, encoded, withheld } => {
                        let values = Values::from_encoded(values_count, &encoded)?;
                        if let Some(why) = withheld {
                            taken.withheld(&handle, values_count, &why);
                        }
                        let position = || InputPosition { file: server.to_owned(), line: None, record: None };
                        taken.record(&handle, values, &position)?;
                    }
                    FetchedHandle::Unreadable { handle, why } => taken.unreadable(&handle, &why),
                    FetchedHandle::Gone => {}
                }
            }
            bar.finish_and_clear();
            Ok(())
        })
    }
}

impl RemoteArgs {
    /// Creates connections to the server with the named identity.
    fn connector(&self, server: &str) -> anyhow::Result<impl Fn() -> Administrator> {
        let address = exchange::address(server)?;
        let (identity, allowances) = (self.identity.read()?, self.identity.allowances());
        let key = match &self.server_key {
            Some(path) => {
                let record = key::public_record(path)?;
                Some(PublicKey::from_record(&record).with_context(|| path.display().to_string())?)
            }
            None => None,
        };
        Ok(move || {
            let mut client = Administrator::new(address, TIMEOUT);
            client.allow(allowances);
            if let Some(key) = &key {
                client.require_signatures(key.clone());
                client.use_sessions(Some(SESSION_IDLE_S));
            }
            client.identify(identity.clone());
            client
        })
    }
}

/// Lists the handles under all prefixes. Reports prefixes that may not be listed; fails if none
/// may.
fn list_all(
    listing: &RemoteListing<'_>,
    client: &mut Administrator,
    taken: &mut impl RemoteSink,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut prefixes: Vec<Vec<u8>> =
        listing.prefixes.iter().map(|prefix| prefix_handle(prefix).into_bytes()).collect();
    if prefixes.is_empty() {
        let request = Request::ListHomedNas(HandleBody { handle: BLANK });
        let mut homed = ListedHandles::new(listing.list_mib);
        let refused = list(client, &request, &mut homed);
        if let Some(why) = refused.context("cannot list the homed prefixes")? {
            bail!(ServerRefusal(format!("cannot list the homed prefixes: {why}")));
        }
        prefixes = homed.handles;
    }
    let (mut names, mut refusals) = (ListedHandles::new(listing.list_mib), Vec::new());
    for prefix in &prefixes {
        let request = Request::ListHandles(HandleBody { handle: prefix });
        let position = || format!("cannot list the handles under {}", Handle(prefix));
        match list(client, &request, &mut names).with_context(position)? {
            None => taken.homed(prefix),
            Some(why) => refusals.push((prefix, why)),
        }
    }
    if let (Some((_, why)), true) = (refusals.first(), refusals.len() == prefixes.len()) {
        bail!(ServerRefusal(format!("cannot list the handles under {}: {why}", Handle(&prefixes[0]))));
    }
    refusals.iter().for_each(|(prefix, why)| taken.unreadable(prefix, why));
    Ok(names.handles)
}

/// Lists; returns the reason if that is not allowed.
fn list(
    client: &mut Administrator,
    request: &Request<'_>,
    listed: &mut ListedHandles,
) -> anyhow::Result<Option<String>> {
    let mut is_full = false;
    let answer = client.list(request, |handle| {
        let kept = listed.push(handle);
        is_full |= kept.is_break();
        kept
    })?;
    if is_full {
        bail!("the server lists more handles than --list-mib allows: raise it, or name prefixes");
    }
    match answer.code() {
        ResponseCode::SUCCESS => Ok(None),
        code if is_about_rights(code) => Ok(Some(refusal(&answer))),
        _ => bail!(ServerRefusal(refusal(&answer))),
    }
}

/// The record of a handle: all values if they are readable, otherwise the public ones.
///
/// # Errors
/// If there is no answer, or a refusal for another reason than missing rights, unless such handles
/// are skipped.
fn fetch(client: &mut Administrator, handle: &[u8], keep_going: bool) -> anyhow::Result<FetchedHandle> {
    let request = Request::Resolution(Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY });
    let all = OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE).without(OpFlags::PUBLIC_ONLY);
    let withheld = match client.ask(&request, all) {
        Ok(answer) if is_about_rights(answer.code()) => refusal(&answer),
        Ok(answer) => return fetched(handle, &answer, None, keep_going),
        // Without an identity, only public values are readable.
        Err(error @ AskError::NoIdentity) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    let answer = client.ask(&request, all.with(OpFlags::PUBLIC_ONLY))?;
    match is_about_rights(answer.code()) {
        true => Ok(FetchedHandle::Unreadable { handle: handle.to_vec(), why: refusal(&answer) }),
        false => fetched(handle, &answer, Some(withheld), keep_going),
    }
}

fn fetched(
    handle: &[u8],
    answer: &AdministrationAnswer,
    withheld: Option<String>,
    keep_going: bool,
) -> anyhow::Result<FetchedHandle> {
    let handle = handle.to_vec();
    Ok(match (answer.code(), answer.reply().response) {
        (_, Response::Answer(found)) => {
            let (values_count, encoded) = (found.values.len(), found.values.as_bytes().to_vec());
            FetchedHandle::Record { handle, values_count, encoded, withheld }
        }
        (ResponseCode::HANDLE_NOT_FOUND, _) => FetchedHandle::Gone,
        // A record without values is valid.
        (ResponseCode::VALUES_NOT_FOUND, _) => {
            FetchedHandle::Record { handle, values_count: 0, encoded: Vec::new(), withheld }
        }
        _ if keep_going => FetchedHandle::Unreadable { handle, why: refusal(answer) },
        _ => bail!(ServerRefusal(refusal(answer))),
    })
}

/// Whether a refusal concerns the identity and its rights.
fn is_about_rights(code: ResponseCode) -> bool {
    (400..500).contains(&code.0)
}

fn refusal(answer: &AdministrationAnswer) -> String {
    let (code, text) = (answer.code(), answer.text());
    let colon = if text.is_empty() { "" } else { ": " };
    format!("the server answered {} {code}{colon}{text}", code.0)
}
