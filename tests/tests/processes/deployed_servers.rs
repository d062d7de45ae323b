//! `hdl` with deployed servers: they close each connection shortly after its answer, have separate
//! ports for queries and administration, do not sign answers to unreadable requests, and only
//! return readable values.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::wire::failure::Failure;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use handle_tests::interceptor::{ConnectionManners, Interceptor, MessageFate};
use handle_tests::process::{fail, run, succeed};
use handle_tests::service_directory::InitialisedService;
use serde_json::{Value as Json, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Delay between an answer and the end of its connection; requests sent meanwhile are lost.
const LATER: Duration = Duration::from_millis(40);

/// A running service with records of two administrators.
fn service() -> &'static InitialisedService {
    static SERVICE: OnceLock<InitialisedService> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let mut service = InitialisedService::make();
        // The second administrator may list handles and read some values.
        let records = succeed(service.hdl(["export", "site/store.redb", "-"]));
        let prefix = records.lines().find(|line| line.starts_with("{\"handle\":\"0.NA/10.1045\"")).unwrap();
        let mut prefix: Json = serde_json::from_str(prefix).unwrap();
        let admin = json!({ "handle": "10.1045/SECOND", "index": 300, "permissions": "100000000000" });
        let data = json!({ "format": "admin", "value": admin });
        let list = json!({ "index": 150, "type": "HS_ADMIN", "data": data, "ttl": 86400 });
        prefix["values"].as_array_mut().unwrap().push(list);
        std::fs::write(service.path("prefix.jsonl"), prefix.to_string()).unwrap();
        succeed(service.hdl(["import", "site/store.redb", "prefix.jsonl"]));
        service.start_admin();
        let generate = ["key", "generate", "second-private.bin", "second-public.bin", "--plain"];
        succeed(service.hdl(generate));
        for change in [
            &[
                "create",
                "10.1045/SECOND",
                "300:HS_PUBKEY=@second-public.bin",
                "100:HS_ADMIN=300:10.1045/ADMIN",
            ][..],
            &[
                "create",
                "10.1045/mine",
                "1:URL=x",
                "2:NOTE=for us",
                "100:HS_ADMIN=300:10.1045/SECOND",
                "--permissions",
                "1100",
            ],
            &["create", "10.1045/open", "1:URL=x", "100:HS_ADMIN=300:10.1045/ADMIN"],
            &["create", "10.1045/half", "1:URL=x", "100:HS_ADMIN=300:10.1045/ADMIN"],
            &["update", "10.1045/half", "2:NOTE=for others", "--permissions", "1100"],
            &[
                "create",
                "10.1045/none",
                "1:NOTE=for others",
                "100:HS_ADMIN=300:10.1045/ADMIN",
                "--permissions",
                "1100",
            ],
        ] {
            let allowed = ["--allow-cleartext-secrets"];
            succeed(
                service.hdl_as_admin(["handle"].into_iter().chain(change.iter().copied()).chain(allowed)),
            );
        }
        service.for_all_tests()
    })
}

fn ask_as(server: SocketAddr, args: &[&str], identity: &str, key: &str) -> Command {
    let mut command = service().hdl(args.iter().copied());
    command.args(["--server", &server.to_string(), "--auth", identity, "--key", key]);
    command
}

fn ask(server: SocketAddr, args: &[&str]) -> Command {
    ask_as(server, args, "300:10.1045/ADMIN", "site/admin-private.bin")
}

fn op_code(message: &[u8]) -> OpCode {
    Message::decode(&message[Envelope::LEN..]).unwrap().header.op_code
}

#[test]
fn changes_reach_servers_that_close_each_connection_after_its_answer() {
    let key = ["--server-key", "site/server-public.bin"];
    for (name, manners, options, connections_max) in [
        // Like `handle-admin`: one connection for each of eight runs, and one for a batch of five
        // operations.
        ("keeps", ConnectionManners::default(), &[][..], Some(9)),
        ("keeps-in-session", ConnectionManners::default(), &key, Some(9)),
        ("closes", ConnectionManners { ends_after: Some(LATER), clears_flag: true }, &[], None),
        // These servers announce that they keep the connection.
        ("lies", ConnectionManners { ends_after: Some(LATER), clears_flag: false }, &[], None),
        ("lies-in-session", ConnectionManners { ends_after: Some(LATER), clears_flag: false }, &key, None),
    ] {
        let interceptor = Interceptor::passive(service().administration, manners);
        for number in 0..8 {
            let handle = format!("10.1045/{name}-{number}");
            let args = ["handle", "create", &handle, "1:URL=x", "100:HS_ADMIN=300:10.1045/ADMIN"];
            succeed(ask(interceptor.address, &[&args, options].concat()));
        }
        let mut batch = String::new();
        for number in 0..5 {
            write!(batch, "MODIFY 10.1045/{name}-{number}\n1 URL 86400 1110 UTF8 y\n\n").unwrap();
        }
        let path = service().path(&format!("batch-{name}"));
        std::fs::write(&path, batch).unwrap();
        let args = ["batch", path.to_str().unwrap(), "--json"];
        let counts: Json =
            serde_json::from_str(&succeed(ask(interceptor.address, &[&args, options].concat()))).unwrap();
        assert_eq!(counts["done"], 5, "{counts}");
        let count = interceptor.connections_count();
        assert!(connections_max.is_none_or(|max| count <= max), "{name}: {count} connections");
    }
}

#[test]
fn records_are_imported_from_a_server_that_closes_each_connection_after_its_answer() {
    let manners = ConnectionManners { ends_after: Some(LATER), clears_flag: true };
    let interceptor = Interceptor::passive(service().administration, manners);
    let store = service().path("closes.redb");
    let args = ["import", store.to_str().unwrap(), "--create", "--prefix", "10.1045", "--json"];
    let counts: Json = serde_json::from_str(&succeed(ask(interceptor.address, &args))).unwrap();
    assert!(counts["read"].as_u64().unwrap() >= 6 && counts["public_values_only"] == 0, "{counts}");
}

#[test]
fn an_import_takes_what_may_be_read_and_lists_what_may_not() {
    let store = service().path("shared.redb");
    let args = ["import", store.to_str().unwrap(), "--create", "--prefix", "10.1045", "--json"];
    let output = run(ask_as(service().administration, &args, "300:10.1045/SECOND", "second-private.bin"));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "incomplete import: {error}");
    let counts: Json = serde_json::from_slice(&output.stdout).unwrap();
    for (handle, expected) in
        [("10.1045/half", "only the public values (2)"), ("10.1045/none", "only the public values (0)")]
    {
        let line = error.lines().find(|line| line.to_uppercase().contains(&handle.to_uppercase()));
        let line = line.unwrap_or_else(|| panic!("{handle}: {error}"));
        assert!(line.contains(expected) && line.contains("400"), "{line}");
    }
    assert!(
        !error.to_uppercase().contains("10.1045/MINE:") && !error.to_uppercase().contains("10.1045/OPEN:")
    );
    assert!(counts["public_values_only"].as_u64().unwrap() >= 2 && counts["unreadable"] == 0, "{counts}");
    let records = succeed(service().hdl(["export", store.to_str().unwrap(), "-"]));
    assert!(records.contains("for us") && !records.contains("for others"), "{records}");
    for handle in ["MINE", "OPEN", "HALF", "NONE"] {
        assert!(records.to_uppercase().contains(&format!("10.1045/{handle}")), "{handle}: {records}");
    }
    // Without an identity, prefixes cannot be listed.
    let interceptor = Interceptor::start(service().administration, ConnectionManners::default(), |message| {
        MessageFate::Passed(message.to_vec())
    });
    let store = service().path("nobody.redb");
    let args = ["import", store.to_str().unwrap(), "--create", "--server", &interceptor.address.to_string()];
    let (exit, error) = fail(service().hdl(args));
    assert!(exit == 1 && error.contains("homed prefixes"), "listing needs an identity: {error}");
}

/// A reply to `request`; if `is_unreadable`, without its request number.
fn reply(request: &[u8], code: ResponseCode, response: Response<'_>, is_unreadable: bool) -> Vec<u8> {
    let (mut envelope, rest) = Envelope::split(request).unwrap();
    let header = Message::decode(rest).unwrap().header;
    if is_unreadable {
        envelope.request_id = -1;
    }
    let header = Header { flags: OpFlags(0), ..header };
    MessageBuf::reply(&envelope, &header, &Reply { code, digest: None, response }).unsigned().unwrap()
}

/// A server with an administration port, which refuses queries and lists, and a query port.
fn two_ports() -> (Interceptor, Interceptor) {
    let queries = Interceptor::passive(service().administration, ConnectionManners::default());
    let own = Arc::new(OnceLock::new());
    let (address, query_address) = (Arc::clone(&own), queries.address);
    let administration =
        Interceptor::start(service().administration, ConnectionManners::default(), move |message| {
            let own: SocketAddr = *address.get().unwrap();
            match op_code(message) {
                OpCode::RESOLUTION | OpCode::LIST_HANDLES | OpCode::LIST_HOMED_NAS => {
                    let refusal = Response::Failure(Failure { message: b"not at this interface" });
                    MessageFate::Answered(reply(message, ResponseCode::PROTOCOL_ERROR, refusal, true))
                }
                OpCode::GET_SITE_INFO => {
                    let mut site = SiteBuilder::new();
                    let interfaces = [(InterfaceKind::ADMIN, own), (InterfaceKind::QUERY, query_address)];
                    let interface =
                        |(kind, at): (_, SocketAddr)| Interface::new(kind, InterfaceProtocol::TCP, at.port());
                    site.server(ServerBuilder {
                        id: 1,
                        // The server is reached by another address than that in its site record.
                        address: std::net::IpAddr::from([192, 0, 2, 1]).into(),
                        public_key: vec![],
                        interfaces: interfaces.map(interface).to_vec(),
                    });
                    let response = site.build();
                    MessageFate::Answered(reply(
                        message,
                        ResponseCode::SUCCESS,
                        Response::SiteInfo(response.as_bytes()),
                        false,
                    ))
                }
                _ => MessageFate::Passed(message.to_vec()),
            }
        });
    own.set(administration.address).unwrap();
    (administration, queries)
}

#[test]
fn queries_go_to_the_port_for_queries_and_changes_to_the_other() {
    let (administration, queries) = two_ports();
    let record = succeed(ask(administration.address, &["handle", "get", "10.1045/half"]));
    assert!(record.contains("for others"), "{record}");
    let store = service().path("two-ports.redb");
    let args = ["import", store.to_str().unwrap(), "--create", "--prefix", "10.1045"];
    succeed(ask(administration.address, &args));
    let op_codes: Vec<_> = queries.take_messages().iter().map(|message| op_code(message)).collect();
    assert!(
        op_codes.contains(&OpCode::RESOLUTION) && op_codes.contains(&OpCode::LIST_HANDLES),
        "{op_codes:?}"
    );
    succeed(ask(administration.address, &["handle", "update", "10.1045/open", "5:NOTE=x"]));
    assert!(queries.take_messages().is_empty());
}

#[test]
fn unsigned_errors_of_a_server_are_shown_as_unproven() {
    let interceptor = Interceptor::start(service().administration, ConnectionManners::default(), |message| {
        let refusal = Response::Failure(Failure { message: b"not at this interface" });
        MessageFate::Answered(reply(message, ResponseCode::PROTOCOL_ERROR, refusal, true))
    });
    let key = ["--server-key", "site/server-public.bin"];
    let store = service().path("unproven.redb");
    // A refusal has the code of refusals, whether it concerns the request or the session for it.
    for args in [
        &["handle", "get", "10.1045/half", "--no-sessions"][..],
        &["handle", "get", "10.1045/half"],
        &["import", store.to_str().unwrap(), "--create", "--prefix", "10.1045"],
    ] {
        let (exit, error) = fail(ask(interceptor.address, &[args, &key].concat()));
        assert!(exit == 6 && error.contains("4 protocol error: not at this interface"), "{exit} {error}");
        assert!(error.contains("unproven") && !error.contains("cannot be trusted"), "{error}");
    }
}
