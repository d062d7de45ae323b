//! Sessions that several processes over one database share.
//!
//! Each session has a row, which is written when the session is set up: that costs a fraction of
//! the key exchange before it. A process accepts a message by a change of the row that records the
//! counter of the message, and that succeeds only if no other change was made since the process
//! read the row. So of all processes, one accepts a message, also if some are killed: what was
//! accepted is in the row. A process that finds the row changed reads it again, and with it an
//! identity that has been authenticated elsewhere. The same change reserves the counter of the
//! answer.
//!
//! The table of a process has the sessions that were set up there and those in which it has
//! accepted a message. Limits by source hold for each table. A session that is displaced from one
//! of them ends.

use crate::facts::{
    COUNTERS_SINCE, NewSession, PROTECTED_SINCE, SessionIdentity, SessionKeys, SessionRefusal,
};
use crate::link::AnySession;
use crate::numbers;
use crate::row::{
    COUNTERS_LEN, RowChange, RowFacts, RowState, RowsUnavailable, SessionRow, SessionRows, SharedCounters,
};
use crate::session::Session;
use crate::table::SessionTable;
use crate::traffic::{LiveSession, MessageRejection};
use handle_daemon::threads::lock;
use handle_proto::wire::list::Reference;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Look-ups of numbers that are not in the table of this process, at a time. Numbers can be made
/// up, and each look-up takes a connection to the database.
pub const LOOKS_MAX: usize = 4;
/// Time that a look-up waits for its turn.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// Attempts to change a row that other processes change at the same time.
const CHANGES_MAX: usize = 64;
/// Numbers that a set-up tries before it fails.
const NUMBERS_MAX: usize = 8;
/// Counters that are reserved at once for the messages of an answer beyond the first.
const RESERVED_COUNT: u32 = 8;
/// The last counter of outgoing messages.
const COUNTER_MAX: u32 = i32::MAX.cast_unsigned();

/// Reason why a session that is shared was not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedRefusal {
    /// The table of this process refuses the session.
    Table(SessionRefusal),
    /// The rows cannot be reached.
    Rows(RowsUnavailable),
}

impl From<RowsUnavailable> for SharedRefusal {
    fn from(error: RowsUnavailable) -> Self {
        Self::Rows(error)
    }
}

/// The sessions of this process and of others, over one database.
#[derive(Debug)]
pub struct SharedSessions {
    rows: Arc<dyn SessionRows>,
    table: Arc<SessionTable>,
    /// Look-ups under way.
    looks: Mutex<usize>,
    look_ended: Condvar,
}

/// A turn to look up a number.
struct LookUpTurn<'a>(&'a SharedSessions);

impl Drop for LookUpTurn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.looks) -= 1;
        self.0.look_ended.notify_one();
    }
}

impl SharedSessions {
    /// The sessions of `rows`, of which those used here are in `table`.
    #[must_use]
    pub fn new(rows: Arc<dyn SessionRows>, table: Arc<SessionTable>) -> Arc<Self> {
        Arc::new(Self { rows, table, looks: Mutex::new(0), look_ended: Condvar::new() })
    }

    /// The session `session`, used by its row.
    pub(crate) fn with_row(self: &Arc<Self>, session: Arc<Session>) -> AnySession {
        Arc::new(SharedSession { session, shared: Arc::clone(self) })
    }

    /// Adds a new session. The arguments are those of [`SessionTable::open`].
    ///
    /// # Errors
    /// When the table refuses the session, or the rows cannot be reached.
    pub fn open(
        &self,
        new: &NewSession,
        mut numbers: impl FnMut() -> u32,
        is_taken: impl Fn(i32) -> bool,
        now_s: u32,
    ) -> Result<i32, SharedRefusal> {
        for _ in 0..NUMBERS_MAX {
            let opened = self.table.open(new.clone(), &mut numbers, &is_taken, now_s);
            self.remove_displaced();
            let session = opened.map_err(SharedRefusal::Table)?;
            let id = session.keys().id;
            // Numbers of sessions are used again; their versions are not, so that no process takes
            // the row for that of a session that has ended.
            let version = i64::from_be_bytes(handle_auth::random()) >> 2;
            let facts = RowFacts::encode(&session, None);
            let row = SessionRow { version, facts, counters: SharedCounters::default().to_bytes() };
            let inserted = self.rows.insert(id, &row, session.lasts_s());
            if inserted == Ok(true) {
                session.set_row(RowState::of(&row));
                return Ok(id);
            }
            self.table.forget(&session);
            inserted?;
        }
        Err(SharedRefusal::Table(SessionRefusal::NoNumber))
    }

    /// Looks up a session that is not in the table of this process.
    ///
    /// # Errors
    /// When the rows cannot be reached, or too many other look-ups wait.
    pub fn look_up(self: &Arc<Self>, id: i32, now_s: u32) -> Result<Option<AnySession>, RowsUnavailable> {
        if !numbers::is_of_admin_session(id) {
            return Ok(None);
        }
        let _turn = self.take_turn()?;
        let Some(row) = self.rows.read(id)? else { return Ok(None) };
        let Some(facts) = RowFacts::decode(&row.facts) else { return Ok(None) };
        let state = RowState::of(&row);
        let session = self.table.session(id, facts.new, now_s);
        if state.counters.is_proven {
            session.touch(now_s);
        }
        facts.identity.into_iter().for_each(|identity| session.set_identity(identity));
        session.set_row(state);
        Ok(Some(self.with_row(Arc::new(session))))
    }

    /// Waits for a turn to look up a number.
    fn take_turn(&self) -> Result<LookUpTurn<'_>, RowsUnavailable> {
        let looks = lock(&self.looks);
        let waited = self.look_ended.wait_timeout_while(looks, LOOK_TIMEOUT, |looks| *looks >= LOOKS_MAX);
        let (mut looks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *looks >= LOOKS_MAX {
            return Err(RowsUnavailable);
        }
        *looks += 1;
        Ok(LookUpTurn(self))
    }

    /// Ends a session for all processes. Returns whether it existed.
    ///
    /// # Errors
    /// When the rows cannot be reached; the session then goes on.
    pub fn end(&self, id: i32) -> Result<bool, RowsUnavailable> {
        if !numbers::is_of_admin_session(id) {
            return Ok(false);
        }
        let removed = self.rows.remove(&[id])?;
        Ok(self.table.end(id) || removed > 0)
    }

    /// Removes the rows whose time is over.
    pub fn expire(&self) {
        // Tried again later; such rows are not used in any case.
        let _ = self.rows.expire();
    }

    /// Ends the sessions that made room in the table of this process. Those whose rows cannot be
    /// removed end when their time is over.
    fn remove_displaced(&self) {
        let displaced = self.table.take_displaced();
        if !displaced.is_empty() {
            let _ = self.rows.remove(&displaced);
        }
    }
}

/// A session that is used by its row.
#[derive(Debug)]
struct SharedSession {
    session: Arc<Session>,
    shared: Arc<SharedSessions>,
}

/// A change of a row that a process wants to make.
struct ProposedChange {
    counters: SharedCounters,
    facts: Option<Zeroizing<Vec<u8>>>,
    lasts_s: Option<u32>,
    /// Counters of outgoing messages that the change reserves.
    reserved: Range<u32>,
}

impl SharedCounters {
    /// Reserves `count` counters of outgoing messages; none when there are no more.
    fn reserve(&mut self, count: u32) -> Range<u32> {
        let from = self.sent;
        self.sent = from.saturating_add(count).min(COUNTER_MAX);
        from..self.sent
    }
}

impl SharedSession {
    /// Makes the change that `propose` makes of the current row. `propose` is called again when
    /// another process has changed the row.
    fn change(
        &self,
        state: &mut RowState,
        propose: impl Fn(SharedCounters) -> Result<ProposedChange, MessageRejection>,
    ) -> Result<(), MessageRejection> {
        let id = self.session.keys().id;
        for _ in 0..CHANGES_MAX {
            let change = propose(SharedCounters::from_bytes(&state.counters.to_bytes()))?;
            let counters: [u8; COUNTERS_LEN] = change.counters.to_bytes();
            let (facts, version) = (change.facts.as_ref().map(|facts| &facts[..]), state.version);
            let row_change = RowChange { version, facts, counters: &counters, lasts_s: change.lasts_s };
            match self.shared.rows.change(id, row_change) {
                Ok(true) => {
                    (state.version, state.counters) = (state.version + 1, change.counters);
                    if !change.reserved.is_empty() {
                        state.reserved = change.reserved;
                    }
                    return Ok(());
                }
                Ok(false) => self.read_again(state)?,
                Err(RowsUnavailable) => return Err(MessageRejection::Unavailable),
            }
        }
        Err(MessageRejection::Unavailable)
    }

    /// Reads the row after another process has changed it.
    fn read_again(&self, state: &mut RowState) -> Result<(), MessageRejection> {
        let keys = self.session.keys();
        let row = self.shared.rows.read(keys.id).map_err(|RowsUnavailable| MessageRejection::Unavailable)?;
        // A row with a lower version is from before a loss of the database. One with another key is
        // that of another session, which has got the number since.
        let row = row.filter(|row| row.version >= state.version);
        let facts = row.as_ref().and_then(|row| RowFacts::decode(&row.facts));
        let facts = facts.filter(|facts| facts.new.key == *keys.mac.key());
        let (Some(row), Some(facts)) = (row, facts) else { return Err(MessageRejection::Ended) };
        facts.identity.into_iter().for_each(|identity| self.session.set_identity(identity));
        (state.version, state.counters) = (row.version, SharedCounters::from_bytes(&row.counters));
        Ok(())
    }

    fn state(&self) -> Option<MutexGuard<'_, RowState>> {
        self.session.row().map(lock)
    }
}

impl LiveSession for SharedSession {
    fn keys(&self) -> &SessionKeys {
        self.session.keys()
    }

    fn accept(&self, counter: i32, now_s: u32) -> Result<(), MessageRejection> {
        let version = self.session.keys().version;
        let mut state = self.state().ok_or(MessageRejection::Ended)?;
        let needs_counter = state.reserved.is_empty();
        let keeps_alive = |counters: &SharedCounters| version >= PROTECTED_SINCE || !counters.is_proven;
        let was_kept_alive = keeps_alive(&state.counters);
        let accepted = self.change(&mut state, |mut counters| {
            // There are no more counters for answers.
            if counters.sent >= COUNTER_MAX {
                return Err(MessageRejection::Ended);
            }
            if version >= COUNTERS_SINCE && !counters.seen.accept(counter) {
                return Err(MessageRejection::Replayed(counter));
            }
            let lasts_s = keeps_alive(&counters).then(|| self.session.timeout_s());
            counters.is_proven = true;
            let reserved = if needs_counter { counters.reserve(1) } else { 0..0 };
            Ok(ProposedChange { counters, facts: None, lasts_s, reserved })
        });
        drop(state);
        if accepted == Err(MessageRejection::Ended) {
            self.shared.table.forget(&self.session);
        }
        accepted?;
        if was_kept_alive {
            self.session.touch(now_s);
        }
        if !self.shared.table.adopt(&self.session, now_s) {
            tracing::debug!(id = self.session.keys().id, "the table has no room for a session");
        }
        self.shared.remove_displaced();
        Ok(())
    }

    fn next_counter(&self) -> i32 {
        // The client refuses the last counter, and sets up another session.
        let last = i32::MAX;
        let Some(mut state) = self.state() else { return last };
        if state.reserved.is_empty() {
            let reserved = self.change(&mut state, |mut counters| {
                let reserved = counters.reserve(RESERVED_COUNT);
                Ok(ProposedChange { counters, facts: None, lasts_s: None, reserved })
            });
            if reserved.is_err() {
                return last;
            }
        }
        state.reserved.next().map_or(last, |before| (before + 1).min(COUNTER_MAX).cast_signed())
    }

    fn identity(&self) -> Option<SessionIdentity> {
        self.session.identity()
    }

    fn authenticate(&self, claimed: Reference<'_>, index: i32, now_s: u32) -> bool {
        if !self.session.claims(claimed) {
            return false;
        }
        let Some(mut state) = self.state() else { return false };
        let identity = SessionIdentity { index, handle: claimed.handle.into() };
        let authenticated = self.change(&mut state, |mut counters| {
            // Another process may have authenticated the client meanwhile.
            let identity = self.session.proven_identity().unwrap_or(&identity);
            let facts = Some(RowFacts::encode(&self.session, Some(identity)));
            let lasts_s = Some(self.session.timeout_s());
            counters.is_proven = true;
            Ok(ProposedChange { counters, facts, lasts_s, reserved: 0..0 })
        });
        drop(state);
        if authenticated.is_err() {
            return false;
        }
        self.session.set_identity(identity);
        self.session.touch(now_s);
        true
    }
}

#[cfg(test)]
mod tests;
