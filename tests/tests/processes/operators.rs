//! `hdl` for operators: keys, stores, imports and exports, and the results of `hdl init`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_proto::OpCode;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::Envelope;
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::gateway_server::{ask_over_tls_trusting, get, of_session, post, session_of, session_proof};
use handle_tests::process::{RunningProcess, fail, hdl, program, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory for the files of a test.
struct OperatorsDirectory(TempDir);

impl OperatorsDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// A file with mode 0600.
    fn secret(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// `hdl` with this working directory.
    fn hdl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> std::process::Command {
        let mut command = hdl(args);
        command.current_dir(self.0.path());
        command
    }

    fn json<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Json {
        serde_json::from_str(&succeed(self.hdl(args))).unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn keys_are_generated_converted_and_shown() {
    let directory = OperatorsDirectory::new();
    directory.secret("phrase", "one two\n");
    directory.secret("other", "three");
    succeed(directory.hdl(["key", "generate", "private.bin", "public.bin", "--passphrase-file", "phrase"]));
    assert_eq!(
        (mode(&directory.path("private.bin")), mode(&directory.path("public.bin")) & 0o444),
        (0o600, 0o444)
    );
    let show = |file: &str, phrase: &str| {
        directory.json(["key", "show", file, "--json", "--passphrase-file", phrase])
    };
    let native = show("private.bin", "phrase");
    assert_eq!((native["algorithm"].as_str(), native["bits"].as_u64()), (Some("RSA"), Some(2048)));
    assert_eq!((native["form"].as_str(), native["encrypted"].as_bool()), (Some("native"), Some(true)));
    succeed(directory.hdl([
        "key",
        "convert",
        "private.bin",
        "key.pem",
        "--passphrase-file",
        "phrase",
        "--new-passphrase-file",
        "other",
    ]));
    assert!(directory.text("key.pem").starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"));
    assert_eq!(mode(&directory.path("key.pem")), 0o600);
    succeed(directory.hdl([
        "key",
        "convert",
        "key.pem",
        "again.bin",
        "--passphrase-file",
        "other",
        "--plain",
    ]));
    succeed(directory.hdl(["key", "convert", "public.bin", "public.jwk", "--to", "jwk"]));
    succeed(directory.hdl(["key", "convert", "public.jwk", "public.again"]));
    for (file, phrase) in
        [("key.pem", "other"), ("again.bin", "other"), ("public.jwk", "other"), ("public.bin", "phrase")]
    {
        let shown = show(file, phrase);
        assert_eq!(
            (&shown["fingerprint"], &shown["publicKey"]),
            (&native["fingerprint"], &native["publicKey"]),
            "{file}"
        );
    }
    assert_eq!(
        std::fs::read(directory.path("public.again")).unwrap(),
        std::fs::read(directory.path("public.bin")).unwrap()
    );

    let refused_as = |exit: i32, args: &[&str], expected: &str| {
        let (code, error) = fail(directory.hdl(args.iter().copied()));
        assert!(code == exit && error.contains(expected), "{args:?}: {code} {error}");
    };
    let refused = |args: &[&str], expected: &str| refused_as(1, args, expected);
    refused(&["key", "show", "private.bin"], "encrypted");
    refused(&["key", "show", "private.bin", "--passphrase-file", "other"], "passphrase is wrong");
    refused(&["key", "generate", "private.bin", "p", "--plain"], "already exists");
    refused_as(2, &["key", "generate", "new.bin", "new.pub"], "--plain");
    refused(&["key", "generate", "new.bin", "new.pub", "--plain", "--bits", "1024"], "2048, 3072 or 4096");
    std::fs::set_permissions(directory.path("again.bin"), std::fs::Permissions::from_mode(0o640)).unwrap();
    refused(&["key", "show", "again.bin"], "chmod 600");
}

const LINES: &str = r#"{"homed":"0.NA/10.1045"}
{"handle":"10.1045/A","values":[{"index":1,"type":"URL","data":{"format":"string","value":"https://a.example/"},"ttl":86400,"timestamp":"2026-01-02T03:04:05Z"}]}
{"handle":"10.1045/B","values":[{"index":1,"type":"URL","data":{"format":"string","value":"b"},"ttl":60,"timestamp":"1970-01-01T00:00:00Z"},{"index":300,"type":"HS_SECKEY","data":{"format":"base64","value":"AP8Q"},"permissions":"1100","ttl":86400,"timestamp":"1970-01-01T00:00:00Z"}]}
"#;

#[test]
fn imported_records_are_exported_unchanged() {
    let directory = OperatorsDirectory::new();
    directory.file("records.jsonl", LINES);
    let counts = directory.json(["import", "store.redb", "records.jsonl", "--create", "--json"]);
    assert_eq!((counts["read"].as_u64(), counts["written"].as_u64()), (Some(2), Some(2)));
    succeed(directory.hdl(["export", "store.redb", "out.jsonl"]));
    assert_eq!((directory.text("out.jsonl").as_str(), mode(&directory.path("out.jsonl"))), (LINES, 0o600));
    // The restored backup is the same store.
    succeed(directory.hdl(["store", "import", "second.redb", "out.jsonl", "--create"]));
    assert_eq!(succeed(directory.hdl(["store", "export", "second.redb", "-"])), LINES);
    let stats = directory.json(["store", "check", "second.redb", "--json"]);
    let count = |name: &str| stats[name].as_u64();
    assert_eq!((count("records"), count("values"), count("homed_prefixes")), (Some(2), Some(3), Some(1)));
    assert_eq!((count("damage"), count("unusual")), (Some(0), Some(0)));

    // A published set can be exported as well.
    succeed(directory.hdl(["snapshot", "publish", "set", "out.jsonl"]));
    directory.file("delta.jsonl", "{\"handle\":\"10.1045/B\",\"deleted\":true}\n");
    succeed(directory.hdl(["snapshot", "publish", "set", "delta.jsonl", "--delta"]));
    let expected: String = LINES.lines().take(2).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(succeed(directory.hdl(["export", "set", "-"])), expected);

    let (code, error) = fail(directory.hdl(["export", "store.redb", "out.jsonl"]));
    assert!(code == 1 && error.contains("already exists"), "{error}");
    let (code, error) = fail(directory.hdl(["store", "stats", "nowhere.redb"]));
    assert!(code == 1 && error.contains("no store"), "{error}");
}

#[test]
fn invalid_records_stop_an_import_before_it_writes() {
    let directory = OperatorsDirectory::new();
    let value = |index: i32| format!("{{\"index\":{index},\"type\":\"URL\",\"data\":\"x\"}}");
    let line =
        |handle: &str, index: i32| format!("{{\"handle\":\"{handle}\",\"values\":[{}]}}\n", value(index));
    directory.file("good.jsonl", line("10.1/a", 1));
    directory.file("bad.jsonl", line("10.1/b", 1) + &line("10.1/c", 0));
    succeed(directory.hdl(["import", "store.redb", "good.jsonl", "--create", "--home"]));
    let (code, error) = fail(directory.hdl(["import", "store.redb", "bad.jsonl", "--home"]));
    assert!(code == 1 && error.contains("bad.jsonl:2") && error.contains("10.1/c"), "{error}");
    assert_eq!(directory.json(["store", "stats", "store.redb", "--json"])["records"], 1);
    let (code, error) = fail(directory.hdl(["import", "store.redb", "bad.jsonl", "--keep-going"]));
    assert!(code == 1 && error.contains("index 0"), "{error}");
    assert_eq!(directory.json(["store", "stats", "store.redb", "--json"])["records"], 2);
    // Existing records are kept or replaced.
    directory.file("again.jsonl", line("10.1/A", 7));
    let kept = directory.json(["import", "store.redb", "again.jsonl", "--keep-existing", "--json"]);
    assert_eq!((kept["written"].as_u64(), kept["kept"].as_u64()), (Some(0), Some(1)));
    assert_eq!(directory.json(["import", "store.redb", "again.jsonl", "--json"])["written"], 1);
    assert!(succeed(directory.hdl(["export", "store.redb", "-"])).contains("\"index\":7"));
}

#[test]
fn exports_of_other_servers_result_in_the_same_store() {
    let directory = OperatorsDirectory::new();
    let mut lines = LINES.lines();
    let (_, first, second) = (lines.next(), lines.next().unwrap(), lines.next().unwrap());
    let second = second.replace("10.1045/B", "10.1045/b");
    let export = format!(
        "{{\"homedPrefixes\":[\"0.NA/10.1045\"],\n\"handleRecords\":{{\"10.1045/A\":{first},\n\"10.1045/b\":{second}}}}}"
    );
    directory.file("export.json", export);
    let sql = "-- MySQL dump 10.13\nINSERT INTO `nas` VALUES ('0.NA/10.1045');\nINSERT INTO `handles` VALUES \
               ('10.1045/A',1,'URL','https://a.example/',0,86400,1767323045,'',1,1,1,0),\
               ('10.1045/B',1,'URL','b',0,60,0,'',1,1,1,0),('10.1045/B',300,'HS_SECKEY',0x00FF10,0,86400,0,'',1,1,0,0);\n";
    directory.file("dump.sql", sql);
    for file in ["export.json", "dump.sql"] {
        let store = format!("{file}.redb");
        succeed(directory.hdl(["import", &store, file, "--create"]));
        assert_eq!(succeed(directory.hdl(["export", &store, "-"])), LINES, "{file}");
    }
    // Rows of one handle that stand apart are parts of its record.
    let row = |handle: &str, index: u8| format!("('{handle}',{index},'URL','x',0,60,0,'',1,1,1,0)");
    let rows = [row("10/A", 1), row("10/B", 1), row("10/a", 2)].join(",");
    directory.file("apart.sql", format!("INSERT INTO handles VALUES {rows};\n"));
    succeed(directory.hdl(["import", "apart.redb", "apart.sql", "--create"]));
    let exported = succeed(directory.hdl(["export", "apart.redb", "-"]));
    let count = |text: &str| exported.matches(text).count();
    assert_eq!((count("\"handle\""), count("\"index\":1"), count("\"index\":2")), (2, 2, 1), "{exported}");
    // In a case-sensitive store, these are three handles.
    succeed(directory.hdl(["import", "cased.redb", "apart.sql", "--create", "--case-sensitive"]));
    assert_eq!(succeed(directory.hdl(["export", "cased.redb", "-"])).matches("\"handle\"").count(), 3);
}

#[test]
fn a_batch_is_checked_before_its_first_operation() {
    let directory = OperatorsDirectory::new();
    directory.file("good.txt", "DELETE 10.1045/a\nDELETE 10.1045/b\n");
    directory
        .file("bad.txt", "DELETE 10.1045/a\n\nCREATE 10.1045/b\n1 HS_ADMIN 86400 011111110011 ADMIN x\n");
    // Nothing listens at this address.
    let server = ["--server", "127.0.0.1:9"];
    let batch = |file: &'static str, more: &[&'static str]| {
        let args = ["batch", file].into_iter().chain(server).chain(more.iter().copied());
        fail(directory.hdl(args.collect::<Vec<_>>()))
    };
    assert_eq!(batch("good.txt", &["--dry-run"]).0, 0);
    let (code, error) = batch("bad.txt", &[]);
    assert!(
        code == 2 && error.contains("bad.txt: line 4") && error.contains("after ADMIN"),
        "{code} {error}"
    );
    assert!(!directory.path("bad.txt.log").exists(), "no log is started");
    let (code, error) = batch("good.txt", &[]);
    assert!(code == 1 && error.contains("cannot connect") && error.contains("--resume"), "{code} {error}");
    let (code, error) = batch("good.txt", &[]);
    assert!(code == 1 && error.contains("--resume"), "the log exists: {code} {error}");
    directory.file("good.txt", "DELETE 10.1045/b\n");
    let (code, error) = batch("good.txt", &["--resume"]);
    assert!(code == 1 && error.contains("has changed"), "{code} {error}");
}

#[test]
fn all_processes_serve_from_the_directory_of_init() {
    let directory = OperatorsDirectory::new();
    let address = free_address();
    let (port, admin_port) = (address.port().to_string(), free_address().port().to_string());
    let init = ["init", "site", "--prefix", "10.1045", "--address", "127.0.0.1", "--plain", "--json"];
    let gateway = free_address();
    let gateway_port = gateway.port().to_string();
    let ports = ["--port", &port, "--admin-port", &admin_port, "--bind", "127.0.0.1", "--no-metrics"];
    let ports = ports.into_iter().chain(["--gateway-port", &gateway_port]);
    // A wrong option leaves no directory, so that init can be repeated.
    for wrong in [["--bits", "1024"], ["--prefix", "10.1045/x"]] {
        let init = init
            .into_iter()
            .filter(|arg| !wrong[0].contains("prefix") || !["--prefix", "10.1045"].contains(arg));
        let args = init.chain(["--admin-port", &admin_port]).chain(wrong);
        assert_eq!(fail(directory.hdl(args)).0, 1, "{wrong:?}");
        assert!(!directory.path("site").exists(), "{wrong:?}");
    }
    std::fs::create_dir(directory.path("site")).unwrap();
    let report = directory.json(init.into_iter().chain(ports).collect::<Vec<_>>());
    assert_eq!(report["administrator"], "300:10.1045/ADMIN");
    for (subdirectory, expected) in [("site", 0o700), ("site/snapshot", 0o750), ("site/run", 0o700)] {
        assert_eq!(mode(&directory.path(subdirectory)), expected, "{subdirectory}");
    }
    for private in ["site/server-private.bin", "site/admin-private.bin", "site/store.redb"] {
        assert_eq!(mode(&directory.path(private)), 0o600, "{private}");
    }
    let site: Json = serde_json::from_str(&directory.text("site/siteinfo.json")).unwrap();
    let interfaces = site["servers"][0]["interfaces"].as_array().unwrap();
    let listed: Vec<_> = interfaces
        .iter()
        .map(|interface| {
            (
                interface["protocol"].as_str().unwrap(),
                interface["query"].as_bool().unwrap(),
                interface["admin"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(listed, [("TCP", true, false), ("TCP", false, true), ("UDP", true, false)]);

    let mut command = handled();
    command.arg("--config").arg(directory.path("site/handled.toml"));
    let daemon = Daemon::start(command, &directory.path("site/run/handled.sock"));
    let server = address.to_string();
    let answer = directory.json(["resolve", "10.1045/ADMIN", "--server", &server, "--json"]);
    let kinds: Vec<_> =
        answer["values"].as_array().unwrap().iter().map(|value| value["type"].as_str()).collect();
    assert_eq!(kinds, [Some("HS_ADMIN"), Some("HS_PUBKEY")]);
    drop(daemon);

    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.env("HANDLE_GATEWAY_ALLOW_ROOT", "true").stdin(Stdio::null());
    command.arg("--config").arg(directory.path("site/handle-gateway.toml")).args(["--log", "warn"]);
    let (process, control) = (RunningProcess::start(command), directory.path("site/run/handle-gateway.sock"));
    until("the gateway serves", || ask(&control, "status")["pid"] == process.0.id());
    let record = get(gateway, "/api/handles/10.1045/ADMIN", "").json();
    assert_eq!(record["values"][1]["type"], "HS_PUBKEY", "{record}");
    // Changes need TLS, which has the same port.
    assert_eq!(get(gateway, "/api/handles?prefix=10.1045", "").status, 403);
    drop(process);

    let (code, error) = fail(directory.hdl(init));
    assert!(code == 1 && error.contains("not empty"), "{error}");
    let (code, error) =
        fail(directory.hdl(["init", "other", "--prefix", "10.1045", "--address", "127.0.0.1"]));
    assert!(code == 2 && error.contains("--plain"), "{error}");
    assert!(!directory.path("other").exists());
}

#[test]
fn the_configuration_of_hdl_init_connects_all_three_processes() {
    let service = InitialisedService::start();
    let config = service.path("site/handle-gateway.toml");
    let proxied =
        "\n[proxies]\ntrusted = [\"127.0.0.1\"]\nscheme = \"x-forwarded-proto\"\ncredentials = true\n";
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + proxied).unwrap();
    let (gateway, control) = (free_address(), service.path("site/run/handle-gateway.sock"));
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.env("HANDLE_GATEWAY_ALLOW_ROOT", "true").stdin(Stdio::null());
    command.arg("--config").arg(config).args(["--listen", &gateway.to_string(), "--log", "warn"]);
    let process = RunningProcess::start(command);
    until("the gateway serves", || ask(&control, "status")["pid"] == process.0.id());
    let https = "X-Forwarded-Proto: https\r\n";
    let session = post(gateway, "/api/sessions", https, b"");
    assert!(session.json()["sessionId"].is_string(), "{}", session.text());
    let refused = post(gateway, "/api/batch", https, b"");
    assert_eq!(refused.status, 401, "{}", refused.text());
    let mut message = handle_tests::client::request(b"10.1045/none", 1);
    // The operation, after the envelope: deletion of a handle.
    message[Envelope::LEN..Envelope::LEN + 4].copy_from_slice(&OpCode::DELETE_HANDLE.0.to_be_bytes());
    let headers = "Content-Type: application/x-hdl-message\r\nAccept: application/x-hdl-message\r\n";
    assert_eq!(post(gateway, "/", headers, &message).status, 200, "by way of handle-admin");
}

#[test]
fn a_new_service_has_tls_so_that_its_administrator_signs_in_and_creates_a_record() {
    let service = InitialisedService::start();
    let read = |name: &str| std::fs::read(service.path("site").join(name)).unwrap();
    let mode = std::fs::metadata(service.path("site/certificate-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the key of the certificate");
    let (gateway, control) = (free_address(), service.path("site/run/handle-gateway.sock"));
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.env("HANDLE_GATEWAY_ALLOW_ROOT", "true").stdin(Stdio::null());
    command.arg("--config").arg(service.path("site/handle-gateway.toml"));
    let process = RunningProcess::start({
        command.args(["--listen", &gateway.to_string(), "--log", "warn"]);
        command
    });
    until("the gateway serves", || ask(&control, "status")["pid"] == process.0.id());

    let certificate = read("certificate.pem");
    let https = |method: &str, target: &str, headers: &str, body: &str| {
        ask_over_tls_trusting(&certificate, (gateway, "127.0.0.1"), method, target, headers, body)
    };
    assert_eq!(https("GET", "/admin/sign-in", "", "").status, 200, "the page to sign in");
    let (id, nonce) = session_of(&https("POST", "/api/sessions", "", "").json());
    let key = handle_auth::keyfile::decode(&read("admin-private.bin"), None).unwrap();
    let key = PrivateKey::new(&key.view()).unwrap();
    let signature = key.sign(DigestAlgorithm::SHA256, &[&nonce, b"client nonce"]).unwrap();
    let proof = session_proof(&id, "300:10.1045/ADMIN", "HS_PUBKEY", "SHA256", &signature).to_string();
    let json = "Content-Type: application/json\r\n";
    let signed_in = https("PUT", "/api/sessions/this", json, &proof);
    assert_eq!(signed_in.status, 200, "{}", signed_in.text());
    let headers = format!("{json}{}", of_session(&id));
    let body = r#"{"values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
    let created = https("PUT", "/api/handles/10.1045/over-https", &headers, body);
    assert_eq!(created.status, 201, "{}", created.text());
    until("the record is answered", || get(gateway, "/api/handles/10.1045/over-https", "").status == 200);
}

/// `handled` has the UDP port and `handle-admin` the TCP port, where it answers queries as well.
#[test]
fn one_port_serves_datagrams_and_connections() {
    let mut service = InitialisedService::make_with_one_port();
    service.start_admin();
    service.start_handled();
    let site: Json =
        serde_json::from_str(&std::fs::read_to_string(service.path("site/siteinfo.json")).unwrap()).unwrap();
    let interfaces = site["servers"][0]["interfaces"].as_array().unwrap().clone();
    let listed = interfaces.iter().map(|interface| {
        (
            interface["protocol"].as_str().unwrap(),
            interface["query"].as_bool().unwrap(),
            interface["admin"].as_bool().unwrap(),
        )
    });
    assert_eq!(listed.collect::<Vec<_>>(), [("TCP", true, true), ("UDP", true, false)]);
    let content = || ask(&service.path("site/run/handle-admin.sock"), "status")["store"]["content"].clone();
    let before = content();
    // The prefix record, with site and administrator, and the record with the administrator's key.
    assert_eq!((&before["records"], &before["values"]), (&2.into(), &5.into()), "{before}");
    let value = "1:URL=https://example.org/";
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/one-port", value]));
    let after = content();
    assert_eq!((&after["records"], &after["values"]), (&3.into(), &6.into()), "{after}");
    assert!(after["bytes"].as_u64() > before["bytes"].as_u64(), "{before} {after}");
    service.until_resolved("10.1045/one-port", 1, "https://example.org/");
    let server = service.queries.to_string();
    let over_tcp = ["resolve", "10.1045/one-port", "--server", &server, "--json", "--tcp"];
    let answer: Json = serde_json::from_str(&succeed(service.hdl(over_tcp))).unwrap();
    assert_eq!(answer["values"][0]["data"]["value"], "https://example.org/");
    assert!(succeed(service.hdl_as_admin(["handle", "list", "10.1045"])).contains("10.1045/ONE-PORT"));
}

/// `handled` sends at most four datagrams of an answer; for longer ones, clients use TCP.
#[test]
fn answers_too_long_for_udp_are_fetched_over_tcp() {
    let mut service = InitialisedService::make();
    service.start_admin();
    service.start_handled();
    let long = "x".repeat(60_000);
    let value = format!("1:DESC={long}");
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/long", &value]));
    service.until_resolved("10.1045/long", 1, &long);
    let server = service.queries.to_string();
    // The request digest is checked in the answer over TCP as well.
    let shown = succeed(service.hdl(["resolve", "10.1045/long", "--server", &server, "--digest"]));
    assert!(shown.contains("over TCP"), "{}", &shown[..200.min(shown.len())]);
    // One that fits comes in datagrams.
    let fitting = "x".repeat(1500);
    let value = format!("1:DESC={fitting}");
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/fitting", &value]));
    service.until_resolved("10.1045/fitting", 1, &fitting);
    let shown = succeed(service.hdl(["resolve", "10.1045/fitting", "--server", &server, "--digest"]));
    assert!(shown.contains(" datagrams"), "{}", &shown[..200.min(shown.len())]);
}

#[test]
fn shared_settings_are_in_one_file() {
    let service = InitialisedService::make();
    let check = |mut command: std::process::Command| {
        command.arg("--check-config");
        command
    };
    for command in [service.handled_command(), service.admin_command()] {
        let output = succeed(check(command));
        let shared = output.lines().last().unwrap();
        assert!(shared.starts_with("shared with the other process, in "), "{shared}");
        assert!(shared.ends_with("service.toml: administrators, server_key, sessions, site"), "{shared}");
    }
    // A shared setting in both files is refused.
    let config = service.path("site/handled.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n[administrators]\nserver = []\n")).unwrap();
    let (code, error) = fail(check(service.handled_command()));
    assert!(code == 2 && error.contains("`administrators` is set in"), "{code} {error}");
    std::fs::write(&config, text).unwrap();
    let shared = service.path("site/service.toml");
    let text = std::fs::read_to_string(&shared).unwrap();
    std::fs::write(&shared, text.replace("server = [", "server_reads_all = true\nserver = [")).unwrap();
    for command in [service.handled_command(), service.admin_command()] {
        let (code, error) = fail(check(command));
        assert!(
            code == 2 && error.contains("server_full_access"),
            "the error names the current setting: {code} {error}"
        );
    }
}

#[test]
fn records_of_derived_prefixes_are_homed_together() {
    let service = InitialisedService::start();
    let create = |handle| {
        service.hdl_as_admin([
            "handle",
            "create",
            handle,
            "1:URL=https://example.org/",
            "100:HS_ADMIN=300:10.1045/ADMIN",
        ])
    };
    assert_eq!(service.resolve("0.NA/10.1045.1")["responseCode"], 301);
    assert_eq!(fail(create("0.NA/10.1045.1")).0, 5, "not homed");
    succeed(service.hdl_as_admin(["handle", "home", "0.NA/0.NA/10.1045"]));
    for handle in ["0.NA/10.1045.1", "0.NA/10.1045.1.2"] {
        succeed(create(handle));
        service.until_resolved(handle, 1, "https://example.org/");
    }
    assert_eq!(service.resolve("0.NA/10.1045.9")["responseCode"], 100, "homed, without a record");
    assert_eq!(
        service.resolve("10.1045.1/x")["responseCode"],
        301,
        "handles of the derived prefix are not homed"
    );
    let listed = succeed(service.hdl_as_admin(["handle", "list", "0.NA/0.NA/10.1045"]));
    assert!(listed.contains("0.NA/10.1045.1") && listed.contains("0.NA/10.1045.1.2"), "{listed}");
    assert!(succeed(service.hdl_as_admin(["handle", "list", "--homed"])).contains("0.NA/0.NA/10.1045"));
}
