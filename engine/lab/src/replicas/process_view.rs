//! The state of each process as the lab shows it: the text that servers give, the set, the
//! transaction, and errors.

use super::files::ReplicaLab;
use super::programs::ProgramRow;
use super::{HANDLE, TIMEOUT};
use anyhow::{Context as _, bail};
use handle_cli::{control, exchange};
use handle_proto::OpFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::message::Body;
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Message, Request, Response};
use handle_snapshot::set::read_manifest;
use serde::Serialize;
use serde_json::Value as Json;
use std::path::PathBuf;
use std::time::Instant;

/// Time for an answer over UDP, in milliseconds.
const WAITS_MS: [u32; 2] = [300, 700];

/// The state of a process as the lab shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProcessView {
    pub(super) name: String,
    pub(super) program: String,
    pub(super) pid: Option<u32>,
    /// Whether it answers queries.
    #[serde(skip)]
    pub(super) serves: bool,
    /// The text of the record of the lab that it answers with.
    pub(super) text: Option<String>,
    /// The generation of the set that it serves, publishes, ships or fetches.
    pub(super) set: Option<u64>,
    /// The last transaction of a primary, or of the primary at its mirror.
    pub(super) transaction: Option<u64>,
    /// What a mirror does.
    pub(super) activity: Option<String>,
    /// The seconds by which a mirror is behind.
    pub(super) lag_seconds: Option<f64>,
    /// Its last error, or why it does not answer.
    pub(super) error: Option<String>,
}

impl ProcessView {
    /// All of it as text.
    pub(super) fn sentence(&self) -> String {
        let parts = [
            self.text.as_ref().map(|text| format!("answers {text:?}")),
            self.activity.clone(),
            self.lag_seconds.map(|lag| format!("{lag:.1} s behind")),
            self.transaction.map(|id| format!("transaction {id}")),
            self.set.map(|set| format!("set {set}")),
            self.error.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Looks at a process.
pub(super) fn look(lab: &ReplicaLab, row: &ProgramRow) -> ProcessView {
    let mut seen = ProcessView {
        name: row.name.clone(),
        program: row.program.clone(),
        pid: row.pid,
        serves: row.program == "handled",
        text: None,
        set: read_manifest(&set_of(lab, row)).ok().map(|manifest| manifest.generation),
        transaction: None,
        activity: None,
        lag_seconds: None,
        error: None,
    };
    if row.pid.is_none() {
        return seen;
    }
    let looked = match row.program.as_str() {
        "handled" => text(lab, row).map(|text| seen.text = Some(text)),
        _ => ask(lab, row).map(|status| take(&mut seen, &status)),
    };
    if let Err(error) = looked {
        seen.error = Some(format!("{error:#}"));
    }
    seen
}

/// Takes what the status of `handle-admin` or `handle-fetch` says.
fn take(seen: &mut ProcessView, status: &Json) {
    let of = if status["mirror"][0].is_object() { &status["mirror"][0] } else { status };
    seen.activity = of["activity"].as_str().map(str::to_owned);
    seen.lag_seconds = of["lag_seconds"].as_f64();
    let own = &status["store"]["content"]["last_transaction"];
    seen.transaction = of["last_transaction"].as_u64().or(own.as_u64());
    let fails = of["failures"].as_u64() != Some(0);
    seen.error = of["last_error"].as_str().filter(|_| fails).map(str::to_owned);
}

/// The directory that has the files of a process.
fn own(row: &ProgramRow) -> String {
    match row.name.split_once('-') {
        Some(("fetch" | "server", machine)) => format!("machine-{machine}"),
        Some((service, _)) => service.to_owned(),
        None => row.name.clone(),
    }
}

/// The set that a process serves, publishes, ships or fetches.
fn set_of(lab: &ReplicaLab, row: &ProgramRow) -> PathBuf {
    let own = own(row);
    match own.as_str() {
        "ship" => lab.fleet_directory(),
        "primary" | "mirror" => lab.path(&own).join("snapshot"),
        _ => lab.path(&own).join("set"),
    }
}

/// The status of a process; an empty object if it has no control socket.
fn ask(lab: &ReplicaLab, row: &ProgramRow) -> anyhow::Result<Json> {
    let name = match (row.program.as_str(), own(row).as_str()) {
        ("handle-fetch", _) => "fetch.sock",
        ("handle-admin", _) => "run/handle-admin.sock",
        ("handled", "primary" | "mirror") => "run/handled.sock",
        ("handled", _) => "handled.sock",
        _ => return Ok(Json::Null),
    };
    control::ask(&lab.path(&own(row)).join(name), "status")
}

/// Waits until a process answers.
pub(super) fn await_answer(lab: &ReplicaLab, row: &ProgramRow) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match ask(lab, row) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                let log = lab.path("log").join(format!("{}.log", row.name));
                return Err(error.context(format!("{} does not start; see {}", row.name, log.display())));
            }
            Err(_) => std::thread::sleep(super::programs::INTERVAL),
        }
    }
}

/// The text of the record of the lab that a server answers with.
fn text(lab: &ReplicaLab, row: &ProgramRow) -> anyhow::Result<String> {
    let server = exchange::address(&lab.listens(&format!("{}/handled.toml", own(row)))?)?;
    let query = Query { handle: HANDLE.as_bytes(), indexes: Indexes::new(&[]), types: Strings::EMPTY };
    let request = exchange::request(&Request::Resolution(query), OpFlags::PLAIN_REQUEST)?;
    let answered = exchange::ask(server, &request, &WAITS_MS)?.context("no answer")?;
    let (envelope, message) = Envelope::split(&answered.message)?;
    let message = Message::decode(message)?;
    let Body::Reply(reply) = message.decode_body(envelope.version)? else { bail!("no answer") };
    match reply.response {
        Response::Answer(answer) => {
            let value = answer.values.iter().next().context("a record without values")?;
            Ok(String::from_utf8_lossy(value.data).into_owned())
        }
        _ => bail!("{} {}", reply.code.0, reply.code),
    }
}
