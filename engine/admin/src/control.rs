//! The commands of `handle-admin` on its control socket.

use crate::comparison;
use crate::costly::{CostlyCounts, CostlyWork};
use crate::index;
use crate::mirror::promote::PromotionError;
use crate::mirror::{Mirror, promote};
use crate::publish::{Command, NoCommand, StorePublisher};
use crate::pull::{accept_deletions, is_puller};
use crate::relocate;
use crate::service::AdminService;
use crate::state::AdminState;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::control::{CommandHelp, ControlCommands, ControlReader};
use handle_daemon::site::SiteRecord;
use handle_daemon::text::listed;
use handle_daemon::{log, threads};
use handle_store::CommitCounts;
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixStream;

/// The commands and their help; those of the publisher follow.
const COMMANDS: [CommandHelp; 13] = [
    ("status", "what is kept and served since when"),
    ("stats", "counters, and what waits now"),
    ("reload", "read the configuration again; what cannot change while serving is named"),
    ("reopen-log", "open the file of the audit log again, after it was renamed"),
    ("promote", "make this mirror the primary; with \"force\" also while a dump is in progress"),
    (
        "compare-mirror",
        "compare the published set with the primaries, as compare-mirror SECONDS; the answer has several lines",
    ),
    ("pull", "compare all records of a copied source now, as pull NAME"),
    (
        "accept-deletions",
        "let the next comparison delete what the last one did not, as accept-deletions NAME",
    ),
    ("find", "handles with public values, as find {\"where\":[[\"URL\",\"https://*\"]]}"),
    ("move-store", "move the store, as move-store {\"to\":\"PATH OR URL\"}; the answer has several lines"),
    ("drain", "answer what has arrived, then exit"),
    ("restart", "start this program again, and let it take over without refusing a change"),
    ("take-over", "sent by the new process to get the sockets"),
];

impl ControlCommands for AdminState {
    fn commands(&self) -> Vec<CommandHelp> {
        COMMANDS.into_iter().chain(Command::WORDS).collect()
    }

    fn run(&self, command: &str) -> Option<Value> {
        Some(match command {
            "status" => status(self),
            "stats" => stats(self),
            "reload" => self.reload(),
            "reopen-log" => match self.service.audit.reopen(self.config().audit_files()) {
                Ok(()) => json!({ "ok": true }),
                Err(error) => json!({ "ok": false, "error": format!("{error:#}") }),
            },
            "promote" => promote(self, false),
            "promote force" => promote(self, true),
            "drain" => {
                self.drain();
                json!({ "ok": true })
            }
            _ if command.starts_with("pull ") => pull(self, &command["pull ".len()..], false),
            _ if command.starts_with("accept-deletions ") => {
                pull(self, &command["accept-deletions ".len()..], true)
            }
            _ if command.starts_with("find ") => index::find(self, &command["find ".len()..]),
            _ => match command.parse::<Command>() {
                Ok(command) => publish(command, self),
                Err(error @ NoCommand::Rest { .. }) => json!({ "error": error.to_string() }),
                Err(NoCommand::Word(_)) => return None,
            },
        })
    }

    fn converse(
        &self,
        command: &str,
        client: &UnixStream,
        reader: &mut ControlReader<'_>,
    ) -> Option<io::Result<()>> {
        match command {
            "restart" => return Some(self.settings.succession().restart(client)),
            "take-over" => return Some(self.settings.succession().offer(client, reader, self)),
            _ => {}
        }
        if let Some(argument) = command.strip_prefix(comparison::COMMAND) {
            return Some(comparison::converse(self, argument, client));
        }
        let argument = command.strip_prefix(relocate::COMMAND)?;
        Some(relocate::converse(self, argument, client))
    }

    fn is_replaced(&self) -> bool {
        self.is_leaving()
    }

    fn line_len_max(&self) -> usize {
        self.config().limits.control_line_bytes
    }
}

/// Makes this mirror the primary.
fn promote(shared: &AdminState, is_forced: bool) -> Value {
    let config = shared.config();
    let promoted = promote::promote(&shared.service.store, &config.site, is_forced, now_unix_ms());
    let promotion = match promoted {
        Ok(promotion) => promotion,
        Err(error) => {
            if matches!(error, PromotionError::SitePending(..)) {
                shared.mirror.iter().for_each(Mirror::stop);
            }
            return json!({ "ok": false, "error": error.to_string() });
        }
    };
    shared.mirror.iter().for_each(Mirror::stop);
    tracing::info!(
        last_transaction = promotion.last_transaction,
        site_serial = promotion.site_serial,
        primaries = %listed(promotion.primaries.iter().map(|primary| &primary.name)),
        "this mirror is the primary from now on"
    );
    match SiteRecord::read(&config.site, config.server_id) {
        Ok(site) => {
            shared.service.decision.become_primary(site);
            json!({ "ok": true, "promotion": promotion, "lines": promotion.lines() })
        }
        Err(error) => {
            let error = format!("{error}: restart handle-admin once the site record is right");
            json!({ "ok": false, "error": error, "promotion": promotion })
        }
    }
}

/// Has a copied source compared at once; if `accepts`, with the deletions that were refused.
fn pull(shared: &AdminState, name: &str, accepts: bool) -> Value {
    let Some(state) = shared.pulls.state(name) else {
        return json!({ "ok": false, "error": format!("no source {name:?} is copied") });
    };
    if !accepts {
        if !is_puller(shared) {
            return json!({ "ok": false, "error": "another process copies, or this is a mirror: give the command there" });
        }
        state.request();
        return json!({ "ok": true });
    }
    match accept_deletions(&shared.service.store, name) {
        Ok(Some(deletions)) => {
            state.request();
            json!({ "ok": true, "deletions": deletions })
        }
        Ok(None) => json!({ "ok": false, "error": "the last comparison has refused no deletions" }),
        Err(error) => json!({ "ok": false, "error": error.to_string() }),
    }
}

/// Hands a command to the publisher.
fn publish(command: Command, shared: &AdminState) -> Value {
    let done = match &shared.publisher {
        Some(publisher) => publisher.command(command).map_err(|error| error.to_string()),
        None => Err("nothing is published: `publish.directory` is not set".to_owned()),
    };
    match done {
        Ok(done) => json!({ "ok": true, "done": done }),
        Err(error) => json!({ "ok": false, "error": error }),
    }
}

/// The state of the store and of this process.
fn status(shared: &AdminState) -> Value {
    let (service, config, site) = (&shared.service, shared.config(), shared.service.decision.site());
    let store = match service.store.stats() {
        Ok(stats) => json!(stats),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let health = shared.health.look(&service.store);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_unix_ms": shared.started_unix_ms(),
        "listen": config.listen,
        "draining": shared.is_draining(),
        "threads_ended": threads::ended(),
        "log_lines_lost": log::lines_lost(),
        "store": {
            "file": service.store.location(),
            "folds": service.store.folds(),
            "content": store,
            "failure": service.store.failure(),
        },
        "index": match service.store.index_progress() {
            Ok(progress) => json!(progress),
            Err(error) => json!({ "error": error.to_string() }),
        },
        "disks": shared.disks.look(&config),
        "publish": shared.publisher.as_ref().map(StorePublisher::status),
        "notices": config.publish.notify.listen.map(|_| json!({ "machines": shared.notices.machines() })),
        "ship": shared.publisher.as_ref().and_then(StorePublisher::ship_status),
        "health": match health {
            Ok(took) => json!({ "ok": true, "probe_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX) }),
            Err(why) => json!({ "ok": false, "why": why }),
        },
        "site": {
            "serial": site.view().serial,
            "primary": site.is_primary(),
            "server": site.server_at() + 1,
            "servers": site.servers_count(),
        },
        "mirrors": mirrors(service),
        "mirror": shared.mirror.as_ref().map(Mirror::status),
        "promotion_refusal": promotion_refusal(shared),
        "mirror_lease": shared.mirror.as_ref().and_then(Mirror::lease),
        "pulls": shared.pulls.status(),
        "signs": service.sealer.key().map(|key| format!("{:?}", key.public())),
    })
}

/// Why a mirror that follows could not change its site record when it is promoted, if it could not.
fn promotion_refusal(shared: &AdminState) -> Option<String> {
    shared.mirror.as_ref()?.primaries()?;
    promote::site_refusal(&shared.config().site).map(|refusal| refusal.to_string())
}

/// The receivers of streams, and their progress.
fn mirrors(service: &AdminService) -> Value {
    let last_id = service.store.last_id();
    let all = service.replication.as_ref().map(|it| it.receivers().all()).unwrap_or_default();
    let rows = all.into_iter().map(|(key, progress)| {
        json!({
            "identity": key.identity,
            "server": key.server_at + 1,
            "behind": last_id.saturating_sub(progress.last_transaction),
            "progress": progress,
        })
    });
    rows.collect()
}

fn stats(shared: &AdminState) -> Value {
    let (service, counters) = (&shared.service, &shared.service.counters);
    let CommitCounts { commits, changes } = service.store.commits();
    let challenges = service.proof.challenges();
    let counts = challenges.counts();
    let CostlyCounts { units, refused, waiting } =
        service.proof.costly().map(CostlyWork::counts).unwrap_or_default();
    json!({
        "requests": counters.requests.sum(),
        "requests_working": shared.connections.working(),
        "connections": { "open": shared.connections.count(), "accepted": counters.connections.get(),
            "refused": counters.connections_refused.get(), "timed_out": counters.connections_timed_out.get(),
            "evicted": counters.connections_evicted.get(), "unread": counters.connections_unread.get(),
            "input_bytes": shared.connections.input_len(), "unread_bytes": shared.connections.unread_len() },
        "audit": service.audit.counts().into_iter().map(|(event, count)| (event.to_owned(), count.into()))
            .collect::<serde_json::Map<_, Value>>(),
        "store": { "commits": commits, "changes": changes, "waiting": service.store.waiting(),
            "errors": counters.store_errors.get(), "last_transaction": service.store.last_id() },
        "challenges": { "issued": counts.issued, "answered": counts.taken, "expired": counts.expired,
            "displaced": counts.displaced,
            "waiting": challenges.len(), "bytes": challenges.bytes() },
        "costly": { "units": units, "refused": refused, "waiting": waiting },
        "bugs": counters.bugs.get(),
    })
}
