//! Identities, groups and administrators of prefixes whose records are at another service: who is
//! believed, who is asked, and what becomes of requests when nobody answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::store::StoreRecords as _;
use handle_auth::PrivateKey;
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode as Code, Value, Values};
use handle_tests::admin_server::AdminServer;
use handle_tests::process::{fail, hdl, succeed};
use handle_tests::services::{ServicesPlan, admin, group, key, public_key, secret};
use handle_tests::test_server::write_key_file;
use handle_tests::vectors::fixture;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

const SECRET: &[u8] = b"a secret that only the other service knows";

fn who(index: i32, handle: &str, key: IdentityKey) -> Option<Arc<ClientIdentity>> {
    Some(Arc::new(ClientIdentity { handle: handle.into(), index, key }))
}

fn private(id: &str) -> IdentityKey {
    IdentityKey::Private(Box::new(PrivateKey::from_record(&key(id, "handle_private_hex")).unwrap()))
}

fn shared(secret: &[u8]) -> IdentityKey {
    IdentityKey::Secret(Zeroizing::new(secret.to_vec()))
}

/// Creates `handle` as somebody: the code, and what is said with it.
fn create(server: SocketAddr, handle: &str, identity: Option<Arc<ClientIdentity>>) -> (Code, String) {
    let mut client = Administrator::new(server, Duration::from_secs(60));
    client.identify(identity);
    let mut room = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut room);
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

/// Here `10.1`, whose administrators are a group there; there `20.2`, with the group, its members
/// and their keys. The groups of the two lead to each other in circles.
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

fn both() -> (AdminServer, AdminServer) {
    let (here, there) = plans();
    (here.start(&there, |_| ()), there.start(&here, |_| ()))
}

#[test]
fn groups_and_keys_of_another_service_count_as_if_they_were_here() {
    let (here, there) = both();
    let server = here.address();
    let named = |index| who(index, "20.2/who", private("admin_rsa"));
    assert_eq!(create(server, "10.1/by-key", named(300)).0, Code::SUCCESS);
    assert_eq!(create(server, "10.1/by-any-key", named(0)).0, Code::SUCCESS, "the key that fits is entitled");
    let by_secret = |secret| create(server, "10.1/by-secret", who(301, "20.2/who", shared(secret))).0;
    assert_eq!(by_secret(b"another secret"), Code::AUTHENTICATION_FAILED);
    assert_eq!(by_secret(SECRET), Code::SUCCESS);
    // Another key of the same handle, and a handle that is in no group.
    let other = create(server, "10.1/new", who(302, "20.2/who", private("admin_dsa")));
    assert_eq!(other.0, Code::INVALID_ADMIN);
    let wrong = create(server, "10.1/new", who(300, "20.2/who", private("admin_dsa")));
    assert_eq!(wrong.0, Code::AUTHENTICATION_FAILED);
    let nobody = create(server, "10.1/new", who(300, "20.2/nobody", private("admin_rsa")));
    assert_eq!(nobody.0, Code::INVALID_ADMIN);
    assert!(nobody.1.contains("20.2/nobody lacks"), "{}", nobody.1);
    // The other way round, by a group here that leads back there.
    assert_eq!(delete(there.address(), "20.2/own", named(300)).0, Code::SUCCESS);
    let counts = here.server().shared().service.remote().unwrap().counts();
    assert!(counts.questions > counts.cached && counts.cached > 0 && counts.refused == 0, "{counts:?}");
}

#[test]
fn administrators_of_a_prefix_may_be_at_another_service() {
    let (here, _there) = both();
    let named = who(300, "20.2/who", private("admin_rsa"));
    assert_eq!(create(here.address(), "10.9/new", named).0, Code::SUCCESS);
    let other = create(here.address(), "10.9/other", who(301, "20.2/who", shared(SECRET)));
    assert_eq!(other.0, Code::INVALID_ADMIN);
}

#[test]
fn in_a_session_the_key_is_asked_for_once() {
    let (here, _there) = both();
    let mut client = Administrator::new(here.address(), Duration::from_secs(60));
    client.require_signatures(
        handle_auth::PublicKey::from_record(&key("server", "handle_public_hex")).unwrap(),
    );
    client.use_sessions(Some(600));
    client.identify(who(301, "20.2/who", shared(SECRET)));
    for handle in ["10.1/one", "10.1/two", "10.1/three"] {
        let mut room = Vec::new();
        let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut room);
        let body = HandleValues { handle: handle.as_bytes(), values };
        let answer = client.ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap();
        assert!(matches!(answer.reply().response, Response::Created(_)), "{handle}: {}", answer.text());
    }
    let shared = here.server().shared();
    let counts = shared.service.remote().unwrap().counts();
    assert_eq!(shared.service.challenges().counts().issued, 1);
    // The group three times, of which twice from the cache, and one verdict.
    assert!(counts.questions - counts.cached <= 3, "{counts:?}");
}

#[test]
fn what_the_other_service_did_not_sign_counts_for_nothing() {
    let (here, mut there) = plans();
    // Whoever answers there has another key than it is known by.
    there.told_key_id = "admin_rsa";
    let (server, _there) = (here.start(&there, |_| ()), there.start(&here, |_| ()));
    let named = || who(300, "20.2/who", private("admin_rsa"));
    let (code, text) = create(server.address(), "10.1/new", named());
    assert_eq!(code, Code::INVALID_ADMIN);
    assert!(text.contains("one does not answer") && !text.contains("20.2/group"), "{text}");
    // An operator may say that it counts all the same.
    let (here, there) = plans();
    let there = ServicesPlan { told_key_id: "admin_rsa", ..there };
    let server = here.start(&there, |config| config.remote.certified = false);
    let _there = there.start(&here, |_| ());
    assert_eq!(create(server.address(), "10.1/new", named()).0, Code::SUCCESS);
    assert_eq!(
        create(server.address(), "10.1/secret", who(301, "20.2/who", shared(SECRET))).0,
        Code::SUCCESS
    );
}

#[test]
fn nobody_is_asked_unless_the_operator_wants_it() {
    let (here, there) = plans();
    let server = here.start(&there, |config| config.remote.enabled = false);
    let _there = there.start(&here, |_| ());
    let (code, _) = create(server.address(), "10.1/new", who(300, "20.2/who", private("admin_rsa")));
    assert_eq!(code, Code::INVALID_ADMIN);
    assert!(server.server().shared().service.remote().is_none());
}

#[test]
fn a_service_that_is_gone_takes_a_bounded_time_and_nobody_elses() {
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
        config.remote.requests = 1;
        // Whatever else this machine does meanwhile.
        config.remote.backoff_ms = 3_600_000;
    });
    let named = |handle| who(300, handle, private("admin_rsa"));
    // Nobody listens there: the identity is entitled, and cannot be checked.
    let (code, text) = create(server.address(), "10.1/new", named("20.2/who"));
    assert_eq!(code, Code::AUTHENTICATION_ERROR, "{text}");
    assert!(text.contains("300:20.2/who could not be checked"), "{text}");
    // Somebody takes connections, and says nothing.
    let silent = std::net::TcpListener::bind(there.address).unwrap();
    let address = server.address();
    std::thread::scope(|scope| {
        // About the first handle nobody is asked again so soon.
        let waits = scope.spawn(|| create(address, "10.1/new", named("20.2/other")));
        assert!(silent.accept().is_ok(), "it is being asked");
        let (code, _) = create(address, "10.1/here", named("10.1/who"));
        assert_eq!(code, Code::SUCCESS, "who is here does not wait for that");
        let (code, text) = waits.join().unwrap();
        assert_eq!(code, Code::AUTHENTICATION_ERROR, "{text}");
    });
    silent.set_nonblocking(true).unwrap();
    while silent.accept().is_ok() {}
    assert_eq!(create(address, "10.1/new", named("20.2/other")).0, Code::AUTHENTICATION_ERROR);
    assert!(silent.accept().is_err(), "it is not asked again so soon");
    let elsewhere = server.server().shared().service.remote().unwrap();
    let counts = elsewhere.counts();
    assert_eq!((elsewhere.asking(), counts.unanswered, counts.recently_silent), (0, 2, 1));
}

#[test]
fn who_has_a_public_key_is_not_locked_out_by_made_up_secrets_nor_while_the_key_is_known() {
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
    let by_key = |handle| create(server.address(), handle, who(300, "20.2/who", private("admin_rsa"))).0;
    assert_eq!(by_key("10.1/one"), Code::SUCCESS);
    drop(there);
    let made_up = create(server.address(), "10.1/two", who(301, "20.2/who", shared(b"made up")));
    assert_eq!(made_up.0, Code::AUTHENTICATION_ERROR);
    assert_eq!(by_key("10.1/two"), Code::SUCCESS, "silence to secrets says nothing about keys");
    let unknown = create(server.address(), "10.1/three", who(302, "20.2/who", private("admin_dsa")));
    assert_eq!(unknown.0, Code::AUTHENTICATION_ERROR);
    assert_eq!(by_key("10.1/three"), Code::SUCCESS, "what is known needs nobody to answer");
}

#[test]
fn remote_lookups_are_limited_at_a_time_and_per_request() {
    let (here, there) = plans();
    let groups: Vec<_> = (1..=9).map(|at| admin(100 + at, at, "20.2/who")).collect();
    let here = ServicesPlan { records: vec![("0.NA/10.1", groups)], ..here };
    let server = here.start(&there, |config| {
        config.remote.queries_per_request = 4;
        config.remote.requests = 1;
        config.remote.timeout_ms = 60_000;
    });
    {
        let _there = there.start(&here, |_| ());
        let (code, text) = create(server.address(), "10.1/new", who(9, "20.2/nobody", private("admin_rsa")));
        assert_eq!(code, Code::INVALID_ADMIN);
        assert!(text.contains("more to look up than is looked up"), "{text}");
        let refused = server.server().shared().service.remote().unwrap().counts().refused;
        assert_eq!(refused, 1, "then it is decided, and what else there is to know is not gone through");
    }
    // The only place is taken by one that waits: the next is told so, and is not kept waiting.
    let silent = std::net::TcpListener::bind(there.address).unwrap();
    let address = server.address();
    std::thread::scope(|scope| {
        let attempt =
            |handle: &'static str| create(address, handle, who(300, "20.2/who", private("admin_rsa")));
        let waits = scope.spawn(move || attempt("10.9/one"));
        let (held, _) = silent.accept().unwrap();
        let (code, text) = attempt("10.9/two");
        assert_eq!(code, Code::SERVER_BUSY, "{text}");
        drop((held, silent));
        assert_eq!(waits.join().unwrap().0, Code::INVALID_ADMIN);
    });
}

#[test]
fn the_server_that_administers_a_handle_is_found() {
    let (here, there) = both();
    // What each knows of the other is what there is to know.
    let site_list = |service: &AdminServer| -> Vec<Json> {
        let file = service.directory.path().join("local_info.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    let place = tempfile::tempdir().unwrap();
    let [local_info, private, batch] =
        ["local_info.json", "admin.bin", "batch.txt"].map(|name| place.path().join(name));
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
    // Of a batch, each operation goes where its handle is.
    let create = |handle: &str| format!("CREATE {handle}\n1 URL 86400 1110 UTF8 https://example.org/\n\n");
    let lines = ["10.1/one", "99.9/nowhere", "20.2/two", "10.9/three"].map(create).concat();
    std::fs::write(&batch, lines).unwrap();
    let (code, text) = fail(hdl(&["batch", batch.to_str().unwrap(), "--parallel", "2"]));
    assert!(code == 1 && text.contains("99.9/nowhere"), "{text}");
    let has = |service: &AdminServer, handle: &[u8]| {
        service.server().shared().service.store.snapshot().unwrap().record(handle).unwrap().is_some()
    };
    assert!(has(&here, b"10.1/ONE") && has(&here, b"10.9/THREE") && has(&there, b"20.2/TWO"), "{text}");
    // A server that is gone stops it, to go on later.
    drop(there);
    std::fs::write(&batch, [create("20.2/later"), create("10.1/later")].concat()).unwrap();
    let again = place.path().join("again.log");
    let args = ["batch", batch.to_str().unwrap(), "--log", again.to_str().unwrap()];
    let (code, text) = fail(hdl(&args));
    assert!(code == 1 && text.contains("stopped") && text.contains("--resume"), "{text}");
    assert!(!has(&here, b"10.1/LATER"));
}
