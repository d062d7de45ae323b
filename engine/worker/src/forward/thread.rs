//! A thread that forwards requests and waits for their answers.

use super::Forwarder;
use super::queue::ForwardItem;
use super::state::{ForwardStage, ForwardState};
use crate::slow::SlowPath;
use crate::slow::queue::SlowJob;
use handle_daemon::socket::is_too_slow;
use handle_local::client::LocalClient;
use handle_local::forward::{ForwardFrame, ForwardedAnswer};
use handle_local::kind::LocalKind;
use handle_proto::ResponseCode;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Header};
use handle_resolver::RefusalReason;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use zeroize::Zeroizing;

/// One forwarding thread, with its connection to `handle-admin`.
pub(crate) struct ForwardThread {
    path: Arc<SlowPath>,
    lane: Option<LocalClient>,
}

/// The frame of an answer.
type Answer = Zeroizing<Vec<u8>>;

/// Why `handle-admin` did not answer a request.
enum ForwardFailure {
    /// The circuit breaker is open, because `handle-admin` recently took too long.
    BackedOff,
    /// The connection was refused or failed, or the answer took too long.
    Broken(io::Error),
    /// The limit of listings is reached.
    TooManyListings,
}

impl From<io::Error> for ForwardFailure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl ForwardThread {
    pub(crate) fn new(path: &Arc<SlowPath>) -> Self {
        Self { path: Arc::clone(path), lane: None }
    }

    /// Forwards requests until the queue is closed.
    pub(crate) fn run(&mut self) {
        let path = Arc::clone(&self.path);
        let Some(forward) = &path.forward else { return };
        while let Some(item) = forward.queue.next() {
            let mut job = match item {
                ForwardItem::Job(job) => job,
                ForwardItem::End(forwarding) => {
                    forward.counts.abandoned();
                    drop(forwarding);
                    continue;
                }
            };
            // Taken out of the job, so that a bug loses this answer alone and its permit is freed.
            let Some(mut forwarding) = job.forwarding.take() else { continue };
            let step = AssertUnwindSafe(|| self.answer(forward, &mut job, &mut forwarding));
            if catch_unwind(step).is_err() {
                job.answer.clear();
                forwarding.stage = ForwardStage::Over;
                forward.counts.failed();
                forward.breaker.note_answer();
                self.lane = None;
            }
            if forwarding.has_more() {
                job.forwarding = Some(forwarding);
            } else {
                // Its permit is free before the answer is sent.
                drop(forwarding);
            }
            path.queues.give_back(job);
        }
    }

    /// Puts the answer, or its next part, into `job`.
    fn answer(&mut self, forward: &Forwarder, job: &mut SlowJob, forwarding: &mut ForwardState) {
        job.answer.clear();
        let failed = match self.exchange(forward, job, forwarding) {
            Ok(()) => return,
            Err(failed) => failed,
        };
        match failed {
            ForwardFailure::BackedOff => forward.counts.backed_off(),
            ForwardFailure::TooManyListings => forward.counts.refused_listing(),
            ForwardFailure::Broken(error) if is_too_slow(&error) => {
                forward.counts.timed_out();
                forward.breaker.note_failure(Instant::now());
                tracing::warn!(
                    timeout_ms = forward.timeout.as_millis(),
                    "handle-admin did not answer a forwarded request in time"
                );
            }
            ForwardFailure::Broken(error) => {
                forward.counts.failed();
                forward.breaker.note_answer();
                tracing::debug!(%error, "a request could not be forwarded to handle-admin");
            }
        }
        forwarding.stage = ForwardStage::Over;
        if forwarding.signs {
            self.path.sign_late(&mut forwarding.busy, job.route.origin());
        }
        (job.code, job.refused) = (ResponseCode::SERVER_BUSY, Some(RefusalReason::Busy));
        job.put_answer(&forwarding.busy);
    }

    fn exchange(
        &mut self,
        forward: &Forwarder,
        job: &mut SlowJob,
        forwarding: &mut ForwardState,
    ) -> Result<(), ForwardFailure> {
        let (lane, answer) = match std::mem::replace(&mut forwarding.stage, ForwardStage::Over) {
            ForwardStage::Request(frame) => {
                if !forward.breaker.admits(Instant::now()) {
                    return Err(ForwardFailure::BackedOff);
                }
                let begun = self.begin(forward, &frame)?;
                forward.breaker.note_answer();
                begun
            }
            ForwardStage::Listing(mut lane) => {
                lane.send(1, ForwardFrame::encode_next)?;
                let answer = lane.receive()?;
                (lane, answer)
            }
            ForwardStage::Over => return Ok(()),
        };
        let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "an answer of another version");
        match ForwardedAnswer::decode(&answer).ok_or_else(unreadable)? {
            ForwardedAnswer::Last(messages) => {
                (job.code, job.refused) = (code_of(messages), None);
                job.put_answer(messages);
                forward.counts.answered();
                self.lane = Some(lane);
            }
            // Listings are not sent over UDP, and `handle-admin` is told so in the request.
            ForwardedAnswer::Part(_) if job.route.is_datagram() => return Err(unreadable().into()),
            ForwardedAnswer::Part(_) if !forward.permits.begin_listing(&mut forwarding.permit) => {
                return Err(ForwardFailure::TooManyListings);
            }
            ForwardedAnswer::Part(messages) => {
                (job.code, job.refused) = (code_of(messages), None);
                job.put_answer(messages);
                forwarding.stage = ForwardStage::Listing(lane);
            }
        }
        Ok(())
    }

    /// Sends a request and receives the first part of its answer, with the connection of further
    /// parts.
    fn begin(&mut self, forward: &Forwarder, frame: &[u8]) -> io::Result<(LocalClient, Answer)> {
        if let Some(lane) = self.lane.take() {
            match begin_on(lane, frame) {
                // `handle-admin` may have been restarted since. No operation is executed twice: its
                // challenge is taken first, and only open challenges survive the restart.
                Err(error) if !is_too_slow(&error) => {}
                begun => return begun,
            }
        }
        begin_on(LocalClient::connect(&forward.path, LocalKind::Forward, forward.timeout)?, frame)
    }
}

fn begin_on(mut lane: LocalClient, frame: &[u8]) -> io::Result<(LocalClient, Answer)> {
    lane.send_frame(frame)?;
    let answer = lane.receive()?;
    Ok((lane, answer))
}

/// The response code of the first of `messages`. The code of an encrypted message cannot be read.
fn code_of(messages: &[u8]) -> ResponseCode {
    let Ok((envelope, rest)) = Envelope::split(messages) else { return ResponseCode::ERROR };
    match rest.first_chunk::<{ Header::LEN }>() {
        Some(header) if !envelope.flags.has(EnvelopeFlags::ENCRYPTED) => {
            Header::from_bytes(header).response_code
        }
        _ => ResponseCode::SUCCESS,
    }
}
