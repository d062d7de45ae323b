//! `hdl key rotate`: a new key for an administrator and for a publisher, with the old one valid
//! until the second command. That of a server is in `first_steps.rs`.

use handle_auth::file::create_secret_file;
use handle_proto::ResponseCode;
use handle_tests::client::TestClient;
use handle_tests::daemon::ask;
use handle_tests::process::{fail, hdl, succeed, until};
use handle_tests::service_directory::InitialisedService;
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::Datapath;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

/// A command to `handle-admin` of the service as an identity with a key.
fn as_administrator(service: &InitialisedService, arguments: &[&str], auth: &str, key: &str) -> Command {
    let server = service.administration.to_string();
    let further = ["--server", &server, "--auth", auth, "--key", key];
    service.hdl(arguments.iter().copied().chain(further))
}

#[test]
fn an_administrator_has_two_keys_until_the_new_one_takes_the_place_of_the_old_one() {
    let mut service = InitialisedService::make();
    service.start_admin();
    let old = ("300:10.1045/ADMIN", "site/admin-private.bin");
    let (beside, new) = (("301:10.1045/ADMIN", "new.bin"), ("300:10.1045/ADMIN", "new.bin"));
    let rotate = |options: &[&str]| {
        let arguments = [&["key", "rotate", "administrator", "new.bin", "--plain"], options].concat();
        as_administrator(&service, &arguments, old.0, old.1)
    };
    let change = |name: &str, (auth, key): (&str, &str)| {
        let handle = format!("10.1045/{name}");
        as_administrator(&service, &["handle", "create", &handle, "1:URL=https://example.org/"], auth, key)
    };
    let (code, error) = fail(rotate(&["--finish"]));
    assert!(code == 1 && error.contains("new.bin is not there"), "{code}: {error}");
    let said = succeed(rotate(&[]));
    assert!(said.contains("301:10.1045/ADMIN has the key of new.bin"), "{said}");
    // Repeated, as after an interruption, it adds nothing.
    assert_eq!(succeed(rotate(&[])), said);
    succeed(change("old", old));
    // The settings name the old key; its record accepts the new one already.
    fail(change("new", beside));
    succeed(as_administrator(
        &service,
        &["handle", "update", "10.1045/ADMIN", "5:DESC=new"],
        beside.0,
        beside.1,
    ));
    let settings = service.path("site/service.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let both = text.replace("[\"300:10.1045/ADMIN\"]", "[\"300:10.1045/ADMIN\", \"301:10.1045/ADMIN\"]");
    assert_ne!(both, text);
    std::fs::write(&settings, both).unwrap();
    assert_eq!(ask(&service.path("site/run/handle-admin.sock"), "reload")["ok"], true);
    succeed(change("both", old));
    succeed(change("new", beside));

    succeed(rotate(&["--finish"]));
    succeed(change("finished", new));
    for (name, (auth, key)) in [("a", old), ("b", beside)] {
        let (_, error) = fail(change(name, (auth, key)));
        assert!(error.contains("10.1045/ADMIN") || error.contains("answered 40"), "{auth} {key}: {error}");
    }
    let record = succeed(as_administrator(&service, &["handle", "get", "10.1045/ADMIN"], new.0, new.1));
    assert!(!record.contains("301"), "{record}");
    // Repeated, it finds nothing left to do.
    succeed(rotate(&["--finish"]));
}

#[test]
fn the_second_command_for_an_administrator_is_completed_after_an_interruption() {
    let mut service = InitialisedService::make();
    service.start_admin();
    let (auth, old) = ("300:10.1045/ADMIN", "site/admin-private.bin");
    let rotate = |options: &[&str]| {
        let arguments = [&["key", "rotate", "administrator", "new.bin", "--plain"], options].concat();
        succeed(as_administrator(&service, &arguments, auth, old))
    };
    rotate(&[]);
    assert_eq!(service.path("new.bin").metadata().unwrap().mode() & 0o777, 0o600);
    // As after a kill between the two changes: the new key has its place, and is at its own index.
    let shown = succeed(service.hdl(["key", "show", "new.bin", "--json"]));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    std::fs::write(service.path("new.jwk"), shown["publicKey"].to_string()).unwrap();
    succeed(service.hdl(["key", "convert", "new.jwk", "new-public.bin", "--to", "native"]));
    let update = ["handle", "update", "10.1045/ADMIN", "300:HS_PUBKEY=@new-public.bin"];
    succeed(as_administrator(&service, &update, auth, old));
    let said = rotate(&["--finish"]);
    assert!(said.contains("leave it out"), "{said}");
    let get = ["handle", "get", "10.1045/ADMIN"];
    let record = succeed(as_administrator(&service, &get, auth, "new.bin"));
    assert!(record.contains("300") && !record.contains("301"), "{record}");
}

#[test]
fn readers_accept_both_keys_of_a_publisher_until_one_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (private, public, other) = (path("private.bin"), path("public.bin"), path("public-other.bin"));
    let mut generate = hdl(["key", "generate", "--plain"]);
    generate.arg(&private).arg(&public);
    succeed(generate);
    let publish = |name: &str| {
        std::fs::write(path("records.jsonl"), format!(r#"{{"handle":"10.1/{name}","values":[]}}"#)).unwrap();
        let mut publish = hdl(["snapshot", "publish", "--key"]);
        publish.arg(&private).arg(path("set")).arg(path("records.jsonl"));
        succeed(publish);
    };
    let rotate = |options: &[&str]| {
        let mut rotate = hdl(["key", "rotate", "publisher"]);
        rotate.arg(&private).arg(&public).args(options);
        rotate
    };
    publish("before");
    let (code, error) = fail(rotate(&["--finish"]));
    assert!(code == 1 && error.contains("private-next.bin is not there"), "{code}: {error}");
    let old = std::fs::read(&public).unwrap();
    let said = succeed(rotate(&[]));
    assert!(said.contains("publishers.keys = "), "{said}");
    assert_eq!(succeed(rotate(&[])), said, "it makes one key");
    assert_eq!(std::fs::read(&public).unwrap(), old, "the old key signs still");

    let mut config = test_server::config(&path("set"), Datapath::Auto);
    config.publishers.keys = vec![public.clone(), other.clone()];
    let server = Server::start(&config).unwrap();
    let serves = |server: &Server, handle: &str| {
        let reply = TestClient::new(server.addresses()[0]).resolve(handle.as_bytes());
        reply.is_some_and(|reply| reply.code != ResponseCode::HANDLE_NOT_FOUND)
    };
    assert!(serves(&server, "10.1/before"));
    publish("between");
    until("a set of the old key is served", || serves(&server, "10.1/between"));
    let (new, kept) = (std::fs::read(&other).unwrap(), std::fs::read(&private).unwrap());
    succeed(rotate(&["--finish"]));
    assert_eq!(std::fs::read(&other).unwrap(), old, "readers that start find both keys");
    // As after a kill between the public files and the private one, and between the public files.
    for interrupted in [&new, &old] {
        std::fs::rename(&private, path("private-next.bin")).unwrap();
        create_secret_file(&private, &kept).unwrap();
        std::fs::write(&public, interrupted).unwrap();
        if interrupted == &new {
            let (_, error) = fail(rotate(&[]));
            assert!(error.contains("repeat it"), "readers need the old key still: {error}");
        }
        succeed(rotate(&["--finish"]));
        assert_eq!([&public, &other].map(|file| std::fs::read(file).unwrap()), [new.clone(), old.clone()]);
        assert_eq!(std::fs::read(path("private-old.bin")).unwrap(), kept);
    }
    // A reader starts with a set that the old key has signed.
    Server::start(&config).unwrap().stop().unwrap();
    publish("after");
    until("a set of the new key is served", || serves(&server, "10.1/after"));
    config.publishers.keys = vec![public];
    assert!(serves(&Server::start(&config).unwrap(), "10.1/after"), "the new key alone");
    config.publishers.keys = vec![other];
    assert!(Server::start(&config).is_err(), "the old key alone");
}
