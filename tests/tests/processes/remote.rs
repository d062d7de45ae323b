//! Identities, groups and prefix administrators with records at another service: lookups there,
//! trust in their answers, and results without an answer.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode as Code, Value, Values};
use handle_store::StoreRecords as _;
use handle_tests::admin_server::AdminServer;
use handle_tests::process::{fail, hdl, succeed, until};
use handle_tests::services::{ServicesPlan, admin, group, key, public_key, secret};
use handle_tests::test_server::write_key_file;
use handle_tests::vectors::fixture;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

const SECRET: &[u8] = b"a secret that only the other service knows";

fn identity(index: i32, handle: &str, key: IdentityKey) -> Option<Arc<ClientIdentity>> {
    Some(Arc::new(ClientIdentity { handle: handle.into(), index, key }))
}

fn private(id: &str) -> IdentityKey {
    IdentityKey::Private(Box::new(PrivateKey::from_record(&key(id, "handle_private_hex")).unwrap()))
}

fn shared(secret: &[u8]) -> IdentityKey {
    IdentityKey::Secret(Zeroizing::new(secret.to_vec()))
}

/// Creates `handle` as `identity`; returns code and text of the answer.
fn create(server: SocketAddr, handle: &str, identity: Option<Arc<ClientIdentity>>) -> (Code, String) {
    let mut client = Administrator::new(server, Duration::from_secs(60));
    client.identify(identity);
    let mut buffer = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
    let body = HandleValues { handle: handle.as_bytes(), values };
    let answer = client.ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap();
    (answer.code(), answer.text())
}

fn delete(server: SocketAddr, handle: &str, identity: Option<Arc<ClientIdentity>>) -> (Code, String) {
    let mut client = Administrator::new(server, Duration::from_secs(60));
    client.identify(identity);
    let body = HandleBody { handle: handle.as_bytes() };
    let answer = client.ask(&Request::DeleteHandle(body), OpFlags::PLAIN_REQUEST).unwrap();
    (answer.code(), answer.text())
}

/// Plans of two services: `10.1`, administered by a group of the other service, and `20.2`, with
/// that group, its members and their keys. The groups refer to each other in a circle.
fn plans() -> (ServicesPlan, ServicesPlan) {
    let here = ServicesPlan::new(
        "server",
        &["10.1", "10.9"],
        vec![
            ("0.NA/10.1", vec![admin(100, 1, "20.2/group")]),
            ("10.1/group", vec![group(1, &[(1, "20.2/group"), (301, "20.2/who")])]),
        ],
    );
    let there = ServicesPlan::new(
        "mirror",
        &["20.2", "0.NA"],
        vec![
            ("0.NA/10.9", vec![admin(100, 300, "20.2/who")]),
            ("0.NA/20.2", vec![admin(100, 300, "20.2/who")]),
            ("20.2/group", vec![group(1, &[(1, "10.1/group"), (300, "20.2/who")])]),
            (
                "20.2/who",
                vec![public_key(300, "admin_rsa"), secret(301, SECRET), public_key(302, "admin_dsa")],
            ),
            ("20.2/own", vec![admin(100, 1, "10.1/group")]),
        ],
    );
    (here, there)
}

fn start_both() -> (AdminServer, AdminServer) {
    let (here, there) = plans();
    (here.start(&there, |_| ()), there.start(&here, |_| ()))
}

#[test]
fn groups_and_keys_of_another_service_are_used_like_local_ones() {
    let (here, there) = start_both();
    let server = here.address();
    let named = |index| identity(index, "20.2/who", private("admin_rsa"));
    assert_eq!(create(server, "10.1/by-key", named(300)).0, Code::SUCCESS);
    assert_eq!(
        create(server, "10.1/by-any-key", named(0)).0,
        Code::SUCCESS,
        "index 0 means any key that fits"
    );
    let by_secret = |secret| create(server, "10.1/by-secret", identity(301, "20.2/who", shared(secret))).0;
    assert_eq!(by_secret(b"another secret"), Code::AUTHENTICATION_FAILED);
    assert_eq!(by_secret(SECRET), Code::SUCCESS);
    // Another key of the same handle, and a handle that is in no group.
    let other = create(server, "10.1/new", identity(302, "20.2/who", private("admin_dsa")));
    assert_eq!(other.0, Code::INVALID_ADMIN);
    let wrong = create(server, "10.1/new", identity(300, "20.2/who", private("admin_dsa")));
    assert_eq!(wrong.0, Code::AUTHENTICATION_FAILED);
    let nobody = create(server, "10.1/new", identity(300, "20.2/nobody", private("admin_rsa")));
    assert_eq!(nobody.0, Code::INVALID_ADMIN);
    assert!(nobody.1.contains("20.2/nobody lacks"), "{}", nobody.1);
    // The other service uses a group of this one, which refers back to it.
    assert_eq!(delete(there.address(), "20.2/own", named(300)).0, Code::SUCCESS);
    let counts = here.server().shared().service.decision.remote().unwrap().counts();
    assert!(counts.questions > counts.cached && counts.cached > 0 && counts.refused == 0, "{counts:?}");
}

#[test]
fn administrators_of_a_prefix_may_be_at_another_service() {
    let (here, _there) = start_both();
    let named = identity(300, "20.2/who", private("admin_rsa"));
    assert_eq!(create(here.address(), "10.9/new", named).0, Code::SUCCESS);
    let other = create(here.address(), "10.9/other", identity(301, "20.2/who", shared(SECRET)));
    assert_eq!(other.0, Code::INVALID_ADMIN);
}

#[test]
fn a_remote_key_is_looked_up_once_in_a_session() {
    let (here, _there) = start_both();
    let mut client = Administrator::new(here.address(), Duration::from_secs(60));
    client.require_signatures(
        handle_auth::PublicKey::from_record(&key("server", "handle_public_hex")).unwrap(),
    );
    client.use_sessions(Some(600));
    client.identify(identity(301, "20.2/who", shared(SECRET)));
    for handle in ["10.1/one", "10.1/two", "10.1/three"] {
        let mut buffer = Vec::new();
        let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
        let body = HandleValues { handle: handle.as_bytes(), values };
        let answer = client.ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap();
        assert!(matches!(answer.reply().response, Response::Created(_)), "{handle}: {}", answer.text());
    }
    let shared = here.server().shared();
    let counts = shared.service.decision.remote().unwrap().counts();
    assert_eq!(shared.service.proof.challenges().counts().issued, 1);
    // The group is needed three times, twice from the cache, and one answer is verified.
    assert!(counts.questions - counts.cached <= 3, "{counts:?}");
}

#[test]
fn unsigned_answers_of_the_other_service_are_ignored() {
    let (here, mut there) = plans();
    // The key of the other service differs from the announced one.
    there.announced_key_id = "admin_rsa";
    let (server, _there) = (here.start(&there, |_| ()), there.start(&here, |_| ()));
    let named = || identity(300, "20.2/who", private("admin_rsa"));
    let (code, text) = create(server.address(), "10.1/new", named());
    assert_eq!(code, Code::INVALID_ADMIN);
    assert!(text.contains("one does not answer") && !text.contains("20.2/group"), "{text}");
    // Signatures can be made optional by configuration.
    let (here, there) = plans();
    let there = ServicesPlan { announced_key_id: "admin_rsa", ..there };
    let server = here.start(&there, |config| config.remote.certified = false);
    let _there = there.start(&here, |_| ());
    assert_eq!(create(server.address(), "10.1/new", named()).0, Code::SUCCESS);
    assert_eq!(
        create(server.address(), "10.1/secret", identity(301, "20.2/who", shared(SECRET))).0,
        Code::SUCCESS
    );
}

#[test]
fn remote_lookups_can_be_disabled() {
    let (here, there) = plans();
    let server = here.start(&there, |config| config.remote.enabled = false);
    let _there = there.start(&here, |_| ());
    let (code, _) = create(server.address(), "10.1/new", identity(300, "20.2/who", private("admin_rsa")));
    assert_eq!(code, Code::INVALID_ADMIN);
    assert!(server.server().shared().service.decision.remote().is_none());
}

#[test]
fn an_unreachable_service_delays_only_its_own_identities_and_only_for_a_bounded_time() {
    let (here, there) = plans();
    let here = ServicesPlan {
        records: vec![
            (
                "0.NA/10.1",
                vec![admin(100, 300, "20.2/who"), admin(101, 300, "10.1/who"), admin(102, 300, "20.2/other")],
            ),
            ("10.1/who", vec![public_key(300, "admin_rsa")]),
        ],
        ..here
    };
    let server = here.start(&there, |config| {
        config.remote.timeout_ms = 200;
        // Longer than the test takes on any machine.
        config.remote.backoff_ms = 3_600_000;
    });
    let named = |handle| identity(300, handle, private("admin_rsa"));
    // Nothing listens there: the identity may act but cannot be verified.
    let (code, text) = create(server.address(), "10.1/new", named("20.2/who"));
    assert_eq!(code, Code::AUTHENTICATION_ERROR, "{text}");
    assert!(text.contains("300:20.2/who could not be checked"), "{text}");
    // A listener that does not answer.
    let silent = std::net::TcpListener::bind(there.address).unwrap();
    let address = server.address();
    std::thread::scope(|scope| {
        // Failed lookups of the first handle are not repeated yet, so this is another one.
        let waits = scope.spawn(|| create(address, "10.1/new", named("20.2/other")));
        assert!(silent.accept().is_ok(), "a lookup is under way");
        let (code, _) = create(address, "10.1/here", named("10.1/who"));
        assert_eq!(code, Code::SUCCESS, "local identities do not wait for remote lookups");
        let (code, text) = waits.join().unwrap();
        assert_eq!(code, Code::AUTHENTICATION_ERROR, "{text}");
    });
    silent.set_nonblocking(true).unwrap();
    while silent.accept().is_ok() {}
    assert_eq!(create(address, "10.1/new", named("20.2/other")).0, Code::AUTHENTICATION_ERROR);
    assert!(silent.accept().is_err(), "the service is not asked again so soon");
    let elsewhere = server.server().shared().service.decision.remote().unwrap();
    let counts = elsewhere.counts();
    assert_eq!((elsewhere.asking(), counts.unanswered, counts.recently_silent), (0, 2, 1));
}

#[test]
fn failed_secrets_do_not_lock_out_public_keys_and_cached_keys_stay_usable() {
    let (here, there) = plans();
    let here = ServicesPlan {
        records: vec![(
            "0.NA/10.1",
            vec![admin(100, 300, "20.2/who"), admin(101, 301, "20.2/who"), admin(102, 302, "20.2/who")],
        )],
        ..here
    };
    let server = here.start(&there, |config| config.remote.backoff_ms = 600_000);
    let there = there.start(&here, |_| ());
    let by_key = |handle| create(server.address(), handle, identity(300, "20.2/who", private("admin_rsa"))).0;
    assert_eq!(by_key("10.1/one"), Code::SUCCESS);
    drop(there);
    let forged = create(server.address(), "10.1/two", identity(301, "20.2/who", shared(b"forged")));
    assert_eq!(forged.0, Code::AUTHENTICATION_ERROR);
    assert_eq!(by_key("10.1/two"), Code::SUCCESS, "a failed verification of a secret does not affect keys");
    let unknown = create(server.address(), "10.1/three", identity(302, "20.2/who", private("admin_dsa")));
    assert_eq!(unknown.0, Code::AUTHENTICATION_ERROR);
    assert_eq!(by_key("10.1/three"), Code::SUCCESS, "cached keys need no lookup");
}

#[test]
fn remote_lookups_are_limited_per_request() {
    let (here, there) = plans();
    // More than are looked up for one request.
    let groups: Vec<_> = (1..=20).map(|at| admin(100 + at, at, "20.2/who")).collect();
    let here = ServicesPlan { records: vec![("0.NA/10.1", groups)], ..here };
    let server = here.start(&there, |config| config.remote.timeout_ms = 60_000);
    let _there = there.start(&here, |_| ());
    let (code, text) = create(server.address(), "10.1/new", identity(9, "20.2/nobody", private("admin_rsa")));
    assert_eq!(code, Code::INVALID_ADMIN);
    assert!(text.contains("more to look up than is looked up"), "{text}");
    let refused = server.server().shared().service.decision.remote().unwrap().counts().refused;
    assert_eq!(refused, 1, "the limit of lookups ends the decision");
}

#[test]
fn a_source_whose_services_are_silent_does_not_take_the_lookups_of_others() {
    let (here, there) = plans();
    let groups: Vec<_> = (1..=9).map(|at| admin(100 + at, at, "20.2/who")).collect();
    let here = ServicesPlan { records: vec![("0.NA/10.1", groups)], ..here };
    let server = here.start(&there, |config| {
        config.remote.timeout_ms = 10_000;
    });
    let _silent = std::net::TcpListener::bind(there.address).unwrap();
    let (address, elsewhere) =
        (server.address(), server.server().shared().service.decision.remote().unwrap());
    std::thread::scope(|scope| {
        let attempt =
            |handle: &'static str| create(address, handle, identity(300, "20.2/who", private("admin_rsa")));
        // A quarter is for one source.
        let handles = ["10.9/one", "10.9/two", "10.9/three", "10.9/four"];
        let waiting = handles.map(|handle| scope.spawn(move || attempt(handle)));
        until("four requests wait", || elsewhere.asking() == 4);
        let since = Instant::now();
        let (code, text) = attempt("10.9/five");
        assert_eq!(code, Code::SERVER_BUSY, "{text}");
        assert!(since.elapsed() < Duration::from_secs(8), "it has not waited like the others");
        waiting.into_iter().for_each(|it| drop(it.join().unwrap()));
    });
}

#[test]
fn the_server_that_administers_a_handle_is_found() {
    let (here, there) = start_both();
    // Each service's list of sites names the other one.
    let site_list = |service: &AdminServer| -> Vec<Json> {
        let file = service.directory.path().join("local_info.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let [local_info, private, batch] =
        ["local_info.json", "admin.bin", "batch.txt"].map(|name| directory.path().join(name));
    std::fs::write(&local_info, Json::from([site_list(&here), site_list(&there)].concat()).to_string())
        .unwrap();
    write_key_file(&private, &fixture("servers.json")["keys"]["admin_rsa"]);
    let hdl = |args: &[&str]| {
        let mut command = hdl(args);
        command.env("HDL_LOCAL_INFO", &local_info).env("HDL_KEY", &private).env("HDL_AUTH", "300:20.2/who");
        command.env_remove("HDL_SERVER");
        command
    };
    for handle in ["10.1/found", "20.2/found"] {
        succeed(hdl(&[
            "handle",
            "create",
            handle,
            "1:URL=https://example.org/",
            "100:HS_ADMIN=300:20.2/who",
        ]));
        assert!(succeed(hdl(&["handle", "get", handle, "--certify"])).contains("https://example.org/"));
    }
    assert_eq!(
        succeed(hdl(&["handle", "list", "20.2"])).lines().filter(|line| line.contains("FOUND")).count(),
        1
    );
    succeed(hdl(&["handle", "delete", "10.1/found", "20.2/found"]));
    let (code, text) = fail(hdl(&["handle", "home", "0.NA/10.7"]));
    assert!(code == 2 && text.contains("--server"), "{text}");
    let (code, text) = fail(hdl(&["handle", "get", "99.9/none"]));
    assert!(code == 1 && text.contains("0.NA/99.9"), "{text}");
    // Each operation of a batch goes to the server of its handle.
    let create = |handle: &str| format!("CREATE {handle}\n1 URL 86400 1110 UTF8 https://example.org/\n\n");
    let lines = ["10.1/one", "99.9/nowhere", "20.2/two", "10.9/three"].map(create).concat();
    std::fs::write(&batch, lines).unwrap();
    let (code, text) = fail(hdl(&["batch", batch.to_str().unwrap(), "--parallel", "2"]));
    assert!(code == 1 && text.contains("99.9/nowhere"), "{text}");
    let has = |service: &AdminServer, handle: &[u8]| {
        service.server().shared().service.store.snapshot().unwrap().record(handle).unwrap().is_some()
    };
    assert!(has(&here, b"10.1/ONE") && has(&here, b"10.9/THREE") && has(&there, b"20.2/TWO"), "{text}");
    // An unreachable server stops the batch, which can be resumed.
    drop(there);
    std::fs::write(&batch, [create("20.2/later"), create("10.1/later")].concat()).unwrap();
    let again = directory.path().join("again.log");
    // One after the other: creations run several at once by default.
    let args = ["batch", batch.to_str().unwrap(), "--parallel", "1", "--log", again.to_str().unwrap()];
    let (code, text) = fail(hdl(&args));
    assert!(code == 1 && text.contains("stopped") && text.contains("--resume"), "{text}");
    assert!(!has(&here, b"10.1/LATER"));
}
