//! `hdl changes`: other programs follow the changes of the store, whatever happens to
//! `handle-admin`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::admin::{ADMIN, CHANGE, SECRET, ask_as, root};
use handle_admin::config::Config;
use handle_local::client::LocalClient;
use handle_local::kind::LocalKind;
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleValues;
use handle_proto::{Permissions, ResponseCode as Code, Value, Values};
use handle_store::{Store, Transaction, key};
use handle_tests::admin_server::AdminServer;
use handle_tests::daemon::free_address;
use handle_tests::process::{RunningProcess, fail, hdl, program, succeed, until};
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn started(change: impl FnOnce(&mut Config)) -> AdminServer {
    root(|config| {
        config.local.socket = Some(config.store.file.with_file_name("admin.socket"));
        change(config);
    })
}

fn socket(config: &Config) -> PathBuf {
    config.local.socket.clone().unwrap()
}

fn changes(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = hdl(["changes", "--socket"]);
    command.arg(socket).args(arguments);
    command
}

/// A program that connects itself.
fn connect(socket: &Path) -> LocalClient {
    LocalClient::connect(socket, LocalKind::Changes, Duration::from_secs(30)).unwrap()
}

/// The contents of all frames until the connection ends.
fn read_all(client: &mut LocalClient) -> String {
    let parts = std::iter::from_fn(|| client.receive().ok());
    String::from_utf8(parts.flat_map(|part| part.to_vec()).collect()).unwrap()
}

/// The answer to one request.
fn ask(socket: &Path, request: &[u8]) -> String {
    let mut client = connect(socket);
    client.send(0, |content| content.extend_from_slice(request)).unwrap();
    read_all(&mut client)
}

fn lines(text: &str) -> Vec<Json> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The present cursor.
fn cursor(socket: &Path) -> String {
    let lines = lines(&succeed(changes(socket, &[])));
    assert_eq!((lines.len(), &lines[0]["kind"], &lines[1]["kind"]), (2, &json!("position"), &json!("end")));
    assert_eq!(lines[0]["cursor"], lines[1]["cursor"]);
    lines[0]["cursor"].as_str().unwrap().to_owned()
}

fn put(store: &Store, handle: &str, url: &str) {
    let (handle, url) = (key(handle.as_bytes(), true), url.to_owned());
    let put = move |transaction: &mut Transaction<'_>| {
        let hidden = Value { permissions: Permissions::ADMIN_READ, ..Value::new(2, b"URL", b"hidden") };
        let mut storage = Vec::new();
        let values = Values::build([Value::new(1, b"URL", url.as_bytes()), hidden], &mut storage);
        transaction.put(&handle, values)
    };
    store.change(put).unwrap();
}

/// Kinds and handles of the lines.
fn kinds(lines: &[Json]) -> Vec<(String, String)> {
    let text = |line: &Json, member: &str| line[member].as_str().unwrap_or_default().to_owned();
    lines.iter().map(|line| (text(line, "kind"), text(line, "handle"))).collect()
}

fn expected(kinds: &[(&str, &str)]) -> Vec<(String, String)> {
    kinds.iter().map(|&(kind, handle)| (kind.to_owned(), handle.to_owned())).collect()
}

#[test]
fn a_program_gets_every_change_in_order_and_goes_on_exactly() {
    let administered = started(|_| ());
    let (store, socket) = (&administered.server().shared().service.store, socket(&administered.config));
    let begin = cursor(&socket);
    put(store, "10.7/a", "one");
    put(store, "10.7/b", "two");
    put(store, "10.7/A", "three");
    store.home(b"10.7").unwrap();
    store.change(|transaction| transaction.delete(b"10.7/B")).unwrap();
    let all = lines(&succeed(changes(&socket, &["--after", &begin, "--values"])));
    let whole = [
        ("position", ""),
        ("created", "10.7/A"),
        ("created", "10.7/B"),
        ("updated", "10.7/A"),
        ("homed", "0.NA/10.7"),
        ("deleted", "10.7/B"),
        ("end", ""),
    ];
    assert_eq!(kinds(&all), expected(&whole));
    assert_eq!(all[1]["values"][0]["data"]["value"], "three", "as it is now");
    assert_eq!(all[1]["values"].as_array().unwrap().len(), 1, "public values only");
    assert!(all[2].get("values").is_none() && all[4].get("values").is_none());
    assert!(all[1]["time"].as_str().unwrap().ends_with('Z'));
    for (at, line) in all.iter().enumerate().take(6) {
        let after = line["cursor"].as_str().unwrap();
        let rest = lines(&succeed(changes(&socket, &["--after", after])));
        assert_eq!(kinds(&rest[1..]), expected(&whole[at + 1..]), "after line {at}");
        assert!(rest.iter().all(|line| line.get("values").is_none()));
    }
    put(store, "10.8/a", "other");
    let of_prefix = lines(&succeed(changes(&socket, &["--after", &begin, "--prefix", "10.8"])));
    assert_eq!(kinds(&of_prefix), expected(&[("position", ""), ("created", "10.8/A"), ("end", "")]));
    let of_prefix = lines(&succeed(changes(&socket, &["--after", &begin, "--prefix", "10.9"])));
    assert_eq!(kinds(&of_prefix), expected(&[("position", ""), ("position", ""), ("end", "")]));
    assert_eq!(of_prefix[1]["cursor"], of_prefix[2]["cursor"], "the cursor moves on");
}

#[test]
fn cursors_that_cannot_be_followed_are_refused_with_what_to_do() {
    let administered = started(|_| ());
    let (store, socket) = (&administered.server().shared().service.store, socket(&administered.config));
    let begin = cursor(&socket);
    put(store, "10.7/a", "one");
    let refused = |after: &str, part: &str| {
        let (code, text) = fail(changes(&socket, &["--after", after]));
        assert!(code == 6 && text.contains(part), "{after}: {code} {text}");
    };
    refused("x", "not the cursor of a line");
    let (store_of, number) = begin.split_once('-').unwrap();
    refused(&format!("0000000000000000-{number}"), "not one of this store");
    refused(&format!("{store_of}-99999"), "not one of this store");
    let bounds = handle_store::LogBounds { before_unix_ms: u64::MAX, transactions_max: None };
    store.prune_log(bounds, 100).unwrap();
    refused(&begin, "does not reach back");
    refused(&begin, "hdl export");
    assert_eq!(lines(&succeed(changes(&socket, &["--after", &cursor(&socket)]))).len(), 2);
    let answer = ask(&socket, b"{\"since\": 1}\n");
    assert!(answer.contains("bad_request") && answer.contains("since"), "{answer}");
    let (code, text) = fail(changes(Path::new("/nowhere/admin.socket"), &[]));
    assert!(code == 1 && text.contains("local.socket"), "{text}");
}

#[test]
fn a_log_that_begins_anew_ends_a_feed() {
    let administered = started(|_| ());
    let store = &administered.server().shared().service.store;
    let mut following = ChangeFollower::start(&socket(&administered.config), None);
    assert_eq!(following.next()["kind"], "position");
    put(store, "10.7/a", "one");
    assert_eq!(following.next()["handle"], "10.7/A");
    store.change(|transaction| transaction.begin_log_anew()).unwrap();
    assert_eq!(following.process.wait(), Some(6));
}

#[test]
fn a_slow_reader_is_cut_off_and_costs_neither_changes_nor_memory() {
    let administered = started(|config| {
        config.local.changes_write_ms = 300;
        config.local.changes_connections = 1;
    });
    let service = &administered.server().shared().service;
    let (store, socket) = (&service.store, socket(&administered.config));
    let begin = cursor(&socket);
    let long = "x".repeat(100_000);
    // More than fits between both sides.
    for number in 0..100 {
        put(store, &format!("10.7/{number}"), &long);
    }
    let mut slow = connect(&socket);
    let request = json!({ "after": begin, "values": true, "follow": true }).to_string();
    slow.send(0, |content| content.extend_from_slice(request.as_bytes())).unwrap();
    until("the reader is cut off", || service.counters.changes_late.get() == 1);
    let read = read_all(&mut slow);
    let (whole, _) = read.rsplit_once('\n').unwrap();
    let last = lines(whole).pop().unwrap()["cursor"].as_str().unwrap().to_owned();
    let number = |cursor: &str| cursor.split_once('-').unwrap().1.parse::<usize>().unwrap();
    let missing = 100 - (number(&last) - number(&begin));
    assert!(missing > 0, "it was not slow");
    until("the place is free", || {
        let rest = changes(&socket, &["--after", &last]).output().unwrap();
        rest.status.success() && lines(&String::from_utf8(rest.stdout).unwrap()).len() == missing + 2
    });
}

/// A running `hdl changes --follow`.
struct ChangeFollower {
    process: RunningProcess,
    lines: Receiver<String>,
}

impl ChangeFollower {
    fn start(socket: &Path, after: Option<&str>) -> Self {
        let mut command = changes(socket, &["--follow"]);
        command.args(after.iter().flat_map(|after| ["--after", after])).stdout(Stdio::piped());
        let mut process = RunningProcess::start(command);
        let (send, lines) = channel();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    fn next(&mut self) -> Json {
        let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("a line");
        serde_json::from_str(&line).unwrap()
    }
}

fn create(address: SocketAddr, handle: &str) {
    let mut storage = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut storage);
    let request = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
    let reply = ask_as(address, ADMIN, SECRET, CHANGE, &request);
    assert_eq!(reply.code, Code::SUCCESS, "{}", reply.text);
}

#[test]
fn a_follower_gets_every_change_once_across_a_killed_process() {
    let mut administered = started(|_| ());
    administered.stop();
    let (mut config, directory) = (administered.config.clone(), &administered.directory);
    let (path, address) = (directory.path().join("handle-admin.toml"), free_address());
    config.listen = vec![address];
    config.allow_root = true;
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    let start = || {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(&path);
        let process = RunningProcess::start(command);
        let socket = socket(&config);
        until("it serves", || TcpStream::connect(address).is_ok() && UnixStream::connect(&socket).is_ok());
        process
    };
    let mut process = start();
    let mut following = ChangeFollower::start(&socket(&config), None);
    let first = following.next()["cursor"].as_str().unwrap().to_owned();
    let (mut cursors, mut handles) = (vec![first.clone()], Vec::new());
    for round in 0..3 {
        for number in 0..5 {
            create(address, &format!("TST/FOLLOWED-{round}-{number}"));
            handles.push(format!("TST/FOLLOWED-{round}-{number}"));
        }
        // In one round, before the lines were read.
        if round != 1 {
            (0..5).for_each(|_| cursors.push(following.next()["cursor"].as_str().unwrap().to_owned()));
        }
        process.signal("KILL");
        assert_eq!(process.wait(), None);
        process = start();
        if round == 1 {
            (0..5).for_each(|_| cursors.push(following.next()["cursor"].as_str().unwrap().to_owned()));
        }
    }
    let numbers: Vec<u64> =
        cursors.iter().map(|cursor| cursor.split_once('-').unwrap().1.parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "each once, in order: {numbers:?}");
    let again = lines(&succeed(changes(&socket(&config), &["--after", &first])));
    let shown: Vec<&str> = again.iter().filter_map(|line| line["handle"].as_str()).collect();
    assert_eq!(shown, handles);
    following.process.signal("INT");
    assert_eq!(following.process.wait(), Some(0), "a signal ends it politely");
    process.signal("TERM");
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn following_ends_at_a_connection_that_is_refused_before_its_first_line() {
    let administered = started(|config| config.local.changes_connections = 0);
    let (code, why) = fail(changes(&socket(&administered.config), &["--follow"]));
    assert!(code == 1 && why.contains("handle-admin has too many connections of this kind"), "{code}: {why}");
}

#[test]
fn a_request_is_one_line_and_may_be_all_that_a_program_sends() {
    let administered = started(|_| ());
    let socket = socket(&administered.config);
    let mut client = connect(&socket);
    client.send(0, |content| content.extend_from_slice(b"{}\n")).unwrap();
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    let answer = read_all(&mut client);
    assert_eq!(lines(&answer).len(), 2, "{answer}");
    assert!(ask(&socket, &[b' '; 8000]).contains("bad_request"));
    let refused = &administered.server().shared().service.counters.local_refused;
    // The process may close the connection before it has received all of it.
    let mut client = connect(&socket);
    let _ = client.send(0, |content| content.extend_from_slice(&[b' '; 9000]));
    assert_eq!(read_all(&mut client), "", "too long");
    until("the refusal is counted", || refused.get() == 1);
}
