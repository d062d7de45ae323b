use super::*;
use crate::facts::IdentityClaim;
use crate::table::SessionLimits;
use crate::table::tests::{limits, new_session};
use handle_auth::session::SessionKey;
use handle_auth::source::RequestOrigin;
use handle_proto::code::Cipher;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };

/// The rows of all processes of a test, in memory. Their time is not over before a test says so.
#[derive(Debug, Default)]
struct TestRows {
    rows: Mutex<BTreeMap<i32, SessionRow>>,
    lasts_s: Mutex<Vec<u32>>,
    is_down: AtomicBool,
    /// Look-ups under way, and the most of them.
    reading: AtomicUsize,
    reading_most: AtomicUsize,
    /// Awaited by each look-up, if there is one.
    pause: Option<Barrier>,
}

impl TestRows {
    fn rows(&self) -> Result<MutexGuard<'_, BTreeMap<i32, SessionRow>>, RowsUnavailable> {
        match self.is_down.load(Ordering::Relaxed) {
            true => Err(RowsUnavailable),
            false => Ok(self.rows.lock().unwrap()),
        }
    }
}

impl SessionRows for TestRows {
    fn insert(&self, id: i32, row: &SessionRow, lasts_s: u32) -> Result<bool, RowsUnavailable> {
        let mut rows = self.rows()?;
        self.lasts_s.lock().unwrap().push(lasts_s);
        Ok(!rows.contains_key(&id) && rows.insert(id, row.clone()).is_none())
    }

    fn read(&self, id: i32) -> Result<Option<SessionRow>, RowsUnavailable> {
        let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.reading_most.fetch_max(reading, Ordering::SeqCst);
        if let Some(pause) = &self.pause {
            pause.wait();
        }
        self.reading.fetch_sub(1, Ordering::SeqCst);
        Ok(self.rows()?.get(&id).cloned())
    }

    fn change(&self, id: i32, change: RowChange<'_>) -> Result<bool, RowsUnavailable> {
        let mut rows = self.rows()?;
        let Some(row) = rows.get_mut(&id).filter(|row| row.version == change.version) else {
            return Ok(false);
        };
        (row.version, row.counters) = (row.version + 1, *change.counters);
        if let Some(facts) = change.facts {
            row.facts = Zeroizing::new(facts.to_vec());
        }
        self.lasts_s.lock().unwrap().extend(change.lasts_s);
        Ok(true)
    }

    fn remove(&self, ids: &[i32]) -> Result<u64, RowsUnavailable> {
        let mut rows = self.rows()?;
        Ok(ids.iter().filter(|id| rows.remove(id).is_some()).count() as u64)
    }

    fn expire(&self) -> Result<(), RowsUnavailable> {
        self.rows().map(drop)
    }
}

/// A process that uses `rows`.
struct SharingProcess {
    shared: Arc<SharedSessions>,
    table: Arc<SessionTable>,
}

impl SharingProcess {
    fn new(rows: &Arc<TestRows>) -> Self {
        Self::with_limits(rows, SessionLimits { sessions_max: 100, ..limits() })
    }

    fn with_limits(rows: &Arc<TestRows>, limits: SessionLimits) -> Self {
        let table = Arc::new(SessionTable::new(limits));
        let rows: Arc<dyn SessionRows> = Arc::<TestRows>::clone(rows);
        Self { shared: SharedSessions::new(rows, Arc::clone(&table)), table }
    }

    /// Sets up a session of the source `n` under `number`.
    fn open(&self, number: u32, n: u8) -> i32 {
        self.shared.open(&claimed(n), || number, |_| false, 0).unwrap()
    }

    /// The session, as this process finds it for each message.
    fn find(&self, id: i32) -> Option<AnySession> {
        self.find_at(id, 0)
    }

    fn find_at(&self, id: i32, now_s: u32) -> Option<AnySession> {
        match self.table.find(id, now_s) {
            Some(session) => Some(self.shared.with_row(session)),
            None => self.shared.look_up(id, now_s).unwrap(),
        }
    }
}

fn claimed(n: u8) -> NewSession {
    NewSession {
        key: SessionKey::new(Cipher::AES, vec![n; 32]).unwrap(),
        claim: Some(IdentityClaim::of(WHO)),
        origin: RequestOrigin::connection([192, 0, 2, n].into()),
        ..new_session()
    }
}

#[test]
fn a_message_is_accepted_by_one_process_once() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    let id = a.open(7, 1);
    let (at_a, at_b) = (a.find(id).unwrap(), b.find(id).unwrap());
    assert_eq!(at_b.keys().mac.key(), at_a.keys().mac.key());
    assert_eq!(b.table.len(), 0, "no message has arrived there");
    let replayed = |counter| Err(MessageRejection::Replayed(counter));
    assert_eq!(at_b.accept(1, 0), Ok(()));
    assert_eq!((at_a.accept(1, 0), at_b.accept(1, 0)), (replayed(1), replayed(1)));
    assert_eq!((at_a.accept(3, 0), at_b.accept(3, 0), at_b.accept(2, 0)), (Ok(()), replayed(3), Ok(())));
    assert_eq!(at_a.accept(2, 0), replayed(2));
    assert_eq!(at_a.accept(203, 0), Ok(()));
    assert_eq!(at_b.accept(2, 0), replayed(2));
    assert_eq!((b.table.len(), b.table.counts().adopted), (1, 1), "which finds it by itself from now on");
    assert_eq!(b.find(id).unwrap().accept(203, 0), replayed(203));
    // A process that starts later knows what was accepted, also of processes that were killed.
    drop((at_a, a, at_b, b));
    let c = SharingProcess::new(&rows).find(id).unwrap();
    assert_eq!((c.accept(203, 0), c.accept(3, 0), c.accept(204, 0)), (replayed(203), replayed(3), Ok(())));
    assert_eq!(*rows.lasts_s.lock().unwrap(), [60; 6], "set-up, and each message");
}

#[test]
fn of_processes_that_get_the_same_messages_at_once_one_accepts_each() {
    const MESSAGES: i32 = 500;
    let rows = Arc::new(TestRows::default());
    let processes = [SharingProcess::new(&rows), SharingProcess::new(&rows)];
    let id = processes[0].open(7, 1);
    let (accepted, answers) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for process in processes.iter().chain(&processes) {
            let (accepted, answers) = (&accepted, &answers);
            scope.spawn(move || {
                for counter in 1..=MESSAGES {
                    let session = process.find(id).unwrap();
                    match session.accept(counter, 0) {
                        Ok(()) => {
                            accepted.lock().unwrap().push(counter);
                            answers.lock().unwrap().push(session.next_counter());
                        }
                        Err(MessageRejection::Replayed(_)) => {}
                        Err(other) => panic!("{counter}: {other:?}"),
                    }
                }
            });
        }
    });
    for numbers in [accepted, answers] {
        let mut numbers = numbers.into_inner().unwrap();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "none twice");
        assert!(count > 400 && numbers[0] >= 1, "{count}: a thread that is late finds some too old");
    }
}

#[test]
fn answers_of_all_processes_have_counters_of_their_own() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    let id = a.open(7, 1);
    let (at_a, at_b) = (a.find(id).unwrap(), b.find(id).unwrap());
    assert_eq!(at_a.accept(1, 0), Ok(()));
    assert_eq!(at_b.accept(2, 0), Ok(()));
    let mut numbers = vec![at_a.next_counter(), at_b.next_counter()];
    assert_eq!(numbers, [1, 2], "one for each message");
    for session in [&at_a, &at_b, &at_a, &at_b] {
        numbers.extend((0..RESERVED_COUNT + 1).map(|_| session.next_counter()));
    }
    let count = numbers.len();
    assert!(numbers.iter().all(|&number| number < 60), "few are left out: {numbers:?}");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[test]
fn a_session_without_counters_is_over() {
    let rows = Arc::new(TestRows::default());
    let a = SharingProcess::new(&rows);
    let id = a.open(7, 1);
    let session = a.find(id).unwrap();
    assert_eq!(session.accept(1, 0), Ok(()));
    {
        let mut rows = rows.rows.lock().unwrap();
        let row = rows.get_mut(&id).unwrap();
        let counters = SharedCounters { sent: COUNTER_MAX - 1, ..SharedCounters::from_bytes(&row.counters) };
        (row.version, row.counters) = (row.version + 1, counters.to_bytes());
    }
    assert_eq!([(); 4].map(|()| session.next_counter()), [1, i32::MAX, i32::MAX, i32::MAX]);
    assert_eq!(session.accept(2, 0), Err(MessageRejection::Ended));
    assert_eq!(a.table.len(), 0);
    assert_eq!(a.find(id).unwrap().accept(2, 0), Err(MessageRejection::Ended), "for all");
}

#[test]
fn an_identity_that_was_authenticated_at_one_process_is_known_to_all() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    let id = a.open(7, 1);
    let (at_a, at_b) = (a.find(id).unwrap(), b.find(id).unwrap());
    assert_eq!(at_a.accept(1, 0), Ok(()));
    assert!(!at_b.authenticate(Reference { index: 300, ..WHO }, 300, 0), "not the one of the set-up");
    assert!(at_b.authenticate(WHO, 301, 0));
    assert_eq!(at_a.identity(), None, "not read yet");
    assert_eq!(at_a.accept(2, 0), Ok(()));
    assert_eq!(at_a.identity().unwrap().as_reference(), WHO, "before the message counts");
    let late = SharingProcess::new(&rows).find(id).unwrap();
    assert_eq!(late.identity().unwrap().as_reference(), WHO);
}

#[test]
fn a_session_that_has_ended_at_one_process_has_ended_for_all() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    let id = a.open(7, 1);
    let at_a = a.find(id).unwrap();
    assert_eq!((at_a.accept(1, 0), b.find(id).unwrap().accept(2, 0)), (Ok(()), Ok(())));
    assert_eq!((b.shared.end(id), b.shared.end(id)), (Ok(true), Ok(false)));
    assert!(b.find(id).is_none());
    assert_eq!(at_a.accept(3, 0), Err(MessageRejection::Ended));
    assert!(!at_a.authenticate(WHO, 301, 0) && a.find(id).is_none());
    assert_eq!((a.table.len(), b.table.len()), (0, 0));
    // Nor does it come back with the number, or with an older state of the database.
    let other = b.open(7, 2);
    assert_eq!((other, b.find(id).unwrap().accept(1, 0)), (id, Ok(())));
    assert_eq!(at_a.accept(4, 0), Err(MessageRejection::Ended));
    let at_b = b.find(other).unwrap();
    rows.rows.lock().unwrap().get_mut(&id).unwrap().version -= 1;
    assert_eq!(at_b.accept(2, 0), Err(MessageRejection::Ended));
}

#[test]
fn numbers_are_free_in_all_processes_and_those_of_challenges_are_not_looked_up() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    a.open(7, 1);
    let mut numbers = [7, 11].into_iter();
    assert_eq!(b.shared.open(&claimed(1), || numbers.next().unwrap(), |_| false, 0), Ok(11));
    let none = b.shared.open(&claimed(1), || 7, |_| false, 0);
    assert_eq!(none, Err(SharedRefusal::Table(SessionRefusal::NoNumber)));
    assert_eq!(b.table.len(), 1, "nothing is left of the attempts");
    rows.is_down.store(true, Ordering::Relaxed);
    for id in [0, -1, 2, 5, 9, i32::MIN] {
        assert!(matches!(b.shared.look_up(id, 0), Ok(None)), "{id}");
    }
    assert!(matches!(b.shared.look_up(7, 0), Err(RowsUnavailable)));
}

#[test]
fn a_session_that_is_displaced_ends_and_limits_hold_where_it_is_used() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    // Three unproven ones of a source at a time.
    let ids: Vec<i32> = (0..5).map(|n| a.open(4 * n + 3, 1)).collect();
    assert_eq!(rows.rows.lock().unwrap().keys().copied().collect::<Vec<_>>(), ids[2..]);
    // Three proven ones, also of those that were set up elsewhere.
    let ids: Vec<i32> = (10..14).map(|n| a.open(4 * n + 3, u8::try_from(n).unwrap())).collect();
    for (now_s, &id) in (0..).zip(&ids) {
        let new = NewSession { origin: RequestOrigin::connection([192, 0, 2, 99].into()), ..claimed(1) };
        let facts = RowFacts::encode(&a.table.session(id, new, 0), None);
        rows.rows.lock().unwrap().get_mut(&id).unwrap().facts = facts;
        assert_eq!(b.find_at(id, now_s).unwrap().accept(1, now_s), Ok(()));
    }
    assert_eq!((b.table.len(), b.table.counts().displaced, b.table.counts().adopted), (3, 1, 4));
    assert!(!rows.rows.lock().unwrap().contains_key(&ids[0]), "the one that was idle for longest");
    assert_eq!(a.find(ids[0]).unwrap().accept(2, 0), Err(MessageRejection::Ended));
}

#[test]
fn a_session_that_is_used_elsewhere_is_not_over_here() {
    let rows = Arc::new(TestRows::default());
    let (a, b) = (SharingProcess::new(&rows), SharingProcess::new(&rows));
    let id = a.open(7, 1);
    assert_eq!(b.find_at(id, 50).unwrap().accept(1, 50), Ok(()));
    assert!(a.table.find(id, 61).is_none(), "the table does not know that");
    assert_eq!(a.find_at(id, 61).unwrap().accept(1, 61), Err(MessageRejection::Replayed(1)));
    assert_eq!(a.find_at(id, 61).unwrap().accept(2, 61), Ok(()));
    assert_eq!((a.table.len(), a.table.find(id, 100).is_some()), (1, true));
    let counts = a.table.counts();
    assert_eq!((counts.opened, counts.adopted, counts.expired), (1, 1, 1));
}

#[test]
fn without_the_database_nothing_is_accepted_and_no_session_is_lost() {
    let rows = Arc::new(TestRows::default());
    let a = SharingProcess::new(&rows);
    let id = a.open(7, 1);
    let session = a.find(id).unwrap();
    assert_eq!(session.accept(1, 0), Ok(()));
    rows.is_down.store(true, Ordering::Relaxed);
    assert_eq!(session.accept(2, 0), Err(MessageRejection::Unavailable));
    assert_eq!(session.accept(1, 0), Err(MessageRejection::Replayed(1)), "known without it");
    assert!(!session.authenticate(WHO, 301, 0) && session.identity().is_none());
    assert_eq!([session.next_counter(), session.next_counter()], [1, i32::MAX]);
    assert_eq!(a.shared.end(id), Err(RowsUnavailable));
    assert_eq!(a.shared.open(&claimed(1), || 11, |_| false, 0), Err(SharedRefusal::Rows(RowsUnavailable)));
    assert_eq!(a.table.len(), 1);
    rows.is_down.store(false, Ordering::Relaxed);
    assert_eq!((session.accept(2, 0), session.next_counter()), (Ok(()), 2));
    assert_eq!(a.shared.end(id), Ok(true));
}

#[test]
fn only_so_many_numbers_are_looked_up_at_a_time() {
    let most = LOOKS_MAX;
    let rows = Arc::new(TestRows { pause: Some(Barrier::new(most)), ..TestRows::default() });
    let process = SharingProcess::new(&rows);
    let number = AtomicU32::new(0);
    std::thread::scope(|scope| {
        // As many as fit into several turns, each of which begins when the one before is over.
        for _ in 0..4 * most {
            scope.spawn(|| {
                let id = 4 * number.fetch_add(1, Ordering::Relaxed) + 3;
                assert!(process.shared.look_up(id.cast_signed(), 0).unwrap().is_none(), "{id}");
            });
        }
    });
    assert_eq!(rows.reading_most.load(Ordering::SeqCst), most);
}
