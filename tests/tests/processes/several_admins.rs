//! Two `handle-admin` over one database: both make changes, and one of them publishes, also while
//! processes and connections are killed or stopped.

use handle_auth::challenge::answer_with_key;
use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::read_manifest;
use handle_store::{LogAction, LogEntry};
use handle_tests::client::exchange_over_tcp;
use handle_tests::mirror_pair::{RecordAdministrator, private_key};
use handle_tests::process::until;
use handle_tests::several_admins::SeveralAdmins;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Kills and stops, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 12;
/// Clients of each process.
const CLIENTS: usize = 2;

/// The shortest lease, so that tests do not wait for long ones.
const SHORT_LEASE: &str = "lease_ms = 500\ninterval_ms = 1";

/// Ends the threads of a test, also if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kills() -> usize {
    std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().expect("a number"))
}

fn random() -> rand::rngs::StdRng {
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("seed {seed}");
    rand::rngs::StdRng::seed_from_u64(seed)
}

/// The transaction that the published set shows.
fn shown(several: &SeveralAdmins) -> u64 {
    let set = read_manifest(&several.set()).ok();
    set.and_then(|set| set.source).map_or(0, |source| source.transaction)
}

/// Waits until all changes are published.
fn until_published(several: &SeveralAdmins) {
    let last = several.last_transaction();
    until("all changes are published", || shown(several) >= last);
}

/// What readers of the directory have seen.
#[derive(Debug, Default)]
struct SeenSets {
    sets: u64,
    epochs: BTreeSet<u64>,
}

/// Reads the MANIFEST until `is_over`: no set is older than one before, neither by its number nor
/// by what it shows, and no number is given twice.
fn watch(directory: PathBuf, is_over: Arc<AtomicBool>) -> JoinHandle<SeenSets> {
    std::thread::spawn(move || {
        let (mut seen, mut last) = (SeenSets::default(), None::<Manifest>);
        while !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(200));
            let Ok(set) = read_manifest(&directory) else { continue };
            let Some(before) = last.replace(set.clone()) else { continue };
            let order = |set: &Manifest| {
                (set.epoch, set.generation, set.source.map_or(0, |source| source.transaction))
            };
            if set == before {
                continue;
            }
            let ((epoch, generation, shows), after) = (order(&before), order(&set));
            assert!(after.0 >= epoch && after.1 > generation && after.2 >= shows, "{before:?} then {set:?}");
            let store = |set: &Manifest| set.source.map(|source| source.store);
            // The first set of a new service is that of `hdl init`.
            assert!(before.source.is_none() || store(&before) == store(&set), "the same store");
            seen.sets += 1;
            seen.epochs.insert(set.epoch);
        }
        seen
    })
}

#[test]
fn both_processes_make_changes_and_another_one_publishes_within_5_s() {
    let Some(mut several) = SeveralAdmins::make("") else { return };
    several.start(0);
    assert_eq!(several.publisher(), 0);
    several.start(1);
    let mut clients = [several.administrator(0), several.administrator(1)];
    for (at, client) in clients.iter_mut().enumerate() {
        let put = client.put_public(&format!("10.1045/from{at}"), "x").expect("an answer");
        assert_eq!(put.0, ResponseCode::SUCCESS, "{put:?}");
    }
    // Each decides on what the other has changed, at once.
    assert_eq!(clients[0].delete("10.1045/from1").expect("an answer").0, ResponseCode::SUCCESS);
    assert_eq!(clients[1].delete("10.1045/from1").expect("an answer").0, ResponseCode::HANDLE_NOT_FOUND);
    until_published(&several);
    assert!(several.publishes(0) && !several.publishes(1));
    until("the other one follows", || several.status(1)["publish"]["pending"] == 0);
    let lease = several.status(1)["publish"]["lease"].clone();
    assert_eq!((&lease["held"], &lease["taken"]), (&false.into(), &0.into()));
    let epoch = lease["epoch"].as_u64().expect("a number");
    let refused = several.ask(1, "rebuild");
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("another process")), "{refused}");
    // The publisher is killed.
    let since = Instant::now();
    several.kill(0);
    assert_eq!(clients[1].put_public("10.1045/after", "x").expect("an answer").0, ResponseCode::SUCCESS);
    until_published(&several);
    let took = since.elapsed();
    println!("another process published {took:?} after the kill");
    assert!(took <= Duration::from_secs(5), "{took:?}");
    assert!(several.service.published().iter().any(|line| line.contains("10.1045/AFTER")));
    let lease = several.status(1)["publish"]["lease"].clone();
    let expected = (&true.into(), &(epoch + 1).into(), &1.into());
    assert_eq!((&lease["held"], &lease["epoch"], &lease["taken"]), expected);
    let rebuilds = several.status(1)["publish"]["counts"]["rebuilds"].clone();
    assert_eq!(rebuilds, 0, "it goes on where the set is");
    // A process that is asked to stop lets another one take over at once.
    several.start(0);
    let since = Instant::now();
    several.signal(1, "TERM");
    until("the first one publishes again", || several.publishes(0));
    println!("another process took over {:?} after the signal", since.elapsed());
    assert_eq!(several.status(0)["publish"]["lease"]["epoch"], epoch + 2);
}

#[test]
fn a_publisher_that_was_stopped_publishes_nothing_after_another_one_has_taken_over() {
    let Some(mut several) = SeveralAdmins::make(SHORT_LEASE) else { return };
    let (mut random, kills) = (random(), kills());
    several.start(0);
    several.start(1);
    let _ = several.publisher();
    let is_over = Arc::new(AtomicBool::new(false));
    let watching = watch(several.set(), Arc::clone(&is_over));
    let changes = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for at in 0..2 {
            let (mut client, is_over, changes) = (several.administrator(at), &is_over, &changes);
            scope.spawn(move || {
                for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    // A process that is stopped does not answer until it goes on.
                    if client.put_public(&format!("10.1045/c{at}-{}", n % 100), &n.to_string()).is_some() {
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let end = EndOnDrop(&is_over);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(random.random_range(0..100)));
            let stopped = several.publisher();
            let before = several.status(stopped)["publish"]["lease"]["epoch"].as_u64().expect("a number");
            several.signal(stopped, "STOP");
            until("the other one publishes", || {
                read_manifest(&several.set()).is_ok_and(|set| set.epoch > before)
            });
            let from = shown(&several);
            until("the other one publishes changes", || shown(&several) > from);
            until("the other one has the lease", || several.publishes(1 - stopped));
            several.signal(stopped, "CONT");
            until("it knows that it does not publish", || {
                let lease = several.status(stopped)["publish"]["lease"].clone();
                lease["held"] == false && lease["epoch"].as_u64() > Some(before)
            });
        }
        drop(end);
    });
    let seen = watching.join().expect("what readers see");
    until_published(&several);
    println!(
        "{kills} stops, {} changes, {} sets, {} epochs",
        changes.into_inner(),
        seen.sets,
        seen.epochs.len()
    );
    assert!(seen.epochs.len() >= kills);
}

/// A message of a client, outside sessions.
fn message(envelope: Envelope, request: &Request<'_>) -> Vec<u8> {
    let header = Header::request(request.op_code(), OpFlags::PLAIN_REQUEST, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().expect("a short message")
}

fn code(answer: &[u8]) -> ResponseCode {
    Message::decode(&answer[Envelope::LEN..]).expect("a message").header.response_code
}

/// Asks a process for a new handle, and returns the answer to its challenge.
fn challenged(several: &SeveralAdmins, at: usize, handle: &str) -> Vec<u8> {
    let mut buffer = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
    let create = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
    let asked = exchange_over_tcp(several.addresses[at], &message(Envelope::request(1), &create));
    let asked = asked.expect("an answer");
    let (envelope, rest) = Envelope::split(&asked).expect("an envelope");
    let body = Message::decode(rest).expect("a message").decode_body(envelope.version).expect("a body");
    let Body::Reply(Reply { response: Response::Challenge(challenge), digest, .. }) = body else {
        panic!("a challenge for {handle}: {body:?}")
    };
    let covered = [challenge.nonce, digest.expect("a digest").digest];
    let key = private_key(&several.service.path("site/admin-private.bin"));
    let signed = answer_with_key(envelope.version, &covered, &key).expect("a signature");
    let answer = ChallengeAnswer {
        auth_type: auth::PUBLIC_KEY,
        identity: Reference { handle: b"10.1045/ADMIN", index: 300 },
        signed_response: &signed,
    };
    let envelope = Envelope { session_id: envelope.session_id, ..Envelope::request(2) };
    message(envelope, &Request::AnswerChallenge(answer))
}

#[test]
fn a_challenge_of_one_process_is_answered_once_at_whichever_process() {
    let Some(mut several) = SeveralAdmins::make("") else { return };
    several.start(0);
    several.start(1);
    let answer_at = |at: usize, answer: &[u8]| {
        code(&exchange_over_tcp(several.addresses[at], answer).expect("an answer"))
    };
    // The process that has issued it knows that it is over; to another one it is unknown.
    let is_over =
        |code| [ResponseCode::AUTHENTICATION_TIMEOUT, ResponseCode::SESSION_TIMEOUT].contains(&code);
    for round in 0..20 {
        let (from, to) = (round % 2, (round / 2) % 2);
        let answer = challenged(&several, from, &format!("10.1045/ch{round}"));
        if round >= 10 {
            // The challenge is in the database by now, not in its process alone.
            until("it is shared", || several.psql("SELECT count(*) FROM handle_challenges") == "1");
        }
        assert_eq!(answer_at(to, &answer), ResponseCode::SUCCESS, "round {round}: from {from} at {to}");
        for again in 0..2 {
            assert!(is_over(answer_at(again, &answer)), "round {round}");
        }
        assert_eq!(several.psql("SELECT count(*) FROM handle_challenges"), "0");
    }
    // At both at once, it counts once.
    for round in 0..20 {
        let answer = challenged(&several, round % 2, &format!("10.1045/both{round}"));
        let codes = std::thread::scope(|scope| {
            let asked = [0, 1].map(|at| {
                scope.spawn({
                    let (answer, answer_at) = (&answer, &answer_at);
                    move || answer_at(at, answer)
                })
            });
            asked.map(|asked| asked.join().expect("an answer"))
        });
        let won = codes.iter().filter(|&&code| code == ResponseCode::SUCCESS).count();
        let lost = codes.iter().filter(|&&code| is_over(code)).count();
        assert_eq!((won, lost), (1, 1), "round {round}: {codes:?}");
    }
    // An answer with another number is an answer to no challenge.
    let mut made_up = challenged(&several, 0, "10.1045/made-up");
    made_up[7] ^= 2;
    assert_eq!(answer_at(1, &made_up), ResponseCode::SESSION_TIMEOUT);
}

/// What a client was told: handles in the order in which it created them.
#[derive(Debug, Default)]
struct AcknowledgedCreations {
    created: Vec<String>,
    refused: usize,
}

/// Creates handles at a process until `is_over`.
fn create(
    mut administrator: RecordAdministrator,
    (at, client): (usize, usize),
    is_over: &AtomicBool,
) -> AcknowledgedCreations {
    let mut acknowledged = AcknowledgedCreations::default();
    for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
        let handle = format!("10.1045/{at}-{client}-{n}").to_uppercase();
        match administrator.put_public(&handle, &n.to_string()) {
            Some((ResponseCode::SUCCESS, _)) => acknowledged.created.push(handle),
            // The latter if the database was lost while the challenge was taken from it.
            Some((ResponseCode::SERVER_BUSY | ResponseCode::AUTHENTICATION_TIMEOUT, _)) => {
                acknowledged.refused += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(other) => panic!("{handle}: {other:?}"),
            // Its process was killed, or its connection is new: nothing is known of the change.
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    acknowledged
}

/// The log, which has each creation once, in the order in which each client made them.
fn check_log(entries: &[LogEntry], acknowledged: &[AcknowledgedCreations]) {
    let mut places = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        assert!(at == 0 || entries[at - 1].id + 1 == entry.id, "no gap");
        assert!(at == 0 || entries[at - 1].unix_ms <= entry.unix_ms, "no time goes back");
        if entry.action == LogAction::Create {
            let handle = String::from_utf8(entry.handle.clone()).expect("text");
            assert!(places.insert(handle, at).is_none(), "created twice: {entry:?}");
        }
    }
    for client in acknowledged {
        let places: Vec<_> = client.created.iter().map(|handle| places.get(handle)).collect();
        assert!(places.iter().all(Option::is_some), "an acknowledged change is lost");
        assert!(places.is_sorted(), "in the order of the client");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_processes_and_connections_are_killed() {
    let Some(mut several) = SeveralAdmins::make_alone(SHORT_LEASE) else { return };
    let (mut random, kills) = (random(), kills());
    several.start(0);
    several.start(1);
    let begun = several.last_transaction();
    until_published(&several);
    let is_over = Arc::new(AtomicBool::new(false));
    let watching = watch(several.set(), Arc::clone(&is_over));
    let acknowledged = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (at, client) in (0..2).flat_map(|at| (0..CLIENTS).map(move |client| (at, client))) {
            let (administrator, acknowledged, is_over) = (several.administrator(at), &acknowledged, &is_over);
            scope.spawn(move || {
                let created = create(administrator, (at, client), is_over);
                acknowledged.lock().expect("no panic").push(created);
            });
        }
        let end = EndOnDrop(&is_over);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(random.random_range(0..400)));
            match random.random_range(0..5) {
                0 => several.end_connections(),
                4 => several.kill_backend(),
                1 => {
                    several.kill(0);
                    several.kill(1);
                    several.start(0);
                    several.start(1);
                }
                at => {
                    several.kill(at - 2);
                    several.start(at - 2);
                }
            }
        }
        drop(end);
    });
    let seen = watching.join().expect("what readers see");
    let acknowledged = acknowledged.into_inner().expect("no panic");
    until_published(&several);
    let entries: Vec<_> = several
        .store()
        .snapshot()
        .expect("a store")
        .log_after(begun)
        .expect("a log")
        .map(|it| it.expect("an entry"))
        .collect();
    check_log(&entries, &acknowledged);
    let published: BTreeSet<String> = several
        .service
        .published()
        .iter()
        .filter_map(|line| line.split("\"handle\":\"").nth(1)?.split('"').next().map(str::to_owned))
        .collect();
    let created: usize = acknowledged.iter().map(|client| client.created.len()).sum();
    for handle in acknowledged.iter().flat_map(|client| &client.created) {
        assert!(published.contains(handle), "{handle} is published");
    }
    let refused: usize = acknowledged.iter().map(|client| client.refused).sum();
    println!(
        "{kills} kills, {created} creations acknowledged, {refused} refused, {} logged; {} sets, {} epochs",
        entries.len(),
        seen.sets,
        seen.epochs.len()
    );
    assert!(created > 0 && seen.sets > 0);
}
