//! One turn of a load on a server.

use super::Args;
use super::servers::{HttpForm, HttpServer};
use anyhow::ensure;
use handle_benches::spread::Spread;
use handle_benches::usage::Usage;
use handle_loadgen::load::stream::tls::TlsTrust;
use handle_loadgen::{
    HttpVersion, IdleStrategy, LoadPattern, NameOptions, Protocol, RunOptions, RunReport, StreamTransport,
    Streams,
};
use std::ops::ControlFlow;
use std::time::Duration;

/// Time after which an answer counts as late; a server under valgrind is slow.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is asked of which server.
#[derive(Clone, Copy)]
pub(super) struct HttpLoad<'s> {
    pub(super) name: &'static str,
    pub(super) server: &'s HttpServer,
    pub(super) form: HttpForm,
    pub(super) protocol: Protocol,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadTurn {
    pub(super) answers: u64,
    /// Answers per second.
    pub(super) rate: f64,
    /// Processor time of the server for each answer, in microseconds.
    pub(super) cpu_us: f64,
    /// Processor time of the server per second. Near 1, the server is the limit.
    pub(super) busy: f64,
    /// Processor time of this process, which has the load, per second.
    pub(super) load_busy: f64,
    /// Percentiles of the response times, in microseconds: 50, 99, 99.9.
    pub(super) percentiles_us: [f64; 3],
}

impl HttpLoad<'_> {
    /// The status of every answer.
    const fn status(&self) -> u16 {
        match self.protocol {
            Protocol::Redirect => 302,
            _ => 200,
        }
    }

    fn options(&self, args: &Args, duration: Duration, load: LoadPattern) -> anyhow::Result<RunOptions> {
        let (connections, pipeline) = match self.form.is_http2() {
            false => (args.connections, 1),
            true => (args.http2_connections, args.connections / args.http2_connections),
        };
        let version = if self.form.is_http2() { HttpVersion::Http2 } else { HttpVersion::Http1 };
        let streams = Streams { version, connections, pipeline, ..Streams::pooled(self.protocol) };
        let names = format!("10.1/{{00000000..{:08}}}", args.records - 1);
        let names = names.parse().map_err(|error: String| anyhow::anyhow!(error))?;
        Ok(RunOptions {
            transport: StreamTransport::Stream(streams),
            tls: self.form.is_tls().then_some(TlsTrust::Any),
            load,
            duration,
            timeout: TIMEOUT,
            cores: vec![args.common.client_core],
            idle: IdleStrategy::Spin,
            ..RunOptions::new(self.server.address(), NameOptions::Template(names))
        })
    }

    /// Requests as fast as answers arrive.
    pub(super) fn run(&self, args: &Args, duration: Duration) -> anyhow::Result<LoadTurn> {
        self.turn(args, duration, LoadPattern::Closed { window: args.connections })
    }

    /// Requests as `load` says.
    pub(super) fn turn(
        &self,
        args: &Args,
        duration: Duration,
        load: LoadPattern,
    ) -> anyhow::Result<LoadTurn> {
        let options = self.options(args, duration, load)?;
        let (before, load_before) = (self.server.usage()?, Usage::of(std::process::id())?);
        let report = handle_loadgen::run(&options, |_| ControlFlow::Continue(()))?;
        let used = (self.server.usage()? - before).total().as_secs_f64();
        let load_used = (Usage::of(std::process::id())? - load_before).total().as_secs_f64();
        self.check(&report)?;
        let (answers, times) = (report.accounts.answered, &report.response_ns);
        Ok(LoadTurn {
            answers,
            rate: report.answered_per_s,
            cpu_us: used * 1e6 / answers as f64,
            busy: used * report.answered_per_s / answers as f64,
            load_busy: load_used * report.answered_per_s / answers as f64,
            percentiles_us: [times.p50, times.p99, times.p99_9].map(|ns| ns as f64 / 1e3),
        })
    }

    /// Checks that all requests were answered as expected.
    fn check(&self, report: &RunReport) -> anyhow::Result<()> {
        let (accounts, statuses) = (&report.accounts, &report.statuses);
        let name = self.name;
        ensure!(accounts.answered > 0, "{name}: no answers: {:?}", report.first_failure);
        let bad = accounts.lost + accounts.late + accounts.malformed + accounts.not_sent;
        ensure!(bad * 1000 <= accounts.answered, "{name}: {bad} requests failed: {:?}", report.invalid);
        let is_expected = statuses.len() == 1 && statuses[0].status == self.status();
        ensure!(is_expected, "{name}: unexpected answers: {statuses:?}");
        Ok(())
    }
}

/// The spread of a figure.
pub(super) fn spread(turns: &[LoadTurn], figure: impl Fn(&LoadTurn) -> f64) -> Spread {
    Spread::of(turns.iter().map(figure))
}

/// The spread of the ratio of two figures of the same round.
pub(super) fn ratio(turns: &[LoadTurn], base: &[LoadTurn], figure: impl Fn(&LoadTurn) -> f64) -> Spread {
    Spread::of(turns.iter().zip(base).map(|(turn, base)| figure(turn) / figure(base)))
}
