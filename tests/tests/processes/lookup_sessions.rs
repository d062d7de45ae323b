//! Lookups of private values from a server with sessions: one session is set up and shared.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_client::bootstrap::Root;
use handle_client::lookup::{Client, LookupOptions, LookupTarget};
use handle_client::question::AnswerWants;
use handle_client::{BlockingDriver, Question};
use handle_proto::ResponseCode;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_tests::process::{hdl, run, until};
use handle_tests::test_server::{TestServer, serve_with};
use handle_tests::vectors::{fixture, hex};
use handle_worker::config::{Config, Datapath};
use std::sync::Arc;

/// The site of a running server, with its key and these protocols.
fn site(served: &TestServer, protocols: &[InterfaceProtocol]) -> SiteBuf {
    let servers = fixture("servers.json");
    let key_id = servers["servers"]["root"]["server_key_id"].as_str().unwrap();
    let (address, mut site) = (served.address(), SiteBuilder::new());
    let interface = |&protocol| Interface::new(InterfaceKind::QUERY, protocol, address.port());
    site.server(ServerBuilder {
        id: 1,
        address: address.ip().into(),
        public_key: hex(&servers["keys"][key_id]["handle_public_hex"]),
        interfaces: protocols.iter().map(interface).collect(),
    });
    site.build()
}

fn options(served: &TestServer) -> LookupOptions {
    let key = IdentityKey::Secret(b"open sesame open".to_vec().into());
    let identity = Arc::new(ClientIdentity { handle: b"0.NA/TST".to_vec(), index: 301, key });
    let site = site(served, &[InterfaceProtocol::UDP, InterfaceProtocol::TCP]);
    LookupOptions {
        identity: Some(identity),
        session_timeout_s: Some(600),
        target: LookupTarget::Sites(vec![Arc::new(site)]),
        ..LookupOptions::default()
    }
}

fn private(handle: &str, certified: bool) -> Question {
    let wants = AnswerWants { certified, public_only: false, ..AnswerWants::default() };
    Question { wants, ..Question::all(handle.as_bytes()) }
}

fn client(protocols: &[InterfaceProtocol]) -> Arc<Client> {
    let mut client = Client::new(Root::default());
    client.preferences.protocols = protocols.to_vec();
    // A repeated request would be challenged again.
    client.timeout.udp_ms = vec![30_000];
    Arc::new(client)
}

/// Reads a record with private values.
fn read_private(driver: &mut BlockingDriver, options: &LookupOptions, certified: bool) {
    let answer = driver.resolve(&private("TST/HALF", certified), options).outcome.unwrap();
    assert_eq!((answer.code, answer.certified), (ResponseCode::SUCCESS, certified), "{}", answer.text);
    assert!(answer.values().iter().any(|value| !value.is_public()));
}

fn challenges(served: &TestServer) -> u64 {
    let challenges = &served.server.shared().slow.as_ref().unwrap().to_json()["challenges"];
    challenges["issued"].as_u64().unwrap_or_else(|| panic!("{challenges}"))
}

fn open_count(served: &TestServer) -> u64 {
    served.server.shared().stats()["sessions"]["open"].as_u64().unwrap()
}

fn serve(change: impl FnOnce(&mut Config)) -> TestServer {
    serve_with("root", Datapath::Portable, change)
}

#[test]
fn many_threads_read_in_one_session_over_both_transports() {
    let served = serve(|_| ());
    for (protocols, certified) in [
        (&[InterfaceProtocol::UDP][..], true),
        (&[InterfaceProtocol::TCP], true),
        (&[InterfaceProtocol::UDP], false),
    ] {
        let (client, options) = (client(protocols), options(&served));
        read_private(&mut BlockingDriver::new(Arc::clone(&client)), &options, certified);
        assert_eq!(client.sessions.count(), 1, "{protocols:?}");
        let before = challenges(&served);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut driver = BlockingDriver::new(Arc::clone(&client));
                    (0..8).for_each(|_| read_private(&mut driver, &options, certified));
                });
            }
        });
        assert_eq!(challenges(&served), before, "no further challenges");
        assert_eq!(client.sessions.count(), 1);
    }
}

#[test]
fn a_new_session_is_set_up_with_a_restarted_server() {
    let served = serve(|_| ());
    let (client, options) = (client(&[InterfaceProtocol::TCP]), options(&served));
    let mut driver = BlockingDriver::new(Arc::clone(&client));
    read_private(&mut driver, &options, true);
    let address = served.address();
    drop(served);
    let again = serve(|config| config.listen = vec![address]);
    assert_eq!(again.address(), address);
    read_private(&mut driver, &options, true);
    let before = challenges(&again);
    read_private(&mut driver, &options, true);
    assert_eq!((challenges(&again), client.sessions.count()), (before, 1));
}

#[test]
fn private_values_are_read_without_sessions() {
    let served = serve(|config| config.sessions.sessions = 0);
    let (client, options) = (client(&[InterfaceProtocol::UDP]), options(&served));
    let mut driver = BlockingDriver::new(Arc::clone(&client));
    (0..3).for_each(|_| read_private(&mut driver, &options, true));
    assert_eq!(client.sessions.count(), 0);
}

#[test]
fn hdl_resolves_a_file_in_one_session() {
    let served = serve(|_| ());
    let path = |name: &str| served.directory.path().join(name);
    let site = site(&served, &[InterfaceProtocol::TCP]);
    std::fs::write(path("site"), site.as_bytes()).unwrap();
    std::fs::write(path("handles"), "TST/HALF\nTST/half\nTST/HALF\n".repeat(4)).unwrap();
    let mut command = hdl(["resolve", "--auth", "301:0.NA/TST", "--secret-env", "SECRET", "--jobs", "1"]);
    command.arg("--site").arg(path("site")).arg("--file").arg(path("handles"));
    command.env("SECRET", "open sesame open").env("HOME", served.directory.path()).env_remove("HDL_ROOT");
    let output = run(command);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Each handle has its public and its private value.
    let handles = shown.lines().map(|line| line.split_once('\t').unwrap().0);
    let count = handles.filter(|handle| handle.eq_ignore_ascii_case("TST/HALF")).count();
    assert_eq!((count, count % 12), (shown.lines().count(), 0), "{shown}");
    assert!(count >= 24, "{shown}");
    // One challenge before the session is set up, and one in it.
    assert_eq!(challenges(&served), 2);
    until("hdl has ended the session", || open_count(&served) == 0);
}

#[test]
fn sessions_are_ended_on_the_server() {
    let served = serve(|_| ());
    for protocol in [InterfaceProtocol::UDP, InterfaceProtocol::TCP] {
        let (client, options) = (client(&[protocol]), options(&served));
        let mut driver = BlockingDriver::new(Arc::clone(&client));
        read_private(&mut driver, &options, true);
        assert_eq!((open_count(&served), client.sessions.count()), (1, 1));
        driver.end_sessions();
        assert_eq!(client.sessions.count(), 0);
        until("the server has ended the session", || open_count(&served) == 0);
        // The next lookup sets up another session.
        read_private(&mut driver, &options, true);
        assert_eq!((open_count(&served), client.sessions.count()), (1, 1));
        driver.end_sessions();
        until("the server has ended the session", || open_count(&served) == 0);
    }
}
