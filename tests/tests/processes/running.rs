//! Start, reload and control of a running server.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::TestClient;
use handle_tests::process::until;
use handle_tests::records::publish_values;
use handle_tests::test_server::config;
use handle_tests::vectors;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Publishes a set with one record, whose URL is `url`.
fn publish(directory: &Path, url: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let mut publisher = SetPublisher::open(directory).unwrap();
    publish_values(&mut publisher, &[(b"10.1/a", Value::new(1, b"URL", url.as_bytes()))]);
}

fn start(change: impl FnOnce(&mut Config)) -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    publish(&directory.path().join("set"), "https://first.example/");
    let mut config = config(&directory.path().join("set"), Datapath::Auto);
    config.control = Some(directory.path().join("control.sock"));
    change(&mut config);
    (Server::start(&config).unwrap(), directory)
}

fn has(server: &Server, url: &str) -> bool {
    let answer = TestClient::new(server.addresses()[0]).resolve(b"10.1/a").expect("an answer");
    answer.values.windows(url.len()).any(|window| window == url.as_bytes())
}

#[test]
fn a_layer_with_one_wrong_bit_does_not_go_live() {
    let (server, directory) = start(|_| {});
    // Published in another directory and copied here with one bit flipped.
    let elsewhere = directory.path().join("elsewhere");
    publish(&elsewhere, "https://first.example/");
    publish(&elsewhere, "https://second.example/");
    let set = directory.path().join("set");
    for entry in std::fs::read_dir(&elsewhere).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        let mut bytes = std::fs::read(&path).unwrap();
        if name.to_string_lossy().starts_with("0000000002") {
            let at = bytes.windows(6).position(|window| window == b"second").unwrap();
            bytes[at] ^= 1;
        }
        if name != "MANIFEST" && name != "LOCK" && !set.join(&name).exists() {
            std::fs::write(set.join(&name), bytes).unwrap();
        }
    }
    std::fs::copy(elsewhere.join("MANIFEST"), set.join("MANIFEST.new")).unwrap();
    std::fs::rename(set.join("MANIFEST.new"), set.join("MANIFEST")).unwrap();
    let status = || server.shared().status();
    until("the damage is seen", || status()["set"]["last_error"].is_string());
    let error = status()["set"]["last_error"].as_str().unwrap().to_owned();
    assert!(error.contains(".layer"), "{error}");
    assert_eq!(status()["set"]["generation"], 1);
    assert!(has(&server, "https://first.example/"), "the old set is still served");
    server.stop().unwrap();
}

#[test]
fn a_recreated_directory_is_noticed() {
    let (server, directory) = start(|_| {});
    let set = directory.path().join("set");
    std::fs::remove_dir_all(&set).unwrap();
    until("the missing directory is noticed", || server.shared().status()["set"]["last_error"].is_string());
    publish(&set, "https://anew.example/");
    until("the new set is live", || has(&server, "https://anew.example/"));
    assert_eq!(server.shared().status()["set"]["generation"], 1, "the first generation of the new directory");
    publish(&set, "https://again.example/");
    until("the next set is live", || has(&server, "https://again.example/"));
    server.stop().unwrap();
}

#[test]
fn a_port_is_shared_only_on_purpose() {
    let (server, directory) = start(|config| config.control = None);
    let mut second = config(&directory.path().join("set"), Datapath::Auto);
    second.listen = server.addresses().to_vec();
    let error = format!("{:#}", Server::start(&second).unwrap_err());
    assert!(error.contains("another process uses the port"), "{error}");
    second.share_port = true;
    let second = Server::start(&second).unwrap();
    assert_eq!(second.addresses(), server.addresses());
    second.stop().unwrap();
    assert!(has(&server, "https://first.example/"));
    server.stop().unwrap();
}

#[test]
fn the_control_socket_replaces_no_other_file_and_clients_do_not_block_each_other() {
    let directory = tempfile::tempdir().unwrap();
    publish(&directory.path().join("set"), "x");
    let file = directory.path().join("handled.toml");
    std::fs::write(&file, "# precious").unwrap();
    let mut config = config(&directory.path().join("set"), Datapath::Auto);
    config.control = Some(file.clone());
    let error = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(error.contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# precious");

    let (server, directory) = start(|_| ());
    let path = directory.path().join("control.sock");
    let silent = UnixStream::connect(&path).unwrap();
    let ask = |line: &str| -> Json {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    assert_eq!(ask("status\n")["state"], "serving", "a silent client blocks others");
    assert!(ask("nonsense\n")["error"].as_str().unwrap().contains("status, stats"));
    assert!(ask(&"x".repeat(4096))["error"].as_str().unwrap().contains("4096 bytes"));
    assert!(ask(&format!("{}\n", "x".repeat(4095)))["error"].as_str().unwrap().contains("unknown"));
    // A client that sends requests continuously.
    let poller = std::thread::spawn(move || {
        let mut stream = BufReader::new(UnixStream::connect(&path).unwrap());
        let mut line = String::new();
        while stream.get_mut().write_all(b"stats\n").is_ok()
            && stream.read_line(&mut line).is_ok_and(|len| len > 0)
        {
            line.clear();
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    server.stop().unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "stopping takes too long");
    poller.join().unwrap();
    drop(silent);
}

#[test]
fn refusals_are_counted_by_reason() {
    let (server, _directory) = start(|_| {});
    let mut client = TestClient::new(server.addresses()[0]);
    for (handle, code) in [
        ("10.1/a", ResponseCode::SUCCESS),
        ("10.1/none", ResponseCode::HANDLE_NOT_FOUND),
        ("10.2/a", ResponseCode::SERVER_NOT_RESPONSIBLE),
        ("10.3/a", ResponseCode::SERVER_NOT_RESPONSIBLE),
    ] {
        assert_eq!(client.resolve(handle.as_bytes()).unwrap().code, code);
    }
    let shards = server.shared().shards.clone();
    server.stop().unwrap();
    let total = &shards.to_json()["total"];
    assert_eq!(total["refused"], serde_json::json!({ "not_homed": 2 }));
    assert_eq!(total["replies"], serde_json::json!({ "1": 1, "100": 1, "301": 2 }));
}

#[test]
fn a_server_of_a_site_of_several_needs_its_number() {
    let directory = tempfile::tempdir().unwrap();
    publish(&directory.path().join("set"), "x");
    let site = directory.path().join("siteinfo.json");
    let servers = vectors::fixture("servers.json");
    std::fs::write(&site, servers["servers"]["multi_all"]["site"].to_string()).unwrap();
    let mut config = config(&directory.path().join("set"), Datapath::Auto);
    config.site = Some(site);
    let error = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(error.contains("set `server_id` to the one") && error.contains("1, 2, 3"), "{error}");
    config.server_id = Some(9);
    let error = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(error.contains("no server has the number 9"), "{error}");
    config.server_id = Some(3);
    Server::start(&config).unwrap().stop().unwrap();
}
