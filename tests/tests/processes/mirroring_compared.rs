//! A mirror beside its primaries: comparing them, several of them, their audit logs, and who is
//! between them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_tests::daemon::ask;
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator};
use handle_tests::process::{run, until};
use handle_tests::service_directory::InitialisedService;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

const DONE: Option<(ResponseCode, String)> = Some((ResponseCode::SUCCESS, String::new()));

/// The outcome of `hdl mirror compare` with these options, as JSON for the only primary.
fn compared(service: &MirroredService, options: &[&str]) -> (Option<i32>, serde_json::Value) {
    let args = [&["mirror", "compare", "--socket", "site/run/handle-admin.sock", "--json"], options].concat();
    let output = run(service.mirror.hdl(args));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert!(json[0].is_object(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), json[0].clone())
}

#[test]
fn a_mirror_is_compared_with_its_primary() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.start();
    let mut administrator = service.administrator();
    for name in ["same", "changed", "deleted"] {
        assert_eq!(administrator.put(&format!("10.1045/{name}"), "before"), DONE);
    }
    assert_eq!(administrator.home("0.NA/10.66"), DONE);
    // What is on its way arrives while the command waits.
    let (code, found) = compared(&service, &[]);
    assert_eq!((code, &found["agree"]), (Some(0), &true.into()), "{found}");
    assert!(found["records"].as_u64() >= Some(4), "{found}");
    let id = ask(&service.primary.path("site/run/handle-admin.sock"), "status");
    assert_eq!(found["transaction"], id["store"]["content"]["last_transaction"]);
    let dumps = service.progress()["counts"]["dumps"].clone();
    // It goes on to follow, and publishes nothing.
    let control = service.mirror.path("site/run/handle-admin.sock");
    assert_eq!(ask(&control, "hold for a test")["ok"], true);
    assert_eq!(administrator.put("10.1045/changed", "after"), DONE);
    assert_eq!(administrator.put("10.1045/new", "after"), DONE);
    assert_eq!(administrator.delete("10.1045/deleted"), DONE);
    assert_eq!(administrator.unhome("0.NA/10.66"), DONE);
    assert_eq!(administrator.home("0.NA/10.77"), DONE);
    let (code, found) = compared(&service, &["--wait", "0"]);
    assert_eq!((code, &found["agree"]), (Some(1), &false.into()), "{found}");
    let expected = serde_json::json!([
        { "handle": "10.1045/CHANGED", "difference": "different" },
        { "handle": "10.1045/DELETED", "difference": "extra" },
        { "handle": "10.1045/NEW", "difference": "missing" },
        { "homed": "10.66", "difference": "extra" },
        { "homed": "10.77", "difference": "missing" },
    ]);
    assert_eq!(found["differences"], expected);
    let shown =
        run(service.mirror.hdl(["mirror", "compare", "-s", "site/run/handle-admin.sock", "--wait", "0"]));
    let shown = String::from_utf8_lossy(&shown.stdout);
    for line in
        ["main: ", "  missing: 10.1045/NEW\n", "  extra: homed prefix 10.66\n", "  the mirror differs\n"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(ask(&control, "resume")["ok"], true);
    let (code, found) = compared(&service, &[]);
    assert_eq!((code, &found["differences"]), (Some(0), &serde_json::json!([])), "{found}");
    assert_eq!(service.progress()["counts"]["dumps"], dumps, "the mirror itself has dumped no more");
}

#[test]
fn a_comparison_is_made_by_a_mirror_one_at_a_time_and_ends_with_its_client() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.start();
    until("the sets are equal", || service.is_equal());
    let mut administrator = service.administrator();
    let control = service.mirror.path("site/run/handle-admin.sock");
    assert_eq!(ask(&control, "hold for a test")["ok"], true);
    assert_eq!(administrator.put("10.1045/new", "on its way"), DONE);
    // What differs is compared again, as long as the client waits.
    let mut client = UnixStream::connect(&control).unwrap();
    client.write_all(b"compare-mirror 3600\n").unwrap();
    let mut first = String::new();
    BufReader::new(&client).read_line(&mut first).unwrap();
    assert!(first.contains("compared"), "{first}");
    assert!(ask(&control, "compare-mirror 0")["error"].as_str().unwrap().contains("in progress"));
    drop(client);
    until("the first one has ended", || ask(&control, "compare-mirror 0").get("compared").is_some());
    assert!(ask(&control, "compare-mirror x")["error"].as_str().unwrap().contains("SECONDS"));
    let primary = ["mirror", "compare", "--json", "--socket", "site/run/handle-admin.sock"];
    let output = run(service.primary.hdl(primary));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("this is not a mirror"), "{output:?}");
}

#[test]
fn two_primaries_are_mirrored_each_with_its_prefixes() {
    let mut service = MirroredService::make("", "interval_ms = 50\nprefixes = [\"10.1045\"]");
    let mut other = InitialisedService::make();
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    let path = |name: &str| other.path(name).display().to_string();
    let (site, key) = (path("site/siteinfo.json"), path("site/admin-private.bin"));
    let entry = format!(
        "\n[[mirror.primary]]\nname = \"other\"\nsite = \"{site}\"\nidentity = \"300:10.1045/ADMIN\"\n\
         key_file = \"{key}\"\ninterval_ms = 50\nprefixes = [\"10.88\"]\n"
    );
    fs::write(&config, text + &entry).unwrap();
    service.start();
    other.start_admin();
    let mut one = service.administrator();
    let mut two = RecordAdministrator::new(&other, other.administration);
    assert_eq!(two.home("0.NA/10.88"), DONE);
    assert_eq!(one.put("10.1045/a", "of one"), DONE);
    assert_eq!(two.put("10.88/a", "of two"), DONE);
    // Another record of the name, which the filter leaves out.
    assert_eq!(two.put("10.1045/a", "not of two"), DONE);
    service.mirror.start_handled();
    service.mirror.until_resolved("10.1045/a", 1, "of one");
    service.mirror.until_resolved("10.88/a", 1, "of two");
    // The loss of one primary does not keep back the changes of the other.
    other.admin = None;
    assert_eq!(one.put("10.1045/b", "alone"), DONE);
    service.mirror.until_resolved("10.1045/b", 1, "alone");
    service.mirror.until_resolved("10.88/a", 1, "of two");
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    let (code, text) = client.put("10.1045/x", "no").unwrap();
    assert_eq!(code, ResponseCode::SERVER_NOT_RESPONSIBLE);
    for address in [service.primary.administration, other.administration] {
        assert!(text.contains(&address.to_string()), "{text}");
    }
    other.start_admin();
    let mut two = RecordAdministrator::new(&other, other.administration);
    assert_eq!(two.delete("10.88/a"), DONE);
    service.mirror.until_resolved("10.88/a", 100, "");
    service.mirror.until_resolved("10.1045/a", 1, "of one");
}

#[test]
fn requests_of_mirrors_do_not_let_the_audit_log_grow_while_nothing_changes() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    let config = service.primary.path("site/handle-admin.toml");
    let audit = service.primary.path("site/audit-of-test.jsonl");
    let text = fs::read_to_string(&config).unwrap();
    let text: String =
        text.lines().filter(|line| !line.starts_with("audit")).map(|line| line.to_owned() + "\n").collect();
    fs::write(&config, format!("audit = \"{}\"\n{text}", audit.display())).unwrap();
    service.start();
    until("the mirror follows", || service.progress()["activity"] == "following");
    let streams = || service.progress()["counts"]["streams"].as_u64().unwrap();
    let requests = || {
        let text = fs::read_to_string(&audit).unwrap();
        text.lines().filter(|line| line.contains("retrieve transactions")).count()
    };
    let from = streams();
    until("some streams are requested", || streams() >= from + 2);
    let (before, from) = (fs::read_to_string(&audit).unwrap(), streams());
    until("more streams are requested", || streams() >= from + 10);
    assert_eq!(fs::read_to_string(&audit).unwrap(), before, "nothing has changed");
    let before = requests();
    assert!(before >= 1, "the first request has a line");
    assert_eq!(service.administrator().put("10.1045/a", "x"), DONE);
    until("the change is here", || service.is_equal());
    until("the request after a change has a line", || requests() > before);
}

/// Relays connections to a server, and says in the envelope of each request that the client knows
/// only version 2.7, in which streams are signed instead of encrypted.
fn downgrader(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { continue };
            let pair = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || copy(client, server, |front| *front = [2, 7, 2, 7]));
            std::thread::spawn(move || copy(pair.1, pair.0, |_| ()));
        }
    });
    address
}

fn copy(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8; 4])) {
    let mut buffer = [0; 8192];
    // A client sends each request in one piece.
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if let Some(front) = buffer.first_chunk_mut() {
            change(front);
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_stream_that_somebody_between_keeps_from_being_encrypted_is_refused() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    let between = downgrader(service.primary.administration);
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}addresses = [\"{between}\"]\n")).unwrap();
    service.start();
    until("the stream is refused", || service.progress()["counts"]["errors"]["unproven"].as_u64() >= Some(1));
    let progress = service.progress();
    assert!(progress["last_error"].as_str().unwrap().contains("signed and not encrypted"), "{progress}");
    assert_eq!((&progress["counts"]["items"], &progress["counts"]["dumps"]), (&0.into(), &0.into()));
    service.mirror.admin = None;
    fs::write(&config, format!("{text}addresses = [\"{between}\"]\nallow_signed_streams = true\n")).unwrap();
    service.mirror.start_admin();
    until("the signed dump is accepted", || service.is_equal());
    assert_eq!(service.progress()["counts"]["dumps"], 1, "{}", service.progress());
}
