//! `handle-cache` under faults and attacks from outside: caches that ask each other, crowds, forged
//! answers, dead services and `kill -9`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::value::Ttl;
use handle_proto::wire::Envelope;
use handle_proto::{ResponseCode, Value};
use handle_tests::cache_server::{TestCache, code};
use handle_tests::client::{ReceivedReply, TestClient, request};
use handle_tests::daemon::{Daemon, free_address};
use handle_tests::forger::{FALSE_DATA, ForgerServer, TRUE_DATA};
use handle_tests::process::{program, until};
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A number of the environment, for long runs.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn url(target: &str) -> Value<'_> {
    Value { ttl: Ttl::relative(1), ..Value::new(1, b"URL", target.as_bytes()) }
}

/// Whether an answer has this data.
fn shows(reply: &ReceivedReply, data: &[u8]) -> bool {
    reply.values.windows(data.len()).any(|window| window == data)
}

/// Starts a cache at `address`.
fn cache_at(address: SocketAddr, upstream: SocketAddr) -> TestCache {
    TestCache::of(upstream, |config| config.listen = vec![address])
}

#[test]
fn caches_that_ask_each_other_say_so_at_once_and_do_not_ask_without_end() {
    let (alone, one, other) = (free_address(), free_address(), free_address());
    for loops in [vec![cache_at(alone, alone)], vec![cache_at(one, other), cache_at(other, one)]] {
        let begun = Instant::now();
        assert_eq!(loops[0].resolve("10.1/x").code, ResponseCode::RECURSION_COUNT_TOO_HIGH);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        let sum = |name| loops.iter().map(|cache| cache.count(name)).sum::<u64>();
        // One for each server on the way, and as many again over TCP if a datagram was late.
        let questions = sum("questions");
        assert!((10..=20).contains(&questions), "{questions} questions");
        assert_eq!(sum("loops"), questions);
        // Then no server is asked for a while.
        for n in 0..200 {
            assert_ne!(loops[0].resolve("10.1/x").code, ResponseCode::SUCCESS, "{n}");
        }
        assert!(sum("questions") <= questions * 12, "{} questions", sum("questions"));
        assert_eq!(sum("entries"), 0);
    }
}

#[test]
fn a_chain_of_caches_answers() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[Value::new(1, b"URL", b"https://one.example/")]);
    let mut caches = vec![TestCache::of(upstream.address, |_| {})];
    for _ in 0..3 {
        let before = caches.last().unwrap().address();
        caches.push(TestCache::of(before, |_| {}));
    }
    for _ in 0..2 {
        assert_eq!(caches.last().unwrap().resolve("10.1/x").code, ResponseCode::SUCCESS);
    }
    assert_eq!(upstream.asked(), 1);
    assert!(caches.iter().all(|cache| cache.count("entries") == 1));
}

#[test]
fn ten_thousand_simultaneous_questions_for_one_name_ask_once() {
    const SOCKETS: usize = 50;
    const REQUESTS: i32 = 200;
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[Value::new(1, b"URL", b"https://one.example/")]);
    upstream.behave(AnswerManner::Slow(Duration::from_millis(1500)));
    let cache = TestCache::of(upstream.address, |config| {
        config.waiting.requests = 1 << 15;
        config.upstream.timeout_ms = 20_000;
    });
    let sockets: Vec<UdpSocket> = (0..SOCKETS)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(cache.address()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket
        })
        .collect();
    for id in 1..=REQUESTS {
        for socket in &sockets {
            socket.send(&request(b"10.1/x", id)).unwrap();
        }
        // Not more than the socket of the server has capacity for.
        let sent = u64::from(id.cast_unsigned()) * SOCKETS as u64;
        until("they have arrived", || cache.count("misses") + cache.count("hits") + 100 > sent);
    }
    for socket in &sockets {
        let mut seen = vec![false; REQUESTS as usize + 1];
        for _ in 1..=REQUESTS {
            let mut buffer = [0; 600];
            let len = socket.recv(&mut buffer).expect("an answer to each");
            let (envelope, _) = Envelope::split(&buffer[..len]).unwrap();
            assert_eq!(code(&buffer[..len]), ResponseCode::SUCCESS);
            let id = usize::try_from(envelope.request_id).unwrap();
            assert!(!std::mem::replace(&mut seen[id], true), "one answer to each");
        }
    }
    assert_eq!(cache.count("questions"), 1);
    // The server is so slow that the one question is repeated.
    assert!((1..=3).contains(&upstream.asked()), "{}", upstream.asked());
    assert_eq!(cache.count("misses") + cache.count("hits"), SOCKETS as u64 * REQUESTS as u64);
    assert_eq!(cache.count("coalesced"), cache.count("misses") - 1);
    println!("{} of {} waited", cache.count("misses"), SOCKETS as u64 * REQUESTS as u64);
}

#[test]
fn no_forged_answer_is_cached() {
    const THREADS: u64 = 8;
    const BURST: u64 = 1000;
    let forgeries = number("HANDLE_FORGERIES", 100_000);
    let forger = ForgerServer::start(BURST);
    let cache = TestCache::of(forger.address, |config| {
        (config.upstream.timeout_ms, config.upstream.failure_ms) = (300, 0);
        config.cache.bytes = 64 << 20;
    });
    let (asked, begun) = (AtomicU64::new(0), Instant::now());
    let next = || (forger.sent() < forgeries).then(|| asked.fetch_add(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut client = TestClient::new(cache.address());
                while let Some(n) = next() {
                    let reply = client.resolve(format!("10.1/{n}").as_bytes()).expect("an answer");
                    match reply.code {
                        ResponseCode::SUCCESS => assert!(shows(&reply, TRUE_DATA), "{n}"),
                        code => assert_eq!(code, ResponseCode::SERVER_BUSY, "{n}"),
                    }
                }
            });
        }
    });
    let (asked, stored) = (asked.into_inner(), cache.count("entries"));
    println!(
        "{} forged answers to {asked} questions in {:?}; {stored} entries",
        forger.sent(),
        begun.elapsed()
    );
    assert!(forger.sent() >= forgeries && stored > 0);
    forger.reform();
    let mut client = TestClient::new(cache.address());
    for n in 0..asked {
        let reply = client.resolve(format!("10.1/{n}").as_bytes()).expect("an answer");
        assert!(shows(&reply, TRUE_DATA) && !shows(&reply, FALSE_DATA), "{n}: {:?}", reply.code);
    }
}

/// The answers to requests for all of these names at once.
fn ask_all(cache: &TestCache, names: &[String]) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(cache.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for (name, id) in names.iter().zip(1..) {
        socket.send(&request(name.as_bytes(), id)).unwrap();
    }
    let answer = |_: &String| {
        let mut buffer = [0; 600];
        let len = socket.recv(&mut buffer).expect("an answer to each");
        buffer[..len].to_vec()
    };
    names.iter().map(answer).collect()
}

#[test]
fn a_client_that_asks_about_a_slow_service_delays_nobody_else() {
    let (slow, others) = (UpstreamServer::start(), UpstreamServer::start());
    slow.behave(AnswerManner::Silent);
    others.set("10.2/x", &[url("https://one.example/")]);
    // The share of the source, and that of the prefix alone.
    for exempt in [vec![], vec!["127.0.0.0/8".to_owned()]] {
        let cache = TestCache::of(others.address, |config| {
            config.waiting.exempt_sources = exempt.clone();
            config.policy.forward = vec![format!("10.1={}", slow.address)];
            (config.upstream.questions, config.upstream.failure_ms) = (16, 0);
            (config.upstream.timeout_ms, config.upstream.turn_ms) = (20_000, 10_000);
        });
        let [asker, other] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| {
            let socket = UdpSocket::bind(SocketAddr::from((ip, 0))).unwrap();
            socket.connect(cache.address()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
            socket
        });
        for n in 0..200 {
            asker.send(&request(format!("10.1/{n}").as_bytes(), 1)).unwrap();
        }
        until("the requests have arrived", || cache.count("misses") == 200);
        other.send(&request(b"10.2/x", 1)).unwrap();
        let mut buffer = [0; 600];
        let len = other.recv(&mut buffer).expect("an answer");
        assert_eq!(code(&buffer[..len]), ResponseCode::SUCCESS, "{exempt:?}");
        assert_eq!(cache.count("questions"), 3, "two of the slow service, and one");
    }
}

#[test]
fn a_question_that_had_no_turn_says_nothing_about_its_service() {
    let (slow, others) = (UpstreamServer::start(), UpstreamServer::start());
    slow.behave(AnswerManner::Silent);
    others.set("10.2/x", &[url("https://one.example/")]);
    let cache = TestCache::of(others.address, |config| {
        config.policy.forward = vec![format!("10.1={}", slow.address)];
        config.policy.deny = vec!["10.3".to_owned()];
        (config.upstream.questions, config.upstream.shares, config.upstream.turn_ms) = (1, 1, 100);
        (config.upstream.failure_ms, config.upstream.timeout_ms) = (60_000, 3000);
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&request(b"10.1/x", 1), cache.address()).unwrap();
    until("the question", || cache.count("questions") == 1);
    // Three failures of a service would close its prefix.
    let names: Vec<String> = (0..6).map(|n| format!("10.2/{n}")).collect();
    assert!(ask_all(&cache, &names).iter().all(|answer| code(answer) == ResponseCode::SERVER_BUSY));
    assert_eq!((cache.count("questions"), cache.count("questions_left_out")), (1, 6));
    assert_eq!(cache.resolve("10.3/x").code, ResponseCode::SERVER_NOT_RESPONSIBLE, "without a turn");
    assert_eq!(cache.count("questions_left_out"), 6);
    until("the turn is free", || cache.resolve("10.2/x").code == ResponseCode::SUCCESS);
    assert_eq!(cache.count("questions_refused"), 0);
}

#[test]
fn a_dead_service_costs_its_cached_names_nothing_and_others_a_few_seconds() {
    let outage = Duration::from_secs(number("HANDLE_OUTAGE_S", 6));
    let upstream = UpstreamServer::start();
    let names = |from: usize| (from..from + 50).map(|n| format!("10.{n}/x")).collect::<Vec<_>>();
    let (known, others) = (names(0), names(100));
    let set = |target| known.iter().chain(&others).for_each(|name| upstream.set(name, &[url(target)]));
    set("https://one.example/");
    let cache = TestCache::of(upstream.address, |_| {});
    let all_are =
        |names: &[String], expected| ask_all(&cache, names).iter().all(|answer| code(answer) == expected);
    assert!(all_are(&known, ResponseCode::SUCCESS));
    upstream.behave(AnswerManner::Silent);
    let (begun, ends) = (Instant::now(), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let asked = Instant::now();
                assert!(all_are(&others, ResponseCode::SERVER_BUSY));
                longest = longest.max(asked.elapsed());
            }
            longest
        });
        while begun.elapsed() < outage {
            assert!(all_are(&known, ResponseCode::SUCCESS), "after {:?}", begun.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
        ends.store(true, Ordering::Relaxed);
        asked.join().unwrap()
    });
    assert!(cache.count("stale_answers") >= 50, "{}", cache.count("stale_answers"));
    set("https://two.example/");
    upstream.behave(AnswerManner::Honest);
    let (returned, new) = (Instant::now(), b"https://two.example/");
    let all_are_new = |names: &[String]| {
        ask_all(&cache, names).iter().all(|answer| answer.windows(new.len()).any(|part| part == new))
    };
    until("all names have returned", || all_are_new(&known) && all_are_new(&others));
    let returned = returned.elapsed();
    println!("dead for {outage:?}: others failed within {longest:?}, all returned within {returned:?}");
    // A short run is a test of a busy machine, on which only the order of magnitude counts.
    let [longest_max, returned_max] = match std::env::var("HANDLE_OUTAGE_S") {
        Ok(_) => [5, 2].map(Duration::from_secs),
        Err(_) => [20, 20].map(Duration::from_secs),
    };
    assert!(longest <= longest_max && returned <= returned_max);
}

#[test]
fn after_kill_9_the_cache_is_as_full_as_before() {
    const NAMES: usize = 2000;
    let kills = number("HANDLE_KILLS", 5);
    let upstream = UpstreamServer::start();
    let name = |n: usize| format!("10.1/{n}");
    (0..NAMES).for_each(|n| upstream.set(&name(n), &[Value::new(1, b"URL", b"https://one.example/")]));
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let address = free_address();
    let text = format!(
        "listen = [\"{address}\"]\ncontrol = {:?}\nallow_root = true\nworkers = 1\n\
         [cache]\nbytes = 16777216\nfile = {:?}\nsave_every_s = 1\n\
         [upstream]\nservers = [\"{}\"]\n",
        path("control"),
        path("cache"),
        upstream.address
    );
    std::fs::write(path("config.toml"), text).unwrap();
    let start = || {
        let mut command = Command::new(program("handle-cache", "handle-cache"));
        command.arg("--config").arg(path("config.toml")).stdin(Stdio::null()).stderr(Stdio::null());
        Daemon::start(command, &path("control"))
    };
    let count = |daemon: &Daemon, name: &str| daemon.ask("cache-stats")[name].as_u64().unwrap();
    let mut daemon = start();
    let mut client = TestClient::new(address);
    (0..NAMES)
        .for_each(|n| assert_eq!(client.resolve(name(n).as_bytes()).unwrap().code, ResponseCode::SUCCESS));
    let saves = count(&daemon, "saves");
    until("the file", || count(&daemon, "saves") > saves + 1);
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let mut n = 0;
                while !ends.load(Ordering::Relaxed) {
                    // No server may listen there.
                    let _ = socket.send_to(&request(name(n % NAMES).as_bytes(), 1), address);
                    n += 7;
                    if n.is_multiple_of(16) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            // At another moment each time, also while the file is written.
            std::thread::sleep(Duration::from_millis(kill * 37 % 1100));
            daemon.process.signal("KILL");
            daemon.process.wait();
            daemon = start();
            let begun = Instant::now();
            until("the entries", || count(&daemon, "entries") >= (NAMES as u64 * 99).div_ceil(100));
            longest = longest.max(begun.elapsed());
            ends.store(true, Ordering::Relaxed);
        });
        // What was asked for before it was read from the file is not taken from there.
        let known = count(&daemon, "restored") + count(&daemon, "questions");
        assert!(known >= (NAMES as u64 * 99).div_ceil(100), "kill {kill}: {known}");
        let misses = count(&daemon, "misses");
        let mut client = TestClient::new(address);
        for n in 0..NAMES {
            assert_eq!(
                client.resolve(name(n).as_bytes()).unwrap().code,
                ResponseCode::SUCCESS,
                "kill {kill}"
            );
        }
        let misses = count(&daemon, "misses") - misses;
        assert!(misses <= NAMES as u64 / 100, "kill {kill}: {misses} misses");
    }
    println!("{kills} kills; {NAMES} entries were back within {longest:?} of the start");
}
