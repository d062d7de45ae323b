//! A small Handle System of nine servers: handles are found from the global registry down, whatever single
//! servers and sites do.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_client::bootstrap::{Root, read_site};
use handle_client::lookup::{Client, Options};
use handle_client::question::Wants;
use handle_client::{Answer, Driver, LookupError, Question};
use handle_proto::data::site::SiteBuf;
use handle_proto::wire::Envelope;
use handle_tests::lab::Lab;
use handle_tests::process::{fail, hdl, succeed};
use handle_tests::records::{self, Record};
use serde_json::Value as Json;
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The lab of the tests that break nothing.
fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(Lab::up)
}

fn client(lab: &Lab) -> Client {
    Client::new(Root::read(&std::fs::read(&lab.root).unwrap()).unwrap())
}

fn certified(handle: &str) -> Question {
    let wants = Wants { certified: true, ..Wants::default() };
    Question { wants, ..Question::all(handle.as_bytes()) }
}

/// Whether an answer is exactly the record.
fn assert_is(answer: &Answer, record: &Record) {
    let mut encoded = vec![];
    answer.values().iter().for_each(|value| value.encode(&mut encoded));
    assert_eq!(encoded, record.values, "{}", record.handle);
}

#[test]
fn every_handle_resolves_from_the_global_registry() {
    let (lab, records) = (lab(), records::load());
    let mut driver = Driver::new(Arc::new(client(lab)));
    for record in &records {
        let resolved = driver.resolve(&Question::all(record.handle.as_bytes()), &Options::default());
        assert_is(&resolved.outcome.unwrap(), record);
    }
    // The same from the command line: many at a time, in their order.
    let list = lab.directory.path().join("handles.txt");
    let (mut handles, mut lines) = (String::new(), String::new());
    for record in &records {
        writeln!(handles, "hdl:{}", record.handle).unwrap();
        writeln!(lines, "{}", record.handle).unwrap();
    }
    std::fs::write(&list, handles).unwrap();
    let shown = succeed(lab.hdl(&["resolve", "--file", list.to_str().unwrap(), "--url", "--jobs", "8"]));
    let shown: Vec<&str> = shown.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(shown, lines.lines().collect::<Vec<_>>());
}

#[test]
fn each_step_is_shown_and_signed() {
    let lab = lab();
    let shown = succeed(lab.hdl(&["resolve", "hdl:20.500.lab/hello", "--trace", "--certify"]));
    let [registry, derived] = ["registry", "derived"].map(|site| lab.addresses(site)[0].to_string());
    for step in [
        "0.NA/20.500.LAB  (where is the service of the prefix?)".to_owned(),
        "the global service: 1 site".to_owned(),
        format!("{registry} answers 303 prefix referral"),
        "the service of the referral: 1 site".to_owned(),
        format!("{derived} answers 1 success, 1 value"),
        "the service of the prefix: 1 site".to_owned(),
        "signature good".to_owned(),
    ] {
        assert!(shown.contains(&step), "{step}:\n{shown}");
    }
    let json = succeed(lab.hdl(&["resolve", "20.500.LAB/hello", "--certify", "--trace", "--json"]));
    let json: Json = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["responseCode"], &json["certified"]), (&1.into(), &true.into()));
    assert!(json["trace"].as_array().unwrap().len() > 5, "{json}");
    let url = succeed(lab.hdl(&["resolve", "20.500.LAB/alias", "--aliases", "1", "--url"]));
    assert_eq!(url, "https://lab.example/hello\n");
    let tcp = succeed(lab.hdl(&["resolve", "20.500.LAB/hello", "--tcp", "--trace"]));
    assert!(tcp.contains("over TCP") && !tcp.contains("over UDP"), "{tcp}");
}

#[test]
fn the_global_service_is_known_anew_when_all_of_it_is_signed() {
    let lab = lab();
    let new = lab.directory.path().join("bootstrap_new");
    let shown = succeed(lab.hdl(&["root", "--refresh", "--output", new.to_str().unwrap()]));
    assert!(shown.contains("2 records, all signed"), "{shown}");
    let args = ["resolve", "20.500.LAB/hello", "--url", "--certify", "--root", new.to_str().unwrap()];
    assert_eq!(succeed(lab.hdl(&args)), "https://lab.example/hello\n");
    let shown = succeed(lab.hdl(&["resolve", "0.SERV/LAB", "--signatures", "--type", "HS_SITE"]));
    assert!(shown.contains("value 3: signed"), "{shown}");
    // With another key nothing of it counts, and the file stays as it is.
    let mut file: Json = serde_json::from_slice(&std::fs::read(&new).unwrap()).unwrap();
    let site: Json = serde_json::from_slice(&std::fs::read(lab.siteinfo("derived")).unwrap()).unwrap();
    let keys = &mut file["handles"]["0.0/0.0"]["values"];
    keys[0]["data"] =
        serde_json::json!({ "format": "key", "value": site["servers"][0]["publicKey"]["value"] });
    let other = lab.directory.path().join("bootstrap_other");
    std::fs::write(&other, file.to_string()).unwrap();
    let path = other.to_str().unwrap();
    let (exit, error) = fail(lab.hdl(&["root", "--refresh", "--root", path, "--output", path]));
    assert!(exit == 1 && error.contains("not trusted"), "{error}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), file.to_string());
}

#[test]
fn the_outcome_is_in_the_exit_code() {
    let lab = lab();
    for (args, code, what) in [
        (&["10.1016/none-such"][..], 3, ""),
        (&["20.500.LAB/hello", "--type", "EMAIL"], 4, ""),
        (&["10.9999/x"], 5, "is the prefix right?"),
        (&["hdl:doi:10.1016/x"], 1, "two schemes"),
        (&["10.1016/x", "--root", "/does/not/exist"], 1, "cannot read"),
        (&["20.500.LAB/hello", "10.1016/none-such"], 3, "handle not found"),
        (&["hdl://127.0.0.1/20.500.LAB/hello", "--certify"], 1, "--certify is not for a server"),
        (&["hdl://127.0.0.1/20.500.LAB/hello", "--url"], 1, "--url is not for a server"),
        (&["20.500.LAB/hello", "hdl://127.0.0.1/20.500.LAB/hello"], 1, "resolve it alone"),
        (&["20.500.LAB/hello", "20.500.LAB/hello", "--signatures"], 1, "do not go together"),
        (&["20.500.LAB/hello", "--url", "--signatures"], 1, "not every value"),
    ] {
        let mut command = lab.hdl(&["resolve"]);
        command.args(args);
        let (exit, error) = fail(command);
        assert_eq!(exit, code, "{args:?}: {error}");
        assert!(error.contains(what), "{args:?}: {error}");
    }
    let mut nowhere = lab.hdl(&["resolve", "10.1016/x"]);
    nowhere.env_remove("HDL_ROOT").env("HOME", lab.directory.path());
    let (exit, error) = fail(nowhere);
    assert!(exit == 1 && error.contains("global service is not known"), "{error}");
}

#[test]
fn who_disagrees_is_told_and_what_hashes_elsewhere_is_refused() {
    let lab = lab();
    let shown = succeed(lab.hdl(&["check", "10.1016/j.rcae.2013.04.001", "--certify", "--json"]));
    let json: Json = serde_json::from_str(&shown).unwrap();
    let servers = json["servers"].as_array().unwrap();
    // Four, two and one, over both protocols; three of them are responsible.
    assert_eq!((servers.len(), &json["agree"]), (14, &true.into()));
    for server in servers {
        let says = if server["responsible"] == true { "4 values" } else { "301 server not responsible" };
        assert_eq!(server["says"], says, "{server}");
    }
    let mut command = lab.hdl(&["check", "10.1016/lab-new", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Json = serde_json::from_slice(&output.stdout).unwrap();
    let bad = json["servers"].as_array().unwrap().iter().filter(|server| server["good"] == false);
    let bad: Vec<_> = bad.map(|server| server["address"].as_str().unwrap().to_owned()).collect();
    let mirror = lab.addresses("mirror")[0].to_string();
    assert_eq!(bad, [mirror.clone(), mirror], "the mirror lags behind");
    let shown = succeed(lab.hdl(&["site", "10.1016"]));
    assert!(shown.contains("site 3: secondary") && shown.contains("->"), "{shown}");
}

#[test]
fn the_shares_of_the_servers_of_a_site_are_the_whole() {
    let lab = lab();
    let siteinfo = lab.siteinfo("primary");
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors/dois.jsonl");
    let mut count = 0;
    for server in ["1", "2", "3", "4"] {
        let layer = lab.directory.path().join(format!("share-{server}.layer"));
        let mut command = lab.hdl(&["snapshot", "build", "--json", "--server", server, "--site"]);
        command.arg(&siteinfo).arg(&layer).arg(records);
        let json: Json = serde_json::from_str(&succeed(command)).unwrap();
        let share = json["handles"].as_u64().unwrap();
        assert!((200..450).contains(&share), "server {server} has {share}");
        count += share;
    }
    assert_eq!(count, 1251);
    let mut command = lab.hdl(&["snapshot", "build", "--server", "5", "--site"]);
    command.arg(&siteinfo).arg(lab.directory.path().join("none.layer")).arg(records);
    let (exit, error) = fail(command);
    assert!(exit == 1 && error.contains("no server of"), "{error}");
}

#[test]
fn references_are_printed_in_their_two_best_forms() {
    let shown = succeed(hdl(["reference", "--json", "hdl:latin1type=URL@cnri.test/%E4%25#part"]));
    let json: Json = serde_json::from_str(&shown).unwrap();
    for (member, expected) in [
        ("handle", "cnri.test/ä%"),
        ("text", "hdl:cnri.test/ä%25"),
        ("url", "https://hdl.handle.net/cnri.test/%C3%A4%25"),
        ("fragment", "part"),
    ] {
        assert_eq!(json[member], expected, "{shown}");
    }
    assert_eq!(json["types"][0], "URL");
    let args = [
        "reference",
        "https://handles.example/10.1/x",
        "--host",
        "handles.example",
        "--proxy",
        "https://p.example",
    ];
    let shown = succeed(hdl(args));
    assert!(shown.contains("address   https://p.example/10.1/x"), "{shown}");
    let (exit, error) = fail(hdl(["reference", "https://handles.example/10.1/x"]));
    assert!(exit == 1 && error.contains("not known as a proxy"), "{error}");
}

/// What a server that lies does to the answer of a true one.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Another value, with the signature of the true one.
    Changed,
    /// To another request.
    OtherRequest,
    /// Without a signature.
    Unsigned,
    /// To a request that was asked before, replayed.
    Replayed,
    /// Nothing at all.
    Silent,
}

/// A server between a client and a true server, which lies; it ends when it is dropped.
struct Liar {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Liar {
    fn start(truth: SocketAddr, lie: Lie) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (address, ends) = (socket.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let ends = Arc::clone(&ends);
            move || Self::lie(&socket, truth, lie, &ends)
        });
        Self { address, ends, thread: Some(thread) }
    }

    fn lie(socket: &UdpSocket, truth: SocketAddr, lie: Lie, ends: &AtomicBool) {
        let mut room = [0; 2048];
        let mut before: Option<Vec<Vec<u8>>> = None;
        while !ends.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut room) else { continue };
            if matches!(lie, Lie::Silent) {
                continue;
            }
            let mut answers = ask(truth, &room[..len]);
            match lie {
                Lie::Changed => {
                    // Somewhere in the data of a value.
                    let first = answers.first_mut().unwrap();
                    let at = first.len() / 2;
                    first[at] ^= 1;
                }
                Lie::OtherRequest => answers.iter_mut().for_each(|answer| answer[11] ^= 0x40),
                Lie::Unsigned => {
                    // Without the flag CT the true server does not sign.
                    let mut request = room[..len].to_vec();
                    request[Envelope::LEN + 8] &= !0x40;
                    answers = ask(truth, &request);
                }
                Lie::Replayed => {
                    let kept = before.get_or_insert_with(|| answers.clone());
                    let id: [u8; 4] = room[8..12].try_into().unwrap();
                    answers = kept.clone();
                    answers.iter_mut().for_each(|answer| answer[8..12].copy_from_slice(&id));
                }
                Lie::Silent => {}
            }
            for answer in answers {
                let _ = socket.send_to(&answer, from);
            }
        }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The datagrams that a true server answers with.
fn ask(server: SocketAddr, request: &[u8]) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(request, server).unwrap();
    let mut answers: Vec<Vec<u8>> = vec![];
    let mut room = [0; 2048];
    loop {
        let len = socket.recv(&mut room).expect("the true server answers");
        let (envelope, _) = Envelope::split(&room[..len]).unwrap();
        answers.push(room[..len].to_vec());
        if answers.len() == (envelope.message_len as usize).div_ceil(492) {
            return answers;
        }
    }
}

/// The site, with one server at another address.
fn moved(site: &SiteBuf, to: SocketAddr) -> SiteBuf {
    let mut site = site.edit();
    let server = &mut site.servers[0];
    server.address = to.ip().into();
    server.interfaces.retain(|interface| interface.protocol.name() == Some("UDP"));
    server.interfaces[0].port_number = to.port().into();
    site.build()
}

#[test]
fn no_lie_is_believed_and_the_answer_comes_from_another_site() {
    let (lab, records) = (lab(), records::load());
    let mirror = read_site(&std::fs::read(lab.siteinfo("mirror")).unwrap()).unwrap();
    let honest = read_site(&std::fs::read(lab.siteinfo("secondary")).unwrap()).unwrap();
    for lie in [Lie::Changed, Lie::OtherRequest, Lie::Unsigned, Lie::Replayed, Lie::Silent] {
        let liar = Liar::start(lab.addresses("mirror")[0], lie);
        let mut client = client(lab);
        client.patience.udp_ms = vec![100, 200];
        client.overrides.add(b"0.NA/10.1016", moved(&mirror, liar.address));
        client.overrides.add(b"0.NA/10.1016", honest.clone());
        let client = Arc::new(client);
        let mut driver = Driver::new(Arc::clone(&client));
        let mut lies_count = 0;
        for record in records.iter().filter(|record| record.handle.starts_with("10.1016/")).take(12) {
            let options = Options { trace: true, ..Options::default() };
            let resolved = driver.resolve(&certified(&record.handle), &options);
            let answer = resolved.outcome.unwrap();
            assert_is(&answer, record);
            // What was asked of the liar first of all is true when it is replayed.
            let is_true = matches!(lie, Lie::Replayed) && answer.from == Some(liar.address);
            assert!(is_true || lab.addresses("secondary").contains(&answer.from.unwrap()), "{lie:?}");
            lies_count += resolved
                .events
                .iter()
                .filter(|event| matches!(&event.step, handle_client::trace::Step::Failed { target, .. } if target.address == liar.address))
                .count();
        }
        assert!(lies_count > 0, "{lie:?}: nobody asked the liar");
    }
}

#[test]
fn sites_that_are_slow_or_gone_are_passed_over() {
    let (lab, records) = (Lab::up(), records::load());
    let mut client = client(&lab);
    client.patience.udp_ms = vec![100, 200];
    client.patience.tcp_ms = 1_000;
    let client = Arc::new(client);
    let mut driver = Driver::new(Arc::clone(&client));
    let mut resolve_some = |what: &str, skip: usize| {
        for record in records.iter().skip(skip).step_by(60) {
            let outcome = driver.resolve(&certified(&record.handle), &Options::default()).outcome;
            let answer = outcome.unwrap_or_else(|error| panic!("{what}: {}: {error}", record.handle));
            assert_is(&answer, record);
        }
    };
    resolve_some("all are well", 0);
    lab.signal("primary", "STOP");
    resolve_some("the primary site is silent", 1);
    lab.signal("mirror", "KILL");
    resolve_some("and the mirror is gone", 2);
    lab.signal("primary", "CONT");
    lab.signal("secondary", "KILL");
    resolve_some("the primary site is back, and alone", 3);
    lab.signal("registry", "KILL");
    // What is known from before is enough, and what is not is missed with a reason.
    let unknown = certified("10.9999/x");
    let error = driver.resolve(&unknown, &Options::default()).outcome.unwrap_err();
    assert!(matches!(error, LookupError::AllFailed { .. }), "{error}");
    let (exit, error) = fail(lab.hdl(&["resolve", "10.1016/j.rcae.2013.04.001"]));
    assert!(exit == 7 && error.contains("nobody listens"), "{exit}: {error}");
}

#[test]
fn a_program_that_runs_for_long_knows_the_global_service_anew_by_itself() {
    let lab = lab();
    let mut root = Root::read(&std::fs::read(&lab.root).unwrap()).unwrap();
    root.updated_unix_ms = Some(0);
    let path = lab.directory.path().join("renewed");
    let mut client = Client::new(root);
    client.renewal.file = Some(path.clone());
    let client = Arc::new(client);
    let mut driver = Driver::new(Arc::clone(&client));
    driver.renew_if_due().expect("it is old").unwrap();
    let written = Root::read(&std::fs::read(&path).unwrap()).unwrap();
    assert!(written.updated_unix_ms > Some(0));
    assert_eq!(client.root.get().updated_unix_ms, written.updated_unix_ms);
    assert!(driver.renew_if_due().is_none(), "and then it is new");
    let answer = driver.resolve(&certified("20.500.LAB/hello"), &Options::default()).outcome.unwrap();
    assert!(answer.certified);
}
