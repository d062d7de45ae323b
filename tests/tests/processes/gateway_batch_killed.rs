//! `POST /api/batch` when `handle-admin` or the gateway is killed in the middle.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_batch::{
    ADMINISTRATOR, administered, batch, codes, creations, gateway_at, request, stored,
};
use handle_gateway::Config;
use handle_tests::admin_server::AdminServer;
use handle_tests::gateway_server::{GatewayServer, connect_over_tls, use_tls};
use handle_tests::process::{RunningProcess, program, until};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `handle-admin` as a process, with the configuration of `admin`.
fn start_process(admin: &AdminServer) -> RunningProcess {
    let path = admin.directory.path().join("admin.toml");
    std::fs::write(&path, toml::to_string(&admin.config).unwrap()).unwrap();
    let mut command = Command::new(program("handle-admin", "handle-admin"));
    command.arg("--config").arg(path).arg("--allow-root").stderr(Stdio::null());
    let process = RunningProcess::start(command);
    let socket = admin.config.local.socket.clone().unwrap();
    until("the socket is there", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    process
}

/// A second gateway as a process, with the set of `gateway`. Its configuration is in `files`.
fn start_gateway(gateway: &GatewayServer, socket: PathBuf, files: &TempDir) -> (RunningProcess, SocketAddr) {
    // A free port.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let mut config = Config {
        listen: vec![port],
        workers: 1,
        snapshot: Some(gateway.directory.path().join("set")),
        site: Some(gateway.directory.path().join("siteinfo.json")),
        ..Config::default()
    };
    config.admin.address = Some(([127, 0, 0, 1], 1).into());
    config.admin.socket = Some(socket);
    use_tls(&mut config, files.path());
    let path = files.path().join("gateway.toml");
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.arg("--config").arg(path).arg("--allow-root").stderr(Stdio::null());
    let process = RunningProcess::start(command);
    until("the gateway answers", || std::net::TcpStream::connect(port).is_ok());
    (process, port)
}

/// Sends a batch with a key, and calls `interrupt` when the first results have arrived. Returns the
/// numbers of the lines that were acknowledged.
fn interrupted(address: SocketAddr, body: &str, interrupt: impl FnOnce()) -> Vec<i64> {
    let mut stream = connect_over_tls(address);
    stream.write_all(&request(ADMINISTRATOR, "Idempotency-Key: killed\r\n", body)).unwrap();
    let (mut text, mut buffer, mut interrupt) = (Vec::new(), [0; 16_384], Some(interrupt));
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..len]);
        if String::from_utf8_lossy(&text).contains("\"responseCode\":1,")
            && let Some(interrupt) = interrupt.take()
        {
            interrupt();
        }
    }
    assert!(interrupt.is_none(), "results arrived: {}", String::from_utf8_lossy(&text));
    let text = String::from_utf8_lossy(&text).into_owned();
    let acknowledged = text.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    let acknowledged = acknowledged.filter(|line| line["responseCode"] == 1);
    acknowledged.map(|line| line["line"].as_i64().unwrap()).collect()
}

/// Checks that everything that was acknowledged is there, and that the same request completes the
/// rest.
fn check_completion(address: SocketAddr, body: &str, acknowledged: &[i64], admin: &AdminServer) {
    for line in acknowledged {
        assert!(stored(admin, &format!("TST/killed-{}", line - 1)).is_some(), "line {line} is there");
    }
    let again = batch(address, ADMINISTRATOR, "Idempotency-Key: killed\r\n", body);
    let count = i64::try_from(body.lines().count()).unwrap();
    let expected: Vec<_> = (1..=count).map(|line| (line, 1)).collect();
    // A creation that is carried out twice would be refused with code 101.
    assert_eq!(codes(&again), expected);
}

#[test]
fn what_was_acknowledged_before_a_kill_of_handle_admin_is_there_and_a_repetition_completes_the_rest() {
    let mut admin = administered(|_| ());
    admin.stop();
    let process = start_process(&admin);
    let gateway = gateway_at(admin.config.local.socket.clone().unwrap(), |_| ());
    let body = creations("killed", 20_000);
    let acknowledged = interrupted(gateway.address(), &body, || process.signal("KILL"));
    drop(process);
    assert!(!acknowledged.is_empty() && acknowledged.len() < 20_000, "{}", acknowledged.len());
    admin.restart();
    check_completion(gateway.address(), &body, &acknowledged, &admin);
}

#[test]
fn what_was_acknowledged_before_a_kill_of_the_gateway_is_there_and_a_repetition_completes_the_rest() {
    let admin = administered(|_| ());
    let socket = admin.config.local.socket.clone().unwrap();
    let again = gateway_at(socket.clone(), |_| ());
    let files = tempfile::tempdir().unwrap();
    let (process, port) = start_gateway(&again, socket, &files);
    let body = creations("killed", 20_000);
    let acknowledged = interrupted(port, &body, || process.signal("KILL"));
    drop(process);
    assert!(!acknowledged.is_empty() && acknowledged.len() < 20_000, "{}", acknowledged.len());
    check_completion(again.address(), &body, &acknowledged, &admin);
}

/// Kills of each process, unless `HANDLE_KILLS` has another number.
const KILLS: u64 = 20;
/// Records of one batch.
const RECORDS: usize = 600;

/// Changes of records that would fail if they were carried out twice, or not in their order: each
/// record is created, extended, cut and, if its number is even, deleted.
fn changes(round: u64) -> String {
    let value = |index: i32| json!({ "index": index, "type": "URL", "data": "https://example.org/" });
    let admin = json!({ "index": 100, "type": "HS_ADMIN", "data": { "format": "admin",
        "value": { "handle": "0.NA/TST", "index": 301, "permissions": "111111111111" } } });
    let mut body = String::new();
    for at in 0..RECORDS {
        let name = format!("TST/ROUND-{round}-{at}");
        let mut add = |change: Json| body.push_str(&format!("{change}\n"));
        add(json!({ "operation": "create", "handle": name, "values": [value(1), value(2), admin] }));
        add(json!({ "operation": "add", "handle": name, "values": [value(3)] }));
        add(json!({ "operation": "remove", "handle": name, "indexes": [1, 2] }));
        add(match at % 2 {
            0 => json!({ "operation": "delete", "handle": name }),
            _ => json!({ "operation": "add", "handle": name, "values": [value(1)] }),
        });
    }
    body
}

/// Pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Sends a batch with a key, and kills after so many results, or soon if that is 0. Returns the
/// numbers of the lines that were acknowledged.
fn killed_after(
    address: SocketAddr,
    key: &str,
    body: &str,
    results: usize,
    soon: Duration,
    kill: impl FnOnce(),
) -> BTreeSet<i64> {
    let mut stream = connect_over_tls(address);
    stream.write_all(&request(ADMINISTRATOR, &format!("Idempotency-Key: {key}\r\n"), body)).unwrap();
    let (mut text, mut buffer, mut kill) = (Vec::new(), [0; 2048], Some(kill));
    loop {
        let count = text.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{")).count();
        if count >= results
            && let Some(kill) = kill.take()
        {
            if results == 0 {
                std::thread::sleep(soon);
            }
            kill();
        }
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => text.extend_from_slice(&buffer[..len]),
            _ => break,
        }
    }
    assert!(kill.is_none(), "the results end early: {}", String::from_utf8_lossy(&text));
    let complete = text.iter().rposition(|&byte| byte == b'\n').map_or(&[][..], |end| &text[..end]);
    let complete = String::from_utf8_lossy(complete).into_owned();
    // Other lines are those of the head and the sizes of chunks.
    let results = complete.lines().filter(|line| line.starts_with('{'));
    let acknowledged: Vec<Json> = results.filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(acknowledged.iter().all(|line| line["responseCode"] == 1), "{acknowledged:?}");
    acknowledged.iter().map(|line| line["line"].as_i64().unwrap()).collect()
}

/// Checks the records of a batch of which these lines were acknowledged, and that repeating it
/// twice completes it, with one transaction for each line.
fn check_round(
    round: u64,
    body: &str,
    acknowledged: &BTreeSet<i64>,
    first_id: u64,
    address: SocketAddr,
    admin: &AdminServer,
) {
    let values = |at: usize| stored(admin, &format!("TST/ROUND-{round}-{at}"));
    for at in 0..RECORDS {
        let line = |step: usize| acknowledged.contains(&i64::try_from(4 * at + step + 1).unwrap());
        let is_there = values(at).is_some();
        // Later changes may have been carried out as well.
        let is_kept = at % 2 == 1;
        assert!(!(is_kept && line(0)) || is_there, "round {round}: record {at} was acknowledged");
        assert!(is_kept || !line(3) || !is_there, "round {round}: the deletion of {at} was acknowledged");
        assert!(!(is_kept && line(3)) || values(at) == Some(3), "round {round}: record {at} is complete");
    }
    let lines = body.lines().count();
    for _ in 0..2 {
        let again = batch(address, ADMINISTRATOR, &format!("Idempotency-Key: round-{round}\r\n"), body);
        let expected: Vec<_> = (1..=i64::try_from(lines).unwrap()).map(|line| (line, 1)).collect();
        assert_eq!(codes(&again), expected, "round {round}");
    }
    let changes_count = last_id(admin) - first_id;
    assert_eq!(changes_count, lines as u64, "round {round}: one transaction for each change");
    for at in 0..RECORDS {
        assert_eq!(values(at), (at % 2 == 1).then_some(3), "round {round}: record {at}");
    }
}

fn last_id(admin: &AdminServer) -> u64 {
    admin.server().shared().service.store.last_id()
}

#[test]
fn wherever_a_process_is_killed_nothing_acknowledged_is_lost_and_nothing_is_done_twice() {
    let kills = std::env::var("HANDLE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let mut admin = administered(|_| ());
    let socket = admin.config.local.socket.clone().unwrap();
    let gateway = gateway_at(socket.clone(), |_| ());
    let mut numbers = Numbers(0x6b69_6c6c);
    let (mut interrupted_count, mut acknowledged_count, since) = (0, 0, Instant::now());
    for round in 0..2 * kills {
        let (body, key) = (changes(round), format!("round-{round}"));
        let lines = body.lines().count();
        // Each eighth round ends before there are results.
        let results = if numbers.below(8) == 0 { 0 } else { numbers.below(lines) };
        let soon = Duration::from_micros(numbers.below(20_000) as u64);
        let first_id = last_id(&admin);
        let acknowledged = if round % 2 == 0 {
            admin.stop();
            let process = start_process(&admin);
            let kill = || process.signal("KILL");
            let acknowledged = killed_after(gateway.address(), &key, &body, results, soon, kill);
            drop(process);
            admin.restart();
            acknowledged
        } else {
            let files = tempfile::tempdir().unwrap();
            let (process, address) = start_gateway(&gateway, socket.clone(), &files);
            killed_after(address, &key, &body, results, soon, || process.signal("KILL"))
        };
        acknowledged_count += acknowledged.len();
        interrupted_count += u64::from(acknowledged.len() < lines);
        check_round(round, &body, &acknowledged, first_id, gateway.address(), &admin);
    }
    println!(
        "{interrupted_count} of {} batches interrupted, {acknowledged_count} changes acknowledged, {:?}",
        2 * kills,
        since.elapsed()
    );
    assert!(interrupted_count > kills && acknowledged_count > 0, "{interrupted_count} {acknowledged_count}");
}
