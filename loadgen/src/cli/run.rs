//! `run` and `find-max`: turns arguments into options, and writes output during and after the run.

use std::env;
use std::io::{self, IsTerminal as _, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::judge::replay;
use crate::load::find_max::{RateBound, Search, find_max};
use crate::load::phases::{self, BadLine};
use crate::load::schedule::Phase;
use crate::load::stream::tls::TlsTrust;
use crate::read::{SCHEDULE_LEN_MAX, whole};
use crate::show::html;
use crate::show::live::{LiveView, Screen};
use crate::show::prometheus::Exporter;
use crate::show::series::{HistogramLog, write_csv};
use crate::{
    Error, HttpVersion, KeySource, LimitReport, LoadPattern, NameOptions, QuestionForm, ReferenceData,
    RunOptions, RunReport, SecondCounts, StreamTransport, Streams, Verify, run,
};
use anyhow::{Context, bail};

use super::args::{AskArgs, FindMaxArgs, RunArgs};
use super::files::{check_files, create, write, write_json, write_text};
use super::text::TextOutput;
use super::{BROKEN, INVALID, go_on, resolve, stop_on_signal};

/// Load and timeout of `--quick`: with the wait for late answers, five seconds in total.
const QUICK: (Duration, Duration) = (Duration::from_secs(4), Duration::from_millis(400));

pub(super) fn run_command(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let limit = args.share_of.as_deref().map(LimitReport::read).transpose()?;
    let options = run_options(args)?;
    check_files(&files(args))?;
    let stop = stop_on_signal()?;
    let mut watchers = Watchers::open(args, &options)?;
    let mut report = run(&options, |second| {
        watchers.each(second);
        let go_on = go_on(&stop);
        if go_on.is_break() {
            watchers.leave();
        }
        go_on
    })?;
    let text = watchers.text;
    let watched = watchers.finish();
    if let Some(limit) = &limit {
        report.share_of(limit);
    }
    let all_hold = report.judge(&args.assertions);
    text.put(format_args!("{}{report}", if args.quiet { "" } else { "\n" }));
    // A failed output during the run must not lose its results.
    write_files(args, &report)?;
    watched?;
    Ok(match (report.is_valid(), all_hold) {
        (false, _) => ExitCode::from(INVALID),
        (true, false) => ExitCode::from(BROKEN),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// All outputs of a run.
fn files(args: &RunArgs) -> [Option<&Path>; 5] {
    let RunArgs { json, html, csv, histogram_log, mismatches, .. } = args;
    [json, html, csv, histogram_log, mismatches].map(Option::as_deref)
}

/// The outputs of each second.
struct Watchers {
    text: TextOutput,
    output: RunOutput,
    log: Option<HistogramLog<Box<dyn Write>>>,
    exporter: Option<Exporter>,
    /// The first error of these outputs, which does not end the run.
    failed: Option<io::Error>,
}

enum RunOutput {
    Nothing,
    Lines,
    Screen(Box<(Screen, LiveView)>),
}

impl RunOutput {
    /// The live view on a terminal that supports it, otherwise lines.
    fn open(args: &RunArgs, options: &RunOptions, text: TextOutput) -> Self {
        if args.quiet {
            return Self::Nothing;
        }
        let is_dumb = env::var_os("TERM").is_some_and(|name| name == "dumb");
        if args.plain || !text.is_on_stdout() || !io::stdout().is_terminal() || is_dumb {
            return Self::Lines;
        }
        let title = format!("handle-loadgen: {} over {}", options.target, options.transport);
        let duration = match &options.load {
            LoadPattern::Recorded(_) => None,
            LoadPattern::Phases(phases) => Some(phases.iter().map(|phase| phase.duration).sum()),
            LoadPattern::Open { .. } | LoadPattern::Closed { .. } => Some(options.duration),
        };
        // https://no-color.org: any text except an empty one.
        let is_colored = env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
        let view = LiveView::new(title, duration.as_ref().map(Duration::as_secs_f64), is_colored);
        Screen::open().map_or(Self::Lines, |screen| Self::Screen(Box::new((screen, view))))
    }

    fn each(&mut self, second: &SecondCounts, text: TextOutput) -> io::Result<()> {
        match self {
            Self::Nothing => {}
            _ if second.is_rest => {}
            Self::Lines => text.line(second),
            Self::Screen(shown) => {
                let (screen, view) = &mut **shown;
                view.add(second);
                screen.show(view)?;
            }
        }
        Ok(())
    }
}

impl Watchers {
    fn open(args: &RunArgs, options: &RunOptions) -> anyhow::Result<Self> {
        let log = args.histogram_log.as_deref().map(|path| {
            let file = create(path).with_context(|| format!("cannot write {}", path.display()));
            file.map(HistogramLog::new)
        });
        let exporter = args.prometheus.map(|address| {
            Exporter::listen(address).with_context(|| format!("cannot listen on {address} for Prometheus"))
        });
        let (log, exporter) = (log.transpose()?, exporter.transpose()?);
        let text = TextOutput::beside(&files(args));
        Ok(Self { text, output: RunOutput::open(args, options, text), log, exporter, failed: None })
    }

    fn each(&mut self, second: &SecondCounts) {
        let shown = self.output.each(second, self.text);
        if let Some(exporter) = &mut self.exporter {
            exporter.update(second);
        }
        let logged = self.log.as_mut().map_or(Ok(()), |log| log.add(second));
        if let Err(error) = shown.and(logged) {
            self.failed.get_or_insert(error);
        }
    }

    /// Restores the terminal: a second signal ends the process at once.
    fn leave(&mut self) {
        self.output = RunOutput::Nothing;
    }

    fn finish(self) -> anyhow::Result<()> {
        let failed = "cannot write the histogram log, or show the live view";
        self.failed.map_or(Ok(()), |error| Err(error).context(failed))
    }
}

/// Writes all outputs that can be written, and returns the first error.
fn write_files(args: &RunArgs, report: &RunReport) -> anyhow::Result<()> {
    let page = |path: &Path| {
        let json = serde_json::to_value(report).context("cannot write the report as a page")?;
        write_text(path, &html::page(&json).map_err(Error::Option)?)
    };
    let mismatches = report.verification.as_ref().map_or(&[][..], |verification| &verification.mismatches);
    let written = [
        write_json(args.json.as_deref(), report),
        args.html.as_deref().map_or(Ok(()), page),
        args.csv.as_deref().map_or(Ok(()), |path| write(path, |file| write_csv(report, file))),
        args.mismatches.as_deref().map_or(Ok(()), |path| write(path, |file| replay::write(mismatches, file))),
    ];
    written.into_iter().collect()
}

fn run_options(args: &RunArgs) -> anyhow::Result<RunOptions> {
    let mut options = ask_options(&args.ask)?;
    (options.duration, options.poisson) = (args.duration, args.poisson);
    if args.quick {
        (options.duration, options.timeout) = QUICK;
    }
    if let Some(verify) = &mut options.verify {
        verify.keep = args.keep_mismatches;
    }
    options.load = load(args, options.duration)?;
    Ok(options)
}

fn load(args: &RunArgs, duration: Duration) -> anyhow::Result<LoadPattern> {
    if let Some(rate) = args.rate {
        return Ok(LoadPattern::Open { rate });
    }
    if let Some((from, to)) = args.ramp {
        return Ok(LoadPattern::Phases(vec![Phase { duration, from, to }]));
    }
    if let Some(path) = &args.schedule {
        return Ok(LoadPattern::Phases(read_schedule(path)?));
    }
    if let Some(speed) = args.speed {
        return Ok(LoadPattern::Recorded(speed));
    }
    if args.steps.is_empty() {
        return Ok(LoadPattern::Closed { window: args.window });
    }
    let steps = u32::try_from(args.steps.len()).unwrap_or(u32::MAX);
    Ok(LoadPattern::Phases(args.steps.iter().map(|rate| Phase::constant(*rate, duration / steps)).collect()))
}

fn read_schedule(path: &Path) -> Result<Vec<Phase>, Error> {
    let bad = |BadLine { line, reason }| Error::Line { path: path.to_owned(), line, reason };
    let text = String::from_utf8(whole(path, SCHEDULE_LEN_MAX)?).map_err(|error| Error::Read {
        path: path.to_owned(),
        source: io::Error::other(error.utf8_error()),
    })?;
    phases::read(&text).map_err(bad)
}

/// The options that `run` and `find-max` share.
fn ask_options(args: &AskArgs) -> anyhow::Result<RunOptions> {
    let target = resolve(&args.target)?;
    let names = match args {
        AskArgs { handles: Some(file), .. } => NameOptions::File(file.clone()),
        AskArgs { template: Some(template), .. } => NameOptions::Template(template.clone()),
        AskArgs { generate: Some(count), .. } => NameOptions::Generated(count.get()),
        AskArgs { replay: Some(path), .. } => {
            NameOptions::Recording { path: path.clone(), port: args.replay_port.unwrap_or(target.port()) }
        }
        AskArgs { snapshot: Some(dir), .. } => NameOptions::Snapshot(dir.clone()),
        _ => bail!(Error::Option("no handles to ask for: give --handles FILE or --snapshot DIR".to_owned())),
    };
    let truth = match (args.verify, &args.snapshot, &args.records) {
        (true, Some(dir), _) => Some(ReferenceData::Snapshot(dir.clone())),
        (_, _, Some(file)) => Some(ReferenceData::Records(file.clone())),
        _ => args.first_pass.then_some(ReferenceData::FirstPass),
    };
    let verify = truth.map(|truth| Verify {
        staleness_max: args.staleness,
        every: args.verify_every,
        key: match &args.server_key {
            Some(path) => Some(KeySource::File(path.clone())),
            None => args.ask_server_key.then_some(KeySource::Server),
        },
        ..Verify::with(truth)
    });
    let transport = match (args.transport, args.connections, args.pipeline, args.per_connection) {
        (StreamTransport::Stream(streams), connections, pipeline, requests) => {
            StreamTransport::Stream(Streams {
                connections: connections.unwrap_or(streams.connections),
                pipeline: pipeline.unwrap_or(streams.pipeline),
                requests: requests.unwrap_or(streams.requests),
                version: if args.http2 { HttpVersion::Http2 } else { HttpVersion::Http1 },
                ..streams
            })
        }
        (datagrams, None, None, None) if !args.http2 => datagrams,
        (datagrams, ..) => {
            let reason = "--connections, --pipeline, --per-connection and --http2 need a transport with connections (tcp, http, http-json, http-redirect)";
            bail!(Error::Option(format!("{reason}, not {datagrams}")))
        }
    };
    let forms = if args.forms.is_empty() { vec![QuestionForm::default()] } else { args.forms.clone() };
    Ok(RunOptions {
        host: Some(args.target.clone()),
        transport,
        tls: match (&args.ca, args.pin) {
            (Some(path), _) => Some(TlsTrust::Authorities(path.clone())),
            (None, Some(pin)) => Some(TlsTrust::Pin(pin)),
            (None, None) => args.insecure.then_some(TlsTrust::Any),
        },
        handles_max: args.handles_max,
        pattern: args.pattern,
        forms,
        timeout: args.timeout,
        verify,
        seed: args.seed,
        threads: args.threads,
        sources: args.sources,
        cores: args.cores.clone(),
        datapath: args.datapath,
        idle: args.pacing,
        ..RunOptions::new(target, names)
    })
}

pub(super) fn find_max_command(args: &FindMaxArgs) -> anyhow::Result<ExitCode> {
    let options = ask_options(&args.ask)?;
    check_files(&[args.json.as_deref()])?;
    let stop = stop_on_signal()?;
    let search = Search {
        rate_min: args.from.get(),
        rate_max: args.to.get(),
        loss_max: args.loss,
        p99_max: args.p99,
        precision: args.precision,
        trial: args.trial,
        confirm: args.confirm,
        repeat: args.repeat,
    };
    let at = |rate: u64, duration: Duration| {
        let rate =
            rate.try_into().map_err(|_| Error::Option("the rate must be greater than 0".to_owned()))?;
        let options = RunOptions { load: LoadPattern::Open { rate }, duration, ..options.clone() };
        let mut stopped = false;
        let report = run(&options, |_| {
            stopped = go_on(&stop).is_break();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if stopped { Err(Error::Stopped) } else { Ok(report) }
    };
    if !args.warm_up.is_zero() {
        at(args.from.get(), args.warm_up)?;
    }
    let text = TextOutput::beside(&[args.json.as_deref()]);
    let report = find_max(&search, at, |trial, is_good| {
        if !args.quiet {
            text.line(format_args!("{trial}  {}", if is_good { "good" } else { "too high" }));
        }
    })?;
    text.put(format_args!("{}{report}", if args.quiet { "" } else { "\n" }));
    write_json(args.json.as_deref(), &report)?;
    Ok(match (report.rate, report.bound) {
        (Some(_), _) => ExitCode::SUCCESS,
        (None, RateBound::Stopped) => ExitCode::from(INVALID),
        (None, _) => ExitCode::from(BROKEN),
    })
}
