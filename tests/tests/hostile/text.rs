//! Text from servers and records on the terminal: no command prints control characters,
//! bidirectional controls or forged lines.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::printable::is_unprintable;
use handle_proto::value::Value;
use handle_proto::wire::admin::Listing;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::Handles;
use handle_proto::wire::message::Body;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Request, Response, put};
use handle_proto::{OpFlags, ResponseCode, Values};
use handle_tests::process::{hdl, program, run};
use handle_tests::records_server::serve_messages;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Control characters of all kinds, and a line like one of the program itself.
const HOSTILE: &str =
    "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{7f}\u{85}\u{61c}\u{200e}\u{202e}\u{2028}\u{2066}\r\nFORGED é";
/// A name without a line end, for files of lines.
const NAME: &str = "10.1/\u{1b}[2J\u{9b}1m\u{202e}\u{2069}é";

/// Answers every request with hostile names, values and messages, over TCP and UDP.
fn serve() -> SocketAddr {
    let (listener, socket) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The same port must be free for both protocols.
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
            break (listener, socket);
        }
    };
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&answer(&buffer[..len]), from);
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || drop(serve_messages(stream, |message| Some(answer(message)))));
        }
    });
    address
}

fn answer(message: &[u8]) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let message = Message::decode(rest).unwrap();
    let Ok(Body::Request(request)) = message.decode_body(envelope.version) else { panic!("a request") };
    let (mut values, mut names) = (Vec::new(), Vec::new());
    let failure = Response::Failure(Failure { message: HOSTILE.as_bytes() });
    let (code, response) = match &request {
        Request::Resolution(query) if !query.handle.ends_with(b"refused") => {
            let values = hostile_values(&mut values);
            (ResponseCode::SUCCESS, Response::Answer(QueryAnswer { handle: query.handle, values }))
        }
        Request::ListHandles(_) | Request::ListHomedNas(_) => {
            let hostile = format!("0.NA/10.1{HOSTILE}");
            put::string(&mut names, hostile.as_bytes());
            put::string(&mut names, NAME.as_bytes());
            let handles = Handles::from_encoded(2, &names).unwrap();
            (ResponseCode::SUCCESS, Response::Listing(Listing { handles }))
        }
        _ => (ResponseCode::INVALID_HANDLE, failure),
    };
    let header = Header { flags: OpFlags(0), ..message.header };
    let reply = Reply { code, digest: None, response };
    MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap()
}

fn hostile_values(storage: &mut Vec<u8>) -> Values<'_> {
    let mut admin = Vec::new();
    Admin::new(AdminPermissions::ALL, format!("10.1/{HOSTILE}").as_bytes(), 300).encode(&mut admin);
    let kind = format!("URL.{HOSTILE}");
    let values = [
        Value::new(1, b"URL", "https://example.org/\u{202e}\u{2066}\nFORGED é".as_bytes()),
        Value::new(2, kind.as_bytes(), HOSTILE.as_bytes()),
        Value::new(100, b"HS_ADMIN", &admin),
        Value::new(3, b"HS_ALIAS", HOSTILE.as_bytes()),
    ];
    Values::build(values.iter().copied(), storage)
}

/// The site record of the server, with hostile attributes.
fn site(address: SocketAddr) -> Vec<u8> {
    let mut site = SiteBuilder::new();
    site.flags = SiteFlags::PRIMARY;
    site.attributes.push((b"desc".to_vec(), HOSTILE.as_bytes().to_vec()));
    let interface = |protocol| Interface::new(InterfaceKind::BOTH, protocol, address.port());
    site.server(ServerBuilder {
        id: 1,
        address: address.ip().into(),
        public_key: HOSTILE.as_bytes().to_vec(),
        interfaces: vec![interface(InterfaceProtocol::UDP), interface(InterfaceProtocol::TCP)],
    });
    site.build().into_bytes()
}

struct HostileTextSetup {
    directory: TempDir,
    server: SocketAddr,
}

impl HostileTextSetup {
    fn new() -> Self {
        let setup = Self { directory: tempfile::tempdir().unwrap(), server: serve() };
        std::fs::write(setup.path("site"), site(setup.server)).unwrap();
        let record = |handle: &str| {
            let value = serde_json::json!({ "index": 1, "type": format!("URL.{HOSTILE}"), "data": HOSTILE });
            serde_json::json!({ "handle": handle, "values": [value] }).to_string()
        };
        std::fs::write(setup.path("records.jsonl"), [record(NAME), record("10.1/b")].join("\n")).unwrap();
        std::fs::write(setup.path("names"), format!("{NAME}\n10.1/refused\n10.1/b\n")).unwrap();
        // A handle in a batch file, one with a missing file, and a line that is no operation.
        let batch = format!("CREATE {NAME}\n1 URL 86400 1110 UTF8 {NAME}\n\nDELETE {NAME}\n");
        std::fs::write(setup.path("batch"), &batch).unwrap();
        let bad = format!("{batch}\nCREATE {NAME}\n1 URL 86400 1110 FILE {NAME}\n\n{NAME}\n");
        std::fs::write(setup.path("bad-batch"), bad).unwrap();
        let bad = serde_json::json!({ "handle": NAME });
        std::fs::write(setup.path("bad.jsonl"), format!("{bad}\n")).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, mut command: Command) -> Output {
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        run(command)
    }

    fn hdl(&self, args: &[&str]) -> Output {
        self.run(hdl(args))
    }

    fn loadgen(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("handle-loadgen", "handle-loadgen"));
        command.args(args);
        self.run(command)
    }
}

/// Checks that the output is only text and contains `shown`.
fn check_output(case: &str, output: &Output, shown: &str) {
    for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let text = std::str::from_utf8(bytes).unwrap_or_else(|_| panic!("{case}: {stream} is UTF-8"));
        let raw = text.chars().find(|&c| is_unprintable(c) && !matches!(c, '\n' | '\t'));
        assert_eq!(raw, None, "{case}: {stream}: {text:?}");
        let forged = text.lines().find(|line| line.trim_start().starts_with("FORGED"));
        assert_eq!(forged, None, "{case}: {stream}: {text}");
    }
    let all = [&output.stdout[..], &output.stderr].concat();
    let all = String::from_utf8_lossy(&all);
    assert!(all.contains(shown), "{case} shows {shown:?}: {all}");
}

fn json(case: &str, text: &[u8]) -> serde_json::Value {
    serde_json::from_slice(text)
        .unwrap_or_else(|error| panic!("{case}: {error}: {}", String::from_utf8_lossy(text)))
}

#[test]
fn output_about_a_hostile_server_is_only_text() {
    let setup = HostileTextSetup::new();
    let server = setup.server.to_string();
    let at = |args: &[&str]| {
        let args = [args, &["--server", &server]].concat();
        (args.join(" "), setup.hdl(&args))
    };
    for (args, shown) in [
        (&["resolve", "10.1/a"][..], "FORGED"),
        (&["resolve", "10.1/a", "--tcp"], "FORGED"),
        (&["resolve", "10.1/refused"], "FORGED"),
        (&["resolve", NAME], "\\u001b"),
        (&["handle", "get", "10.1/a"], "FORGED"),
        (&["handle", "get", "10.1/refused"], "FORGED"),
        (&["handle", "list", "10.1"], "FORGED"),
        (&["handle", "list", "--homed"], "FORGED"),
        (&["handle", "create", NAME, "1:URL=x"], "FORGED"),
        (&["handle", "update", NAME, "1:URL=x"], "FORGED"),
        (&["handle", "update", NAME, "--remove", "1"], "FORGED"),
        (&["handle", "delete", NAME], "FORGED"),
        (&["handle", "home", NAME], "FORGED"),
        (&["handle", "unhome", NAME], "FORGED"),
        (&["batch", "batch", "--compat-log", "compat"], "FORGED"),
        (&["import", "store.redb", "--create"], "read 4 records"),
    ] {
        let (case, output) = at(args);
        check_output(&case, &output, shown);
    }
    for args in [
        &["resolve", "10.1/a", "--json"][..],
        &["resolve", "10.1/refused", "--json"],
        &["handle", "get", "10.1/a", "--json"],
        &["handle", "list", "10.1", "--json"],
        &["handle", "create", NAME, "1:URL=x", "--json"],
        &["handle", "delete", NAME, "--json"],
    ] {
        let (case, output) = at(args);
        check_output(&case, &output, "FORGED");
        json(&case, &output.stdout);
    }
    // Text of the server adds no lines to a log.
    for log in ["batch.log", "compat"] {
        let text = std::fs::read_to_string(setup.path(log)).unwrap();
        assert!(text.contains("FORGED"), "{log}: {text}");
        assert!(!text.contains(|c| is_unprintable(c) && c != '\n'), "{log}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{log}: {text}");
    }
}

#[test]
fn output_about_a_hostile_service_is_only_text() {
    let setup = HostileTextSetup::new();
    let resolve = |args: &[&str]| {
        let args = [args, &["--resolver-site", "site", "--lookup-timeout", "5"]].concat();
        (args.join(" "), setup.hdl(&args))
    };
    for (args, shown) in [
        (&["resolve", "10.1/a"][..], "FORGED"),
        (&["resolve", "10.1/a", "--trace"], "FORGED"),
        (&["resolve", "10.1/a", "--url"], "FORGED"),
        (&["resolve", "10.1/a", "--certify"], "hdl:"),
        (&["resolve", "--file", "names"], "FORGED"),
        (&["resolve", "--file", "names", "--url"], "FORGED"),
        (&["resolve", "10.1/a", "--color", "always"], "FORGED"),
        (&["site", "10.1/a"], "FORGED"),
        (&["check", "10.1/a"], "value"),
    ] {
        let (case, mut output) = resolve(args);
        if args.contains(&"always") {
            // Colours of the program itself.
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("\u{1b}[1m"), "{text:?}");
            output.stdout = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "").into_bytes();
        }
        check_output(&case, &output, shown);
    }
    for args in [
        &["resolve", "10.1/a", "--json"][..],
        &["resolve", "10.1/a", "--json", "--trace"],
        &["site", "10.1/a", "--json"],
    ] {
        let (case, output) = resolve(args);
        check_output(&case, &output, "FORGED");
        json(&case, &output.stdout);
    }
    let (case, output) = resolve(&["resolve", "--file", "names", "--json"]);
    check_output(&case, &output, "FORGED");
    let lines: Vec<_> = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 3);
    lines.iter().for_each(|line| drop(json(&case, line)));
}

#[test]
fn output_about_files_and_arguments_is_only_text() {
    let setup = HostileTextSetup::new();
    check_output(
        "import",
        &setup.hdl(&["import", "s.redb", "records.jsonl", "--create", "--home"]),
        "2 records",
    );
    check_output("publish", &setup.hdl(&["snapshot", "publish", "set", "records.jsonl"]), "published");
    let export = setup.hdl(&["export", "s.redb", "-"]);
    check_output("export", &export, "FORGED");
    let mut names = Vec::new();
    for line in String::from_utf8(export.stdout).unwrap().lines() {
        names.extend(json("export", line.as_bytes())["handle"].as_str().map(str::to_owned));
    }
    names.sort();
    // The store folds names.
    assert_eq!(names, [NAME.to_uppercase().replace('É', "é"), "10.1/B".to_owned()]);
    let message = data_encoding::HEXLOWER.encode(&refused_message());
    for (args, shown) in [
        (&["snapshot", "inspect", "set", "--handles", "9"][..], "\\u001b"),
        (&["snapshot", "inspect", "set", "--handles", "9", "--json"], "1b"),
        (&["snapshot", "get", "set", NAME], "FORGED"),
        (&["snapshot", "get", "set", NAME, "--json"], "FORGED"),
        (&["snapshot", "get", "set", &format!("10.1/{HOSTILE}")], "FORGED"),
        (&["snapshot", "build", "layer", "bad.jsonl"], "1b"),
        (&["import", "s.redb", "bad.jsonl"], "1b"),
        (&["store", "check", "s.redb"], "records"),
        (&["batch", "bad-batch", "--dry-run"], "1b"),
        (&["reference", &format!("hdl:10.1/{HOSTILE}")], "FORGED"),
        (&["reference", &format!("hdl:10.1/{HOSTILE}"), "--json"], "FORGED"),
        (&["reference", HOSTILE], "FORGED"),
        (&["message", "decode", &message], "FORGED"),
        (&["message", "decode", &message, "--json"], "FORGED"),
        (&["resolve", HOSTILE], "hdl:"),
        (&["resolve", NAME, NAME, "--server", "x"], "--server"),
        (&["resolve", "10.1/a", "--server", NAME], "1b"),
        (&["resolve", "10.1/a", "--root", NAME], "1b"),
        (&["handle", "create", "10.1/a", NAME, "--server", "127.0.0.1:1"], "1b"),
        (&["key", "show", NAME], "1b"),
        (&["control", "status", "--socket", NAME], "1b"),
        (&["\u{1b}[2J\u{9b}"], "unrecognized"),
        (&["resolve", "--no-such-\u{1b}[2J\u{202e}"], "unexpected"),
    ] {
        check_output(&args.join(" "), &setup.hdl(args), shown);
    }
}

/// A request with a hostile handle, and its answer.
fn refused_message() -> Vec<u8> {
    let handle = format!("10.1/refused{HOSTILE}refused");
    let envelope = Envelope::request(7);
    let header = Header::request(handle_proto::OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
    let query = handle_proto::wire::query::Query {
        handle: handle.as_bytes(),
        indexes: handle_proto::wire::list::Indexes::EMPTY,
        types: handle_proto::wire::list::Strings::EMPTY,
    };
    let request = MessageBuf::request(&envelope, &header, &Request::Resolution(query)).unsigned().unwrap();
    [answer(&request), request].concat()
}

#[test]
fn output_of_the_load_generator_is_only_text() {
    let setup = HostileTextSetup::new();
    let server = setup.server.to_string();
    let run = ["run", "--target", &server, "--handles", "names", "--records", "records.jsonl"];
    let quick = ["--rate", "50", "--duration", "1s", "--timeout", "300ms"];
    let ask = [&run[..], &quick].concat();
    let output = setup.loadgen(&[&ask[..], &["--mismatches", "wrong.jsonl"]].concat());
    check_output("run", &output, "wrong: 10.1/\\u001b");
    let output = setup.loadgen(&[&ask[..], &["--json", "-"]].concat());
    check_output("run --json", &output, "1b");
    json("run --json", &output.stdout);
    let wrong = std::fs::read_to_string(setup.path("wrong.jsonl")).unwrap();
    assert!(!wrong.contains(|c| is_unprintable(c) && c != '\n'), "{wrong:?}");
    check_output("replay", &setup.loadgen(&["replay", "wrong.jsonl", "--target", &server]), "10.1/\\u001b");
    for (args, shown) in [
        (&["run", "--target", NAME, "--handles", "names", "--rate", "5"][..], "1b"),
        (
            &["run", "--target", &server, "--handles", "bad.jsonl", "--records", "bad.jsonl", "--rate", "5"],
            "bad",
        ),
        (&["run", "--target", &server, "--handles", NAME, "--rate", "5"], "1b"),
        (&["run", "--\u{1b}[2J\u{202e}"], "unexpected"),
        (&["html", NAME], "1b"),
    ] {
        check_output(&args.join(" "), &setup.loadgen(args), shown);
    }
}

#[test]
fn all_output_of_hdl_and_the_lab_goes_through_one_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine");
    let mut directories = ["cli/src", "lab/src"].map(|name| root.join(name)).to_vec();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            // Files that buffer bulk output, answer another program, ask a question, or only check
            // for a terminal.
            let allowed = [
                "cli/src/output.rs",
                "cli/src/style.rs",
                "cli/src/snapshot.rs",
                "cli/src/resolve/bulk.rs",
                "cli/src/store/export.rs",
                "cli/src/reconcile/mod.rs",
            ];
            for word in ["io::stdout()", "io::stderr()", " print!(", " eprint!(", "std::println!"] {
                assert!(!text.contains(word) || allowed.contains(&&*name), "{name} has {word}");
            }
        }
    }
}
