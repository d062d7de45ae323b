//! The preparation of a run before its threads start: the questions and the schedule.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use handle_auth::clock::now_unix_s;
use handle_proto::OpFlags;

use crate::error::Error;
use crate::judge::followed_set;
use crate::load::names;
use crate::load::options::{LoadPattern, NameOptions, RunOptions};
use crate::load::question::QuestionForm;
use crate::load::recording::{Recording, RecordingKind, Speed};
use crate::load::schedule::{Arrivals, Phase, Schedule};
use crate::load::transport::StreamTransport;
use crate::load::workload::{RequestSampler, Workload, read_handles};
use crate::read::Interrupt;

/// The questions and the schedule.
#[derive(Debug)]
pub(crate) struct RunJob {
    pub(crate) workload: Workload,
    /// `None` for a closed loop.
    pub(crate) schedule: Option<Schedule>,
    /// Maximum number of requests of a closed loop.
    pub(crate) requests: u64,
    /// Packets or lines of a recording that are not requests.
    pub(crate) skipped: Option<u64>,
}

impl RunJob {
    /// Prepares a run. Calls `go_on` from time to time while names are made or read.
    pub(crate) fn prepare(
        options: &RunOptions,
        mut go_on: impl FnMut() -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        if let NameOptions::Recording { path, port } = &options.names {
            return Self::recorded(options, path, *port, &mut go_on);
        }
        let (sampler, path) = sample(options, &mut Interrupt::new(&mut go_on))?;
        let (too_long, not_homed) = (sampler.too_long(), sampler.not_homed());
        let workload = sampler.finish_as(&options.forms, connection_flags(options), now_unix_s())?;
        if workload.is_empty() {
            return Err(Error::NoHandles { path, too_long, not_homed });
        }
        Ok(Self { workload, schedule: schedule(options), requests: u64::MAX, skipped: None })
    }

    /// The requests of a recording in their order, at their own times or others.
    fn recorded(
        options: &RunOptions,
        path: &Path,
        port: u16,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let (recording, kind) = Recording::read(path, port, &mut *go_on)?;
        let mut requests = recording.requests.iter();
        let workload = match kind {
            RecordingKind::Messages if options.forms != [QuestionForm::default()] => {
                let reason = "--mix cannot be used with a capture, whose requests are sent unchanged";
                return Err(Error::Option(reason.to_owned()));
            }
            RecordingKind::Messages => Workload::of_messages(requests.map(|request| &request.content[..]))?,
            RecordingKind::Names => {
                let mut sampler = RequestSampler::new(usize::MAX, options.seed);
                sampler.for_forms(&options.forms, options.request_len_max());
                let mut interrupt = Interrupt::new(go_on);
                requests.try_for_each(|request| {
                    sampler.offer(&request.content);
                    interrupt.step()
                })?;
                sampler.finish_as(&options.forms, connection_flags(options), now_unix_s())?
            }
        };
        if workload.len() < recording.requests.len() {
            // The times belong to requests: without one of them, the others would be sent at wrong
            // times.
            let reason = "it has handles that are too long for a request".to_owned();
            return Err(Error::Recording { path: path.to_owned(), reason });
        }
        let schedule = match options.load {
            LoadPattern::Recorded(Speed::Times(factor)) => Some(Schedule::recorded(recording.due_ns(factor))),
            LoadPattern::Recorded(Speed::Unbound) | LoadPattern::Closed { .. } => None,
            LoadPattern::Open { .. } | LoadPattern::Phases(_) => schedule(options),
        };
        let is_long =
            |schedule: &Schedule| Duration::from_nanos(schedule.end_ns()) > RunOptions::DURATION_MAX;
        if schedule.as_ref().is_some_and(is_long) {
            let reason = "at this speed it takes longer than a week".to_owned();
            return Err(Error::Recording { path: path.to_owned(), reason });
        }
        let requests = if schedule.is_none() { workload.len() as u64 } else { u64::MAX };
        Ok(Self { workload, schedule, requests, skipped: Some(recording.skipped) })
    }

    /// The same handles in plain requests.
    pub(crate) fn plain(&self, options: &RunOptions) -> Result<Workload, Error> {
        let mut sampler = RequestSampler::new(usize::MAX, 0);
        sampler.for_forms(&[QuestionForm::default()], options.request_len_max());
        (0..).zip(0..self.workload.len()).for_each(|(number, _)| sampler.offer(self.workload.handle(number)));
        sampler.finish_as(&[QuestionForm::default()], connection_flags(options), now_unix_s())
    }
}

/// Servers close a connection after their answer unless asked to keep it.
fn connection_flags(options: &RunOptions) -> OpFlags {
    match options.transport {
        StreamTransport::Stream(streams) if streams.keeps() => OpFlags::KEEP_CONNECTION,
        _ => OpFlags(0),
    }
}

/// The names, and their source.
fn sample(options: &RunOptions, interrupt: &mut Interrupt<'_>) -> Result<(RequestSampler, PathBuf), Error> {
    let mut sampler = RequestSampler::new(options.handles_max, options.seed);
    sampler.for_forms(&options.forms, options.request_len_max());
    let path = match &options.names {
        NameOptions::File(path) => {
            read_handles(path, &mut sampler, interrupt)?;
            path.clone()
        }
        NameOptions::Snapshot(dir) => {
            followed_set::read_handles(&followed_set::open(dir)?, &mut sampler, interrupt)?;
            dir.clone()
        }
        NameOptions::Template(template) => {
            let mut name = String::new();
            for i in 0..template.count() {
                template.write(i, &mut name);
                sampler.offer(name.as_bytes());
                interrupt.step()?;
            }
            PathBuf::from("the template")
        }
        NameOptions::Generated(count) => {
            let mut name = String::new();
            for i in 0..*count {
                names::write_generated(options.seed, i, &mut name);
                sampler.offer(name.as_bytes());
                interrupt.step()?;
            }
            PathBuf::from("the generated list")
        }
        NameOptions::List(handles) => {
            handles.iter().for_each(|handle| sampler.offer(handle));
            PathBuf::from("the list")
        }
        NameOptions::Recording { path, .. } => path.clone(),
    };
    Ok((sampler, path))
}

fn schedule(options: &RunOptions) -> Option<Schedule> {
    let arrivals = if options.poisson { Arrivals::Poisson { seed: options.seed } } else { Arrivals::Even };
    match &options.load {
        LoadPattern::Open { rate } if options.poisson => {
            let phase = Phase::constant(rate.get() as f64, options.duration);
            Some(Schedule::phases(&[phase], arrivals))
        }
        LoadPattern::Open { rate } => Some(Schedule::constant(*rate, options.duration)),
        LoadPattern::Phases(phases) => Some(Schedule::phases(phases, arrivals)),
        LoadPattern::Recorded(_) | LoadPattern::Closed { .. } => None,
    }
}
