//! The options of a run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use handle_net::DatapathChoice;
use handle_proto::OpFlags;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;

use crate::error::Error;
use crate::judge::verify::MISMATCHES_MAX;
use crate::load::idle::IdleStrategy;
use crate::load::names::NameTemplate;
use crate::load::pattern::AccessOrder;
use crate::load::question::QuestionForm;
use crate::load::recording::Speed;
use crate::load::schedule::Phase;
use crate::load::stream::tls::TlsTrust;
use crate::load::transport::{HttpVersion, Protocol, StreamTransport, Streams};
use crate::load::workload::REQUEST_LEN_MAX;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The server.
    pub target: SocketAddr,
    /// The host in HTTP requests if it is not the address, which several hosts may share.
    pub host: Option<String>,
    /// The transport of requests.
    pub transport: StreamTransport,
    /// TLS, for requests over HTTP.
    pub tls: Option<TlsTrust>,
    /// The source of the handles.
    pub names: NameOptions,
    /// Maximum number of handles to choose from; a random sample of a larger source.
    pub handles_max: usize,
    /// The order in which handles are requested.
    pub pattern: AccessOrder,
    /// The forms of requests; of several, one is chosen by weight.
    pub forms: Vec<QuestionForm>,
    /// The times at which requests are sent.
    pub load: LoadPattern,
    /// Sends the requests of an open loop at random times (Poisson process).
    pub poisson: bool,
    /// Duration; phases and recordings have their own end.
    pub duration: Duration,
    /// Time after which an answer counts as late, from the actual send time.
    pub timeout: Duration,
    /// The verification of answers.
    pub verify: Option<Verify>,
    /// Seed for the choice of handles. The same seed and threads give the same handles in the same
    /// order.
    pub seed: u64,
    /// Number of threads, each with its own socket.
    pub threads: usize,
    /// Number of source addresses from 127.0.0.2 on; 0 leaves the address to the system.
    pub sources: u16,
    /// Cores, assigned to threads in turn; empty leaves them to the system.
    pub cores: Vec<usize>,
    /// How datagrams are moved.
    pub datapath: DatapathChoice,
    /// How to wait for the next request of an open loop.
    pub idle: IdleStrategy,
}

/// The source of handles.
#[derive(Clone, Debug)]
pub enum NameOptions {
    /// A file with one handle or one JSON record per line.
    File(PathBuf),
    /// The directory of a published set.
    Snapshot(PathBuf),
    /// Names from a template.
    Template(NameTemplate),
    /// A number of generated names, with the lengths of real ones.
    Generated(u64),
    /// A capture or an access log.
    Recording {
        /// The file.
        path: PathBuf,
        /// The UDP port of the requests in a capture.
        port: u16,
    },
    /// These handles.
    List(Vec<Vec<u8>>),
}

/// The times at which requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadPattern {
    /// At intended times with a fixed rate, independent of earlier requests.
    Open {
        /// Requests per second, over all threads.
        rate: NonZeroU64,
    },
    /// The same with a rate that changes.
    Phases(Vec<Phase>),
    /// At the times of a recording.
    Recorded(Speed),
    /// As fast as answers arrive: each thread keeps a number of requests pending.
    Closed {
        /// Pending requests of each thread.
        window: usize,
    },
}

/// The verification of answers.
#[derive(Clone, Debug)]
pub struct Verify {
    /// The reference data.
    pub truth: ReferenceData,
    /// How long after its replacement a set is still accepted.
    pub staleness_max: Duration,
    /// One of this many answers is compared.
    pub every: u32,
    /// Maximum number of mismatches that are kept.
    pub keep: usize,
    /// The public key of the server, which must verify requested signatures.
    pub key: Option<KeySource>,
}

/// The source of the server's public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file with the key in the format of a site record.
    File(PathBuf),
    /// The site record that the server returns. This proves only that the server signs with the key
    /// that it names itself.
    Server,
}

impl Verify {
    /// Compares every answer with `truth`.
    #[must_use]
    pub const fn with(truth: ReferenceData) -> Self {
        Self { truth, staleness_max: RunOptions::STALENESS_MAX, every: 1, keep: MISMATCHES_MAX, key: None }
    }
}

/// The reference data for answers.
#[derive(Clone, Debug)]
pub enum ReferenceData {
    /// The published set in this directory, also while sets are replaced.
    Snapshot(PathBuf),
    /// The records of a file.
    Records(PathBuf),
    /// The answers of a first pass over all handles.
    FirstPass,
}

impl RunOptions {
    /// The defaults of the command line, for a closed loop.
    #[must_use]
    pub fn new(target: SocketAddr, names: NameOptions) -> Self {
        Self {
            target,
            host: None,
            transport: StreamTransport::Udp { trains: false },
            tls: None,
            names,
            handles_max: Self::HANDLES_MAX,
            pattern: AccessOrder::Uniform,
            forms: vec![QuestionForm::default()],
            load: LoadPattern::Closed { window: Self::WINDOW },
            poisson: false,
            duration: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            verify: None,
            seed: 1,
            threads: 1,
            sources: 0,
            cores: Vec::new(),
            datapath: DatapathChoice::Auto,
            idle: IdleStrategy::Auto,
        }
    }

    /// Default of the maximum number of handles.
    pub const HANDLES_MAX: usize = 1_000_000;
    /// Default number of pending requests in a closed loop: enough for full batches, and the
    /// answers fit in the default receive queue of the system.
    pub const WINDOW: usize = 256;
    /// Default time for which a replaced set is accepted.
    pub const STALENESS_MAX: Duration = Duration::from_millis(100);

    /// Maximum number of source addresses.
    pub const SOURCES_MAX: u16 = 10_000;

    /// Longest timeout.
    pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);

    /// Longest run.
    pub const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Checks the options.
    ///
    /// # Errors
    ///
    /// The first invalid option.
    pub(crate) fn check(&self) -> Result<(), Error> {
        const THREADS_MAX: usize = 1024;
        let option =
            |bad: bool, reason: &str| if bad { Err(Error::Option(reason.to_owned())) } else { Ok(()) };
        option(self.threads == 0 || self.threads > THREADS_MAX, "--threads must be 1 to 1024")?;
        option(
            self.duration.is_zero() || self.duration > Self::DURATION_MAX,
            "--duration must be greater than 0, at most a week",
        )?;
        option(
            self.timeout.is_zero() || self.timeout > Self::TIMEOUT_MAX,
            "--timeout must be greater than 0, at most 60s",
        )?;
        option(self.handles_max == 0, "--handles-max must be greater than 0")?;
        let too_many = matches!(self.names, NameOptions::Generated(count) if count > NameTemplate::COUNT_MAX);
        option(too_many, "--generate must be at most 4294967296")?;
        option(self.target.port() == 0, "the target needs a port other than 0")?;
        // The kernel maps it to this host, whose answers then come from another address.
        let is_nobody = self.target.ip().is_unspecified();
        option(is_nobody, "the target is an address to listen on: use 127.0.0.1 or ::1 instead")?;
        self.check_load()?;
        option(self.forms.is_empty(), "at least one form of request is needed")?;
        option(self.forms.len() > QuestionForm::COUNT_MAX, "--mix may be given at most 64 times")?;
        let has_source = self.sources > 0;
        option(has_source && !self.target.ip().is_loopback(), "--sources needs a loopback target")?;
        option(
            has_source && !self.target.is_ipv4(),
            "--sources needs an IPv4 target, because only IPv4 loopback has many addresses",
        )?;
        option(self.sources > Self::SOURCES_MAX, "--sources must be at most 10000")?;
        if let StreamTransport::Stream(streams) = &self.transport {
            let Streams { connections, pipeline, .. } = *streams;
            let bad = connections == 0 || connections > Streams::CONNECTIONS_MAX;
            option(bad, "--connections must be 1 to 10000")?;
            option(pipeline == 0 || pipeline > Streams::PIPELINE_MAX, "--pipeline must be 1 to 1024")?;
        }
        self.check_http()?;
        if let Some(verify) = &self.verify {
            option(verify.every == 0, "--verify-every must be greater than 0")?;
            option(verify.keep > 100_000, "--keep-mismatches must be at most 100000")?;
            let learns = matches!(verify.truth, ReferenceData::FirstPass);
            let is_recorded = matches!(self.names, NameOptions::Recording { .. });
            let asks_all = self.forms.iter().any(|form| !form.flags().has(OpFlags::PUBLIC_ONLY));
            option(learns && asks_all, "a first pass learns public values only: remove `all` from --mix")?;
            option(
                learns && is_recorded,
                "--first-pass cannot be used with a recording: verify with --snapshot or --records",
            )?;
            // Otherwise a run that should check signatures would check none and pass. The questions
            // of a recording are not known yet.
            let certifies = self.forms.iter().any(|form| form.flags().has(OpFlags::CERTIFY));
            option(
                verify.key.is_some() && !certifies && !is_recorded,
                "only answers to certified requests have signatures to check: add --mix certify",
            )?;
        }
        Ok(())
    }

    fn check_http(&self) -> Result<(), Error> {
        let option =
            |bad: bool, reason: &str| if bad { Err(Error::Option(reason.to_owned())) } else { Ok(()) };
        let streams = match &self.transport {
            StreamTransport::Stream(streams) if streams.protocol != Protocol::Tcp => streams,
            StreamTransport::Stream(Streams { version: HttpVersion::Http2, .. }) => {
                return option(true, "--http2 needs a transport over HTTP (http, http-json, http-redirect)");
            }
            _ => {
                let reason = "TLS (--insecure, --ca, --pin) needs a transport over HTTP (http, http-json, http-redirect)";
                return option(self.tls.is_some(), reason);
            }
        };
        let certifies = self.forms.iter().any(|form| form.flags().has(OpFlags::CERTIFY));
        option(
            streams.protocol == Protocol::Json && certifies,
            "answers of the JSON API are not signed: remove `certify` from --mix",
        )?;
        if streams.protocol != Protocol::Redirect {
            return Ok(());
        }
        option(certifies, "redirects are not signed: remove `certify` from --mix")?;
        let asks_all = self.forms.iter().any(|form| !form.flags().has(OpFlags::PUBLIC_ONLY));
        option(asks_all, "redirects follow public values only: remove `all` from --mix")?;
        let learns = matches!(&self.verify, Some(Verify { truth: ReferenceData::FirstPass, .. }));
        let selects = self.forms.iter().any(|form| !form.question(b"").is_plain());
        option(
            learns && selects,
            "a first pass knows where whole records lead: remove `index` and `type` from --mix",
        )
    }

    /// The source addresses of the thread `number`. Each address belongs to one thread, or each
    /// thread has a single one. Empty if the choice is left to the system.
    pub(crate) fn sources_of(&self, number: usize) -> Vec<IpAddr> {
        let (sources, threads) = (usize::from(self.sources), self.threads.max(1));
        if sources == 0 {
            return Vec::new();
        }
        let address = |at: usize| {
            let at = u32::try_from(at).unwrap_or(0);
            IpAddr::from(Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 0, 2).to_bits() + at))
        };
        (number % sources..sources).step_by(threads).map(address).collect()
    }

    /// Length of the longest request that can be sent.
    pub(crate) const fn request_len_max(&self) -> usize {
        match self.transport {
            StreamTransport::Udp { .. } => UDP_MESSAGE_LEN_MAX,
            StreamTransport::Stream(_) => REQUEST_LEN_MAX,
        }
    }

    fn check_load(&self) -> Result<(), Error> {
        const WINDOW_MAX: usize = 1 << 20;
        const RATE_MAX: u64 = 1_000_000_000;
        let option =
            |bad: bool, reason: &str| if bad { Err(Error::Option(reason.to_owned())) } else { Ok(()) };
        let is_recording = matches!(self.names, NameOptions::Recording { .. });
        match &self.load {
            LoadPattern::Closed { window } => {
                option(*window == 0 || *window > WINDOW_MAX, "--window must be 1 to 1048576")
            }
            LoadPattern::Open { rate } => option(rate.get() > RATE_MAX, "--rate must be at most 1000000000"),
            LoadPattern::Recorded(_) => {
                option(!is_recording, "--speed needs a recording: give --replay FILE")
            }
            LoadPattern::Phases(phases) => {
                let is_rate = |rate: f64| (0.0..=RATE_MAX as f64).contains(&rate);
                let is_bad = |phase: &Phase| !is_rate(phase.from) || !is_rate(phase.to);
                option(phases.iter().any(is_bad), "rates must be 0 to 1000000000")?;
                option(phases.len() > 100_000, "a schedule has at most 100000 phases")?;
                let sum = phases.iter().fold(Duration::ZERO, |sum, phase| sum.saturating_add(phase.duration));
                option(sum > Self::DURATION_MAX, "a schedule lasts at most a week")?;
                let nothing =
                    phases.iter().all(|phase| phase.from + phase.to <= 0.0 || phase.duration.is_zero());
                option(nothing, "the schedule sends no requests")
            }
        }
    }

    /// Number of requests that each thread must be able to track: the pending ones, and as many
    /// again, so that late answers are recognised. `rate_max` is that of the schedule.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    pub(crate) fn table_capacity(&self, rate_max: Option<f64>) -> usize {
        match (&self.load, rate_max) {
            (LoadPattern::Closed { window }, _) => (4 * window).max(1 << 18),
            // One use of all slots takes most of a second at the rates that one thread reaches.
            (_, None) => 1 << 18,
            (_, Some(rate)) => {
                let waiting = rate * self.timeout.as_secs_f64() / self.threads as f64;
                (2.0 * waiting) as usize + 1024
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> RunOptions {
        RunOptions::new(([127, 0, 0, 1], 2641).into(), NameOptions::List(vec![b"10.1/a".to_vec()]))
    }

    fn forms(list: &[&str]) -> Vec<QuestionForm> {
        list.iter().map(|form| form.parse().unwrap()).collect()
    }

    fn over(streams: Streams) -> RunOptions {
        RunOptions { transport: StreamTransport::Stream(streams), ..good() }
    }

    fn phases(durations: &[Duration]) -> RunOptions {
        let phases = durations.iter().map(|duration| Phase::constant(1.0, *duration)).collect();
        RunOptions { load: LoadPattern::Phases(phases), ..good() }
    }

    fn phase(rate: f64) -> RunOptions {
        RunOptions {
            load: LoadPattern::Phases(vec![Phase::constant(rate, Duration::from_secs(1))]),
            ..good()
        }
    }

    fn verified(verify: Verify) -> RunOptions {
        RunOptions { verify: Some(verify), ..good() }
    }

    #[test]
    fn each_address_is_of_one_thread_or_each_thread_has_one() {
        let of = |sources, threads, number| {
            let options = RunOptions { sources, threads, ..good() };
            let addresses = options.sources_of(number);
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(0, 3, 1), "");
        assert_eq!(
            (of(5, 2, 0), of(5, 2, 1)),
            ("127.0.0.2 127.0.0.4 127.0.0.6".into(), "127.0.0.3 127.0.0.5".into())
        );
        assert_eq!(
            (of(2, 3, 0), of(2, 3, 1), of(2, 3, 2)),
            ("127.0.0.2".into(), "127.0.0.3".into(), "127.0.0.2".into())
        );
        assert!(of(RunOptions::SOURCES_MAX, 1, 0).ends_with(" 127.0.39.17"));
    }

    #[test]
    fn invalid_options_are_named() {
        assert!(good().check().is_ok());
        assert!(phases(&[RunOptions::DURATION_MAX]).check().is_ok());
        let streams = Streams::pooled(Protocol::Tcp);
        for (bad, part) in [
            (RunOptions { threads: 0, ..good() }, "--threads"),
            (RunOptions { target: ([0; 4], 2641).into(), ..good() }, "listen on"),
            (RunOptions { target: ([0u16; 8], 2641).into(), ..good() }, "listen on"),
            (RunOptions { timeout: Duration::ZERO, ..good() }, "--timeout"),
            (RunOptions { forms: Vec::new(), ..good() }, "one form"),
            (RunOptions { forms: forms(&["plain"; 65]), ..good() }, "64 times"),
            (RunOptions { sources: RunOptions::SOURCES_MAX + 1, ..good() }, "--sources"),
            (RunOptions { sources: 1, target: ([10, 0, 0, 1], 1).into(), ..good() }, "loopback"),
            (RunOptions { load: LoadPattern::Recorded(Speed::Unbound), ..good() }, "--speed"),
            (RunOptions { names: NameOptions::Generated(1 << 33), ..good() }, "--generate"),
            (phase(0.0), "sends no requests"),
            (phase(-1.0), "rates must be"),
            (phases(&[RunOptions::DURATION_MAX, Duration::from_nanos(1)]), "at most a week"),
            (phases(&[Duration::MAX, Duration::MAX]), "at most a week"),
            (phase(2e9), "rates must be"),
            (over(Streams { connections: 10_001, ..streams }), "--connections"),
            (over(Streams { pipeline: 0, ..streams }), "--pipeline"),
            (verified(Verify { every: 0, ..Verify::with(ReferenceData::FirstPass) }), "--verify-every"),
            (
                RunOptions { forms: forms(&["all"]), ..verified(Verify::with(ReferenceData::FirstPass)) },
                "public values only",
            ),
            (
                verified(Verify { key: Some(KeySource::Server), ..Verify::with(ReferenceData::FirstPass) }),
                "add --mix certify",
            ),
            (
                RunOptions { forms: forms(&["certify"]), ..over(Streams::pooled(Protocol::Json)) },
                "not signed",
            ),
            (RunOptions { tls: Some(TlsTrust::Any), ..good() }, "--insecure"),
            (RunOptions { tls: Some(TlsTrust::Any), ..over(streams) }, "over HTTP"),
            (over(Streams { version: HttpVersion::Http2, ..streams }), "--http2"),
            (
                RunOptions { forms: forms(&["all"]), ..over(Streams::pooled(Protocol::Redirect)) },
                "public values only",
            ),
            (
                RunOptions {
                    forms: forms(&["type:URL"]),
                    verify: Some(Verify::with(ReferenceData::FirstPass)),
                    ..over(Streams::pooled(Protocol::Redirect))
                },
                "whole records",
            ),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not say {part}");
        }
    }
}
