//! The connections of one worker: its listener, and its turn after each batch of datagrams.

use super::settings::{CONNECTIONS_BESIDES, TcpSettings};
use super::{ConnectionTurn, TcpConnections};
use crate::config::Config;
use crate::counters::{Counters, Transport};
use crate::slow::queue::{JobRoute, SlowJob};
use crate::slow::shard::ListingReader;
use crate::worker_parts::WorkerParts;
use handle_net::{Datapath, StreamId, bind_listener};
use handle_resolver::AnswerContext;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Binds a listener of a worker, unless TCP is off. The workers of one address share its port.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn listen(config: &Config, address: SocketAddr) -> io::Result<Option<TcpListener>> {
    bind(config, address, true)
}

/// Binds a listener to an address that no other socket has, unless TCP is off.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn listen_alone(config: &Config, address: SocketAddr) -> io::Result<Option<TcpListener>> {
    bind(config, address, false)
}

fn bind(config: &Config, address: SocketAddr, reuse_port: bool) -> io::Result<Option<TcpListener>> {
    let backlog = config.tcp.backlog.into();
    config.tcp.enabled.then(|| bind_listener(address, reuse_port, false, backlog)).transpose()
}

/// The connections of a worker.
pub(crate) struct TcpWorker {
    tcp: TcpConnections,
    listeners: Vec<TcpListener>,
    draining: bool,
}

impl TcpWorker {
    /// Accepts connections from `listeners` on `path`.
    ///
    /// # Errors
    /// When the datapath cannot serve connections.
    pub(crate) fn open(
        config: &Config,
        path: &mut dyn Datapath,
        listeners: Vec<TcpListener>,
    ) -> io::Result<Self> {
        for listener in &listeners {
            path.listen(listener.try_clone()?)?;
        }
        Ok(Self { tcp: TcpConnections::new(config.tcp.clone()), listeners, draining: false })
    }

    /// Applies new settings from now on; open connections stay.
    pub(crate) fn set(&mut self, path: &mut dyn Datapath, settings: &TcpSettings) {
        if let Some((streams, options)) = path.streams().zip(settings.options()) {
            // The datapath needs a slot for a new connection before an idle one can be evicted for
            // it: see `TcpConnections::evict_above_limit`.
            let needed = streams.connections.len() + CONNECTIONS_BESIDES;
            streams.connections.set_max(options.connections_max.max(needed));
        }
        self.tcp.set(settings.clone());
    }

    /// Whether this wait brought events, apart from expired timeouts.
    pub(crate) fn has_events(path: &mut dyn Datapath) -> bool {
        path.streams().is_some_and(|streams| !streams.inbox.is_empty())
    }

    /// The earliest time at which a timeout expires.
    pub(crate) fn next_expiry_ms(&self) -> Option<u64> {
        self.tcp.next_expiry_ms()
    }

    /// Handles the events of the last wait and expired timeouts. Returns the number of events.
    pub(crate) fn turn<B: AsRef<[u8]>>(
        &mut self,
        path: &mut dyn Datapath,
        context: &AnswerContext<'_, B>,
        parts: &mut WorkerParts,
        counters: &Counters,
    ) -> usize {
        let Some(streams) = path.streams() else { return 0 };
        let (inbox, wire) = (streams.inbox, streams.connections);
        let WorkerParts { slow, sealer, telemetry, clock, .. } = parts;
        let (sealer, tap, now_ms) = (sealer.as_mut(), telemetry.tap(), clock.now_ms());
        let defer = &mut |id, source, request: &[u8]| {
            slow.defer(JobRoute::Tcp(id, source), request, clock.now(), counters)
        };
        let mut turn = ConnectionTurn { wire, context, counters, now_ms, defer, sealer, tap };
        for event in inbox.iter() {
            self.tcp.handle(event, &mut turn);
        }
        if self.draining {
            self.tcp.drain(&mut turn);
        }
        self.tcp.tick(&mut turn);
        counters.tcp_output_bytes.set(turn.wire.kept_len_all() as u64);
        inbox.len()
    }

    /// Sends an answer from the slow path; it is empty when a bug lost it. Returns whether the
    /// connection still exists.
    pub(crate) fn reply<B: AsRef<[u8]>>(
        &mut self,
        path: &mut dyn Datapath,
        id: StreamId,
        job: &SlowJob,
        context: &AnswerContext<'_, B>,
        parts: &mut WorkerParts,
        counters: &Counters,
    ) -> bool {
        if job.is_continued {
            // A continued answer was counted with its first part.
        } else if job.answer.is_empty() {
            counters.tcp_dropped_bug.add(1);
        } else {
            counters.tcp_requests_answered.add(1);
            counters.count_reply(Transport::Tcp, job.code, job.refused);
        }
        let Some(streams) = path.streams() else { return false };
        let WorkerParts { slow, sealer, telemetry, clock, .. } = parts;
        let (sealer, tap, now_ms) = (sealer.as_mut(), telemetry.tap(), clock.now_ms());
        let defer = &mut |id, source, request: &[u8]| {
            slow.defer(JobRoute::Tcp(id, source), request, clock.now(), counters)
        };
        let wire = streams.connections;
        let mut turn = ConnectionTurn { wire, context, counters, now_ms, defer, sealer, tap };
        self.tcp.reply(id, &job.answer, !job.has_more(), &mut turn)
    }

    /// The state of the client that reads a listing on connection `id`.
    pub(crate) fn reader(&self, id: StreamId) -> ListingReader {
        self.tcp.reader(id)
    }

    /// Finishes the requests in progress and accepts no new connections. With `taken`, another
    /// process accepts them; otherwise they are refused.
    pub(crate) fn drain(&mut self, path: &mut dyn Datapath, taken: bool) {
        if !self.draining {
            self.draining = true;
            path.stop_listening();
            let close = |listener| handle_net::close_listener(listener);
            if !taken && let Err(error) = self.listeners.iter().try_for_each(close) {
                tracing::warn!(%error, "cannot close a listener before the worker ends");
            }
        }
    }

    /// Whether no request is in progress or, with `wholly`, no connection is left.
    pub(crate) fn is_quiet(&self, wholly: bool) -> bool {
        if wholly { self.tcp.is_empty() } else { self.tcp.is_quiet() }
    }

    /// Aborts all remaining connections.
    pub(crate) fn abort_all<B: AsRef<[u8]>>(
        &mut self,
        path: &mut dyn Datapath,
        context: &AnswerContext<'_, B>,
        counters: &Counters,
    ) {
        if let Some(streams) = path.streams() {
            let (wire, defer) = (streams.connections, &mut |_, _, _: &[u8]| false);
            self.tcp.abort_all(&mut ConnectionTurn {
                wire,
                context,
                counters,
                now_ms: 0,
                defer,
                sealer: None,
                tap: None,
            });
        }
    }
}
