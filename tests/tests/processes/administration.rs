//! A new service: `hdl init`, `handle-admin`, `handled`, and the procedures of
//! `docs/administration.md`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::challenge::answer_with_key;
use handle_auth::{PrivateKey, PublicKey};
use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_tests::batches::{batch, operations};
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::process::{RunningProcess, fail, succeed, until};
use handle_tests::service_directory::{InitialisedService, sorted_lines};
use handle_tests::session::{ClientSession, SessionExchange};
use serde_json::Value as Json;

#[test]
fn records_are_administered_over_the_network_and_answered_by_handled() {
    let service = InitialisedService::start();
    let create =
        ["handle", "create", "10.1045/first", "1:URL=https://a.example/", "100:HS_ADMIN=300:10.1045/ADMIN"];
    succeed(service.hdl_as_admin(create));
    service.until_resolved("10.1045/first", 1, "https://a.example/");
    assert_eq!(fail(service.hdl_as_admin(create)).0, 6, "the handle exists");
    succeed(service.hdl_as_admin([
        "handle",
        "update",
        "10.1045/first",
        "1:URL=https://b.example/",
        "2:EMAIL=a@b.example",
    ]));
    service.until_resolved("10.1045/first", 1, "https://b.example/");
    assert_eq!(fail(service.hdl_as_admin(["handle", "update", "10.1045/first", "2:EMAIL=x", "--add"])).0, 6);
    assert_eq!(
        fail(service.hdl_as_admin(["handle", "update", "10.1045/first", "3:EMAIL=x", "--modify"])).0,
        4
    );
    succeed(service.hdl_as_admin(["handle", "update", "10.1045/first", "--remove", "2"]));
    // The answer is signed by the server, or comes in a session.
    let get = ["handle", "get", "10.1045/first", "--json", "--server-key", "site/server-public.bin"];
    let record: Json = serde_json::from_str(&succeed(service.hdl_as_admin(get))).unwrap();
    let indexes: Vec<_> =
        record["values"].as_array().unwrap().iter().map(|value| value["index"].as_i64()).collect();
    assert_eq!(indexes, [Some(1), Some(100)]);
    let minted =
        succeed(service.hdl_as_admin(["handle", "create", "10.1045/", "--mint", "1:URL=x", "--json"]));
    let minted: Json = serde_json::from_str(&minted).unwrap();
    assert!(minted["handle"].as_str().unwrap().len() > 40, "{minted}");
    let listed = succeed(service.hdl_as_admin(["handle", "list", "10.1045"]));
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(succeed(service.hdl_as_admin(["handle", "list", "--homed"])).trim(), "0.NA/10.1045");
    succeed(service.hdl_as_admin(["handle", "delete", "10.1045/first"]));
    service.until_resolved("10.1045/first", 100, "");
    assert_eq!(fail(service.hdl_as_admin(["handle", "delete", "10.1045/first"])).0, 3);

    // The key of another identity is refused, and so is a request without identity.
    let server_key = service.hdl_as(create, "300:10.1045/ADMIN", "site/server-private.bin");
    assert_eq!(fail(server_key).0, 6);
    let anonymous = service.hdl(create.into_iter().chain(["--server", &service.administration.to_string()]));
    assert!(fail(anonymous).1.contains("requires authentication"));
    // Handles of other prefixes are refused.
    assert_eq!(fail(service.hdl_as_admin(["handle", "create", "10.9/a", "1:URL=x"])).0, 5);
}

/// Code and plaintext of an answer in a session.
fn code_of(session: &mut ClientSession, answer: &[u8]) -> (ResponseCode, Vec<u8>) {
    let (plain, _) = session.read(answer);
    (Message::decode(&plain[Envelope::LEN..]).unwrap().header.response_code, plain)
}

#[test]
fn deployed_clients_set_a_session_up_for_queries_and_administer_in_it() {
    let mut service = InitialisedService::start();
    let read = |name: &str| std::fs::read(service.path("site").join(name)).unwrap();
    let server_key = PublicKey::from_record(&read("server-public.bin")).unwrap();
    let key = handle_auth::keyfile::decode(&read("admin-private.bin"), None).unwrap();
    let key = PrivateKey::new(&key.view()).unwrap();
    let administrator = Reference { handle: b"10.1045/ADMIN", index: 300 };
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
    // Deployed clients use the first interface for queries, over UDP or TCP, to set up any session.
    for (number, set_up) in [exchange as SessionExchange, exchange_over_tcp].into_iter().enumerate() {
        let mut session = ClientSession::open(set_up, service.queries, administrator, &server_key);
        for round in 0..2 {
            let mut storage = Vec::new();
            let values = Values::build([Value::new(1, b"URL", b"https://a.example/")], &mut storage);
            let handle = format!("10.1045/in-session-{number}-{round}");
            let body = HandleValues { handle: handle.as_bytes(), values };
            let request = session.request(1, flags, &Request::CreateHandle(body));
            let request = session.seal(request);
            let answer = exchange_over_tcp(service.administration, &request).unwrap();
            let (code, plain) = code_of(&mut session, &answer);
            if round == 0 {
                assert_eq!(code, ResponseCode::AUTHENTICATION_NEEDED);
                let (envelope, rest) = Envelope::split(&plain).unwrap();
                let challenge = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
                let Body::Reply(Reply { response: Response::Challenge(contents), digest, .. }) = challenge
                else {
                    panic!("a challenge")
                };
                let covered = [contents.nonce, digest.unwrap().digest];
                let body = ChallengeAnswer {
                    auth_type: auth::PUBLIC_KEY,
                    identity: administrator,
                    signed_response: &answer_with_key(session.version, &covered, &key).unwrap(),
                };
                let proof = session.request(2, flags, &Request::AnswerChallenge(body));
                let answer = exchange_over_tcp(service.administration, &proof).unwrap();
                assert_eq!(code_of(&mut session, &answer).0, ResponseCode::SUCCESS);
            } else {
                assert_eq!(code, ResponseCode::SUCCESS, "the identity is authenticated");
            }
            service.until_resolved(&handle, 1, "https://a.example/");
        }
        // After a restart of handle-admin, clients set up a new session.
        service.admin = None;
        service.start_admin();
    }
}

#[test]
fn a_batch_backup_and_another_server_give_the_same_records() {
    let mut service = InitialisedService::start();
    let mut batch = String::from("AUTHENTICATE PUBKEY:300:10.1045/ADMIN\nsite/admin-private.bin\n\n");
    for at in 0..60 {
        let data =
            format!("1 URL 86400 1110 UTF8 https://example.org/{at}\n2 HS_SECKEY 60 1100 UTF8 secret {at}\n");
        let admin = "100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:10.1045/ADMIN\n";
        batch += &format!("CREATE 10.1045/{at}\n{data}{admin}\n");
    }
    batch += "DELETE 10.1045/7\nREMOVE 2:10.1045/8\n";
    std::fs::write(service.path("batch.txt"), batch).unwrap();
    let server = service.administration.to_string();
    let args = [
        "batch",
        "batch.txt",
        "--server",
        &server,
        "--parallel",
        "4",
        "--server-key",
        "site/server-public.bin",
    ];
    succeed(service.hdl(args));
    service.until_resolved("10.1045/7", 100, "");
    until("all records are published", || service.published().len() == 62);
    let published = service.published();

    // From the running server, by listing and resolving. It does not list the prefix record under
    // the prefix.
    let remote = ["import", "copy.redb", "--create", "--prefix", "10.1045"];
    succeed(service.hdl_as_admin(remote));
    let copied = sorted_lines(&succeed(service.hdl(["export", "copy.redb", "-"])));
    let listed: Vec<_> =
        published.iter().filter(|line| !line.contains("{\"handle\":\"0.NA/")).cloned().collect();
    assert_eq!(copied, listed);

    // From the served set into an empty store, which is then served.
    succeed(service.hdl(["export", "site/snapshot", "backup.jsonl"]));
    service.admin = None;
    std::fs::rename(service.path("site/store.redb"), service.path("broken.redb")).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "backup.jsonl", "--create"]));
    succeed(service.hdl(["store", "check", "site/store.redb"]));
    assert_eq!(sorted_lines(&succeed(service.hdl(["export", "site/store.redb", "-"]))), published);
    service.start_admin();
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/after", "1:URL=restored"]));
    service.until_resolved("10.1045/after", 1, "restored");
    service.until_resolved("10.1045/5", 1, "https://example.org/5");
}

#[test]
fn keys_are_rotated_as_documented() {
    let mut service = InitialisedService::start();
    let create = |name: &'static str| ["handle", "create", name, "1:URL=x"];
    succeed(service.hdl(["key", "generate", "new-private.bin", "new-public.bin", "--plain"]));
    let replace = ["handle", "update", "10.1045/ADMIN", "300:HS_PUBKEY=@new-public.bin"];
    succeed(service.hdl_as_admin(replace));
    assert_eq!(fail(service.hdl_as_admin(create("10.1045/by-the-old-key"))).0, 6);
    let new = |name| service.hdl_as(create(name), "300:10.1045/ADMIN", "new-private.bin");
    succeed(new("10.1045/by-the-new-key"));

    // The new key is lost, and the old one is restored directly in the store.
    service.admin = None;
    let record = succeed(service.hdl(["export", "site/store.redb", "-"]));
    let record = record.lines().find(|line| line.starts_with("{\"handle\":\"10.1045/ADMIN\"")).unwrap();
    let mut record: Json = serde_json::from_str(record).unwrap();
    let old: Json =
        serde_json::from_str(&succeed(service.hdl(["key", "show", "site/admin-public.bin", "--json"])))
            .unwrap();
    record["values"][1]["data"] = serde_json::json!({ "format": "key", "value": old["publicKey"] });
    std::fs::write(service.path("record.jsonl"), record.to_string()).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "record.jsonl"]));
    service.start_admin();
    succeed(service.hdl_as_admin(create("10.1045/by-the-old-key")));
}

#[test]
fn a_killed_and_resumed_batch_results_in_the_same_store() {
    // A tenth of the operations of the tests in memory: here each is on disk before it is
    // acknowledged.
    let text = batch(5, operations() / 10);
    let stores = [false, true].map(|is_killed| {
        let mut service = InitialisedService::start();
        let port = service.administration.port().to_string();
        std::fs::write(service.path("batch.txt"), text.replace("PORT", &port)).unwrap();
        let command = |more: &[&'static str]| {
            service.hdl_as_admin(
                ["batch", "batch.txt", "--parallel", "4", "--allow-cleartext-secrets"]
                    .into_iter()
                    .chain(more.iter().copied()),
            )
        };
        let mut resume: &[&str] = &[];
        if is_killed {
            let mut running = RunningProcess::start(command(&["--rate", "200"]));
            let log = service.path("batch.txt.log");
            until("some operations are done", || {
                std::fs::read_to_string(&log).is_ok_and(|log| log.lines().count() > 40)
            });
            running.0.kill().unwrap();
            running.0.wait().unwrap();
            resume = &["--resume"];
        }
        let (code, error) = fail(command(resume));
        assert!(
            code == 1 && !error.contains("stopped"),
            "some operations are refused and none is left: {error}"
        );
        service.admin = None;
        let lines = succeed(service.hdl(["export", "site/store.redb", "-"]));
        // Keys and timestamps differ.
        let lines = lines.lines().filter(|line| !line.contains("/ADMIN") && !line.contains("0.NA/10.1045\""));
        lines.map(without_times).collect::<Vec<_>>()
    });
    assert!(stores[0].len() > 20, "{} lines", stores[0].len());
    assert_eq!(stores[0], stores[1]);
}

/// A record without the timestamps of its values.
fn without_times(line: &str) -> Json {
    let mut json: Json = serde_json::from_str(line).unwrap();
    for value in json["values"].as_array_mut().into_iter().flatten() {
        value.as_object_mut().unwrap().remove("timestamp");
    }
    json
}
