//! Copies one source: asks for changes, and compares all records from time to time.

use super::error::PullError;
use super::is_puller;
use super::named::NamedHandles;
use super::status::PullState;
use super::task::{PageKind, PageStep, PositionStep, PullRules, PullTask};
use crate::state::AdminState;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::shutdown::Shutdown;
use handle_proto::Handle;
use handle_source::listing::PageEnd;
use handle_source::{PulledSource, SourceError};
use handle_store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a thread that waits looks for a command.
const COMMAND_INTERVAL: Duration = Duration::from_millis(100);
/// Longest pause, after which the position is read again: another process may have written it.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest pause after a comparison that has failed.
const COMPARE_PAUSE_MAX: Duration = Duration::from_secs(600);
/// Most requests for changes that would fit between two comparisons of a source that does not know
/// its changes any more, and the longest time between these.
const LOST_PAUSE: (u32, Duration) = (10, Duration::from_secs(60));

/// Copies one source.
#[derive(Debug)]
pub struct PullWorker {
    source: PulledSource,
    task: PullTask,
    state: Arc<PullState>,
    /// Comparisons in a row that have failed.
    compare_failures: u32,
    /// Before when the next one is not tried.
    compare_not_before: Option<Instant>,
    /// Whether the source has not known its changes since it has told some.
    is_lost: bool,
    /// Whether an operator asks for a comparison.
    is_requested: bool,
}

impl PullWorker {
    /// A worker that has not begun.
    #[must_use]
    pub fn new(source: PulledSource, store: Arc<Store>, state: Arc<PullState>) -> Self {
        let task = PullTask::new(&source, store, Arc::clone(&state));
        Self {
            source,
            task,
            state,
            compare_failures: 0,
            compare_not_before: None,
            is_lost: false,
            is_requested: false,
        }
    }

    /// Copies until the process drains.
    pub fn run(mut self, admin: &AdminState, shutdown: &Shutdown) {
        while !shutdown.is_draining() {
            let pause = match is_puller(admin) {
                true => self.turn_under_rules(admin, shutdown),
                false => {
                    self.state.note_elsewhere();
                    COMMAND_INTERVAL
                }
            };
            let until = Instant::now() + pause;
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !left.is_zero()
                && !shutdown.is_draining()
                && !self.state.is_requested()
            {
                shutdown.poll(&mut [], Some(left.min(COMMAND_INTERVAL)));
            }
        }
    }

    fn turn_under_rules(&mut self, admin: &AdminState, shutdown: &Shutdown) -> Duration {
        let (site, in_force) = (admin.service.decision.site(), admin.service.decision.in_force());
        let rules = PullRules {
            has: &|key| site.has(Handle(key)),
            bounds: in_force.rules.bounds,
            stops: &|| shutdown.is_draining() || !is_puller(admin),
        };
        match self.turn(&rules) {
            Ok(pause) => pause,
            Err(error) if error.is_stop() => Duration::ZERO,
            Err(error) => {
                self.state.note_error(&error);
                let doubled = 1 << self.state.failures().saturating_sub(1).min(16);
                self.source.config.poll().saturating_mul(doubled).min(PAUSE_MAX)
            }
        }
    }

    /// Asks for changes and compares, as far as it is due; returns the time until the next turn.
    ///
    /// # Errors
    /// When the source cannot be copied now.
    pub fn turn(&mut self, rules: &PullRules<'_>) -> Result<Duration, PullError> {
        // A failure before the comparison does not lose the request, and is not repeated at once.
        self.is_requested |= self.state.take_request();
        self.task.begin()?;
        let asked_unix_ms = now_unix_ms();
        if self.task.position().cursor.is_some() && self.follow(asked_unix_ms, rules)? {
            self.state.note_success(asked_unix_ms);
        }
        if self.is_requested || self.compare_in(asked_unix_ms).is_zero() {
            self.is_requested = false;
            self.state.note_comparing(0);
            if let Err(error) = self.compare(asked_unix_ms, rules) {
                self.compare_failures += 1;
                let pause = self.source.config.poll().saturating_mul(1 << self.compare_failures.min(16));
                self.compare_not_before = Some(Instant::now() + pause.min(COMPARE_PAUSE_MAX));
                return Err(error);
            }
            (self.compare_failures, self.compare_not_before) = (0, None);
            self.state.note_compare();
            self.state.note_success(asked_unix_ms);
        }
        let poll = self.task.position().cursor.as_ref().map_or(PAUSE_MAX, |_| self.source.config.poll());
        Ok(poll.min(self.compare_in(now_unix_ms())).min(PAUSE_MAX))
    }

    /// The time until the next comparison.
    fn compare_in(&self, now_unix_ms: u64) -> Duration {
        let position = self.task.position();
        let every = Duration::from_secs(self.source.config.compare_s.into());
        let due_in = match position.compared_unix_ms {
            Some(at) if position.accepted.is_none() && at <= now_unix_ms => {
                every.saturating_sub(Duration::from_millis(now_unix_ms - at))
            }
            // A clock that was set back does not delay it.
            _ => Duration::ZERO,
        };
        let not_before = self.compare_not_before.map(|at| at.saturating_duration_since(Instant::now()));
        due_in.max(not_before.unwrap_or_default())
    }

    /// Asks for all changes since the last cursor; false if they are not known any more.
    fn follow(&mut self, asked_unix_ms: u64, rules: &PullRules<'_>) -> Result<bool, PullError> {
        let until = Instant::now() + self.source.config.listing();
        while let Some(since) = self.task.position().cursor.clone() {
            let Some(end) = self.read_page(Some(&since), PageKind::Changes, until, rules)? else {
                let source = &self.source.name;
                tracing::warn!(source, "a source does not know its changes any more; comparing all records");
                self.task.commit(PositionStep::Lost)?;
                let (polls, most) = LOST_PAUSE;
                let pause = self.source.config.poll().saturating_mul(polls).min(most);
                // One that never knows them is not compared all the time.
                let was_lost = std::mem::replace(&mut self.is_lost, true);
                self.compare_not_before = was_lost.then(|| Instant::now() + pause);
                return Ok(false);
            };
            let cursor = end.cursor.ok_or(PullError::NoCursor)?;
            if end.has_more && cursor == since {
                return Err(PullError::NoProgress);
            }
            self.task.commit(PositionStep::Polled { cursor, unix_ms: asked_unix_ms })?;
            if !end.has_more {
                self.state.note_poll();
                self.is_lost = false;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compares all records.
    fn compare(&mut self, asked_unix_ms: u64, rules: &PullRules<'_>) -> Result<(), PullError> {
        let until = Instant::now() + self.source.config.listing();
        // Before the listing, so that a change during it is seen afterwards.
        let since = self.read_page(None, PageKind::Changes, until, rules)?;
        let cursor = since.map(|end| end.cursor.ok_or(PullError::NoCursor)).transpose()?;
        self.task.begin_compare()?;
        let (mut named, mut after) = (NamedHandles::default(), None::<String>);
        loop {
            let kind = PageKind::Listing(&mut named);
            let end = self.read_page(after.as_deref(), kind, until, rules)?;
            let end = end.ok_or_else(|| {
                SourceError::Invalid("a listing can neither be expired nor unsupported".to_owned())
            })?;
            match end.cursor {
                _ if !end.has_more => break,
                Some(next) if after.as_ref() != Some(&next) => after = Some(next),
                _ => return Err(PullError::NoProgress),
            }
        }
        self.task.end_compare(&named.sorted(), cursor, asked_unix_ms)
    }

    /// Reads a page and stores what it lists; `None` if changes are not known.
    fn read_page(
        &mut self,
        since: Option<&str>,
        mut kind: PageKind<'_>,
        until: Instant,
        rules: &PullRules<'_>,
    ) -> Result<Option<PageEnd>, PullError> {
        let source = &mut self.source.source;
        let mut page = match kind {
            PageKind::Listing(_) => source.list(since)?,
            PageKind::Changes => source.changes(since)?,
        };
        loop {
            if (rules.stops)() {
                return Err(SourceError::Stopped.into());
            }
            if Instant::now() >= until {
                return Err(PullError::SlowListing);
            }
            match self.task.take(page.next_item()?, &mut kind, rules)? {
                PageStep::More => {}
                PageStep::End(end) => return Ok(Some(end)),
                PageStep::Lost => return Ok(None),
            }
            if let PageKind::Listing(named) = &kind {
                self.state.note_comparing(named.len() as u64);
                if named.len() > self.source.config.records {
                    return Err(PullError::TooManyRecords(self.source.config.records));
                }
            }
        }
    }
}
