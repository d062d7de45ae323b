//! The gateway and the cache of the lab: they answer for handles of every site, and can be stopped
//! and killed as the servers can.

use handle_tests::daemon::free_address;
use handle_tests::gateway_server::get;
use handle_tests::lab::LabProcess;
use handle_tests::process::{succeed, until};
use serde_json::Value as Json;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// A handle that all sites of the DOI service have.
const RECORD: &str = "/api/handles/10.1016/j.rcae.2013.04.001";

#[test]
fn the_gateway_of_the_lab_finds_handles_of_every_site() {
    let lab = LabProcess::up_with(&[]);
    let address = lab.addresses("gateway")[0];
    let hello = get(address, "/20.500.LAB/hello", "");
    assert_eq!((hello.status, hello.header("location")), (302, Some("https://lab.example/hello")));
    let alias = get(address, "/20.500.LAB/alias", "");
    assert_eq!(alias.status, 301);
    assert!(alias.header("location").unwrap().ends_with("/20.500.LAB/hello"), "{alias:?}");
    assert_eq!(get(address, "/api/handles/10.1016/none-such", "").status, 404);
    // A handle at each step that the gateway has not in its cache. One site after the other is
    // killed: another one answers, and the gateway with it.
    (0..4).for_each(|at| lab.kill("primary", at));
    let record = get(address, RECORD, "").json();
    assert_eq!(record["responseCode"], 1, "{record}");
    (0..2).for_each(|at| lab.kill("secondary", at));
    lab.kill("mirror", 0);
    let nobody = get(address, "/api/handles/10.1016/none-such-either", "");
    assert!(matches!(nobody.status, 502 | 504), "{nobody:?}");
    let cached = get(address, RECORD, "");
    assert_eq!(cached.status, 200, "the cache has it: {cached:?}");
}

#[test]
fn the_cache_of_the_lab_answers_when_all_sites_are_stopped() {
    let port = free_address().port();
    let lab = LabProcess::up_with(&["--cache-port", &port.to_string()]);
    assert_eq!(lab.addresses("cache")[0].port(), port);
    let (address, control) = (lab.addresses("cache")[0].to_string(), lab.control("cache"));
    let handles = ["20.500.LAB/hello", "10.1016/j.rcae.2013.04.001", "20.500.LAB/alias"];
    let resolve = |handle| succeed(lab.hdl(&["resolve", handle, "--server", &address, "--json"]));
    for handle in handles {
        assert!(resolve(handle).contains("\"responseCode\": 1"), "{handle}");
    }
    for site in ["registry", "primary", "secondary", "mirror", "derived"] {
        lab.signal(site, "STOP");
    }
    for handle in handles {
        assert!(resolve(handle).contains("\"responseCode\": 1"), "{handle} is in the cache");
    }
    let stats = succeed(lab.hdl(&["cache", "stats", "--json", "--socket", control.to_str().unwrap()]));
    let stats: Json = serde_json::from_str(&stats).unwrap();
    assert_eq!((&stats["hits"], &stats["misses"], &stats["entries"]), (&3.into(), &3.into(), &3.into()));
    for site in ["registry", "primary", "secondary", "mirror", "derived"] {
        lab.signal(site, "CONT");
    }
}

#[test]
fn the_gateway_of_the_lab_has_a_status_and_can_be_stopped() {
    let lab = LabProcess::up_with(&[]);
    let address = lab.addresses("gateway")[0];
    let servers = lab.report["servers"].as_array().unwrap();
    let gateway = servers.iter().find(|server| server["site"] == "gateway").unwrap();
    let control = lab.control("gateway");
    let status = succeed(lab.hdl(&["control", "status", "--json", "--socket", control.to_str().unwrap()]));
    let status: Json = serde_json::from_str(&status).unwrap();
    assert_eq!(status["pid"], gateway["pid"], "{status}");
    lab.signal("gateway", "STOP");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /20.500.LAB/hello HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0];
    assert!(stream.read_exact(&mut byte).is_err(), "a stopped process does not answer");
    lab.signal("gateway", "CONT");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.read_exact(&mut byte).unwrap();
    lab.signal("gateway", "KILL");
    until("the gateway ends", || TcpStream::connect(address).is_err());
}
