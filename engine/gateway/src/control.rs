//! The commands of `handle-gateway` on its control socket.

use crate::acme::AcmeState;
use crate::counters::GatewayCounters;
use crate::reload::reload;
use crate::request_log::RequestLogFormat;
use crate::set::MappedSet;
use crate::state::GatewayState;
use crate::tls::TlsIdentity;
use handle_daemon::control::{CommandHelp, ControlCommands, ControlReader};
use handle_daemon::takeover::{self, TakeoverServer as _};
use handle_daemon::{log, threads};
use serde_json::{Map, Value, json};
use std::os::unix::net::UnixStream;

/// The commands and their help.
const COMMANDS: [CommandHelp; 8] = [
    ("status", "what is served since when"),
    ("stats", "counters, and what waits now"),
    ("reload", "read the configuration again, and take the published set now"),
    ("reopen-log", "open the file of the request log again, after it was renamed"),
    ("renew-certificate", "order a certificate by ACME now"),
    ("drain", "answer the requests under way, then exit"),
    ("restart", "start this program again, and let it take over without loss"),
    ("take-over", "sent by the new process to get the sockets"),
];

/// Most bytes of a line: commands are a few words.
const CONTROL_LINE_LEN_MAX: usize = 4096;

impl ControlCommands for GatewayState {
    fn commands(&self) -> Vec<CommandHelp> {
        COMMANDS.to_vec()
    }

    fn run(&self, command: &str) -> Option<Value> {
        Some(match command {
            "status" => status(self),
            "stats" => stats(self),
            "reload" => reload(self),
            "reopen-log" => reopen_log(self),
            "renew-certificate" => renew_certificate(self),
            "drain" => {
                self.drain();
                json!({ "ok": true })
            }
            "restart" => takeover::restart(self.settings.hooks().program.as_ref(), self.handover()),
            _ => return None,
        })
    }

    fn converse(
        &self,
        command: &str,
        client: &UnixStream,
        reader: &mut ControlReader<'_>,
    ) -> Option<std::io::Result<()>> {
        (command == "take-over").then(|| takeover::hand_over(client, reader, self))
    }

    fn is_replaced(&self) -> bool {
        self.is_handed_over()
    }

    fn line_len_max(&self) -> usize {
        CONTROL_LINE_LEN_MAX
    }
}

fn status(state: &GatewayState) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_unix_ms": state.started_unix_ms(),
        "listen": state.settings.current().listen,
        "certificates_listen": state.settings.current().tls.client_certificates.listen,
        "draining": state.is_draining(),
        "threads_ended": threads::ended(),
        "log_lines_lost": log::lines_lost(),
        "workers": { "started": state.process.workers_count, "running": state.running() },
        "set": state.reading.set.as_ref().map(MappedSet::to_json),
        "site": state.reading.site.as_ref().map(|site| json!({
            "serial": site.view().serial,
            "primary": site.is_primary(),
            "server": site.server_at() + 1,
            "servers": site.servers_count(),
        })),
        "upstream": state.reading.upstream.is_some(),
        "certificate": state.tls.as_ref().map(certificate),
    })
}

fn certificate(tls: &TlsIdentity) -> Value {
    let facts = tls.facts();
    json!({
        "names": facts.as_ref().map(|facts| &facts.names),
        "expires_unix_s": facts.as_ref().map(|facts| facts.expires_unix_s),
        "acme": tls.acme().map(AcmeState::to_json),
    })
}

fn reopen_log(state: &GatewayState) -> Value {
    if state.settings.current().request_log.format == RequestLogFormat::Off {
        return json!({ "ok": false, "error": "there is no request log (`request_log.format`)" });
    }
    state.request_log.reopen();
    json!({ "ok": true })
}

fn renew_certificate(state: &GatewayState) -> Value {
    match state.tls.as_ref().and_then(TlsIdentity::acme) {
        Some(acme) => {
            acme.request();
            json!({ "ok": true, "hint": "see `certificate` of status for the result" })
        }
        None => json!({ "ok": false, "error": "there is no certificate by ACME (`tls.acme.domains`)" }),
    }
}

fn stats(state: &GatewayState) -> Value {
    let counters = GatewayCounters::NAMES.iter().zip(state.counters.values());
    let mut stats: Map<String, Value> =
        counters.map(|(name, count)| ((*name).to_owned(), count.into())).collect();
    let logged = state.request_log.counts();
    stats.insert("request_log_lines".to_owned(), logged.written.into());
    stats.insert("request_log_lost".to_owned(), logged.lost.into());
    stats.insert("connections_open".to_owned(), state.connections.count().into());
    if let Some(upstream) = &state.reading.upstream {
        let cache = upstream.client().cache.stats();
        stats.insert(
            "cache".to_owned(),
            json!({ "hits": cache.hits, "misses": cache.misses, "expired": cache.expired,
                "evicted": cache.evicted, "stale": upstream.stale_count(),
                "handles": cache.handles, "bytes": cache.bytes }),
        );
    }
    Value::Object(stats)
}
