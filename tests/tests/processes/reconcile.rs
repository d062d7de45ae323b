//! `hdl reconcile`: sets, stores, files, lists, servers and other machines against each other.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::daemon::free_address;
use handle_tests::process::{fail, hdl, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::{Value as Json, json};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Number of records of the sets below.
const RECORDS: usize = 300;

/// What `hdl reconcile --json` prints: the exit code, the findings in the order of their names, and
/// the counts.
#[derive(Debug)]
struct ReconcileResult {
    exit: i32,
    findings: Vec<Json>,
    counts: Json,
}

fn reconciled(mut command: Command) -> ReconcileResult {
    command.arg("--json");
    let output = run(command);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut findings: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    let counts = findings.pop().unwrap_or_else(|| panic!("no counts: {error}"));
    findings.sort_by_key(|finding| finding["handle"].as_str().unwrap().to_owned());
    ReconcileResult { exit: output.status.code().unwrap(), findings, counts }
}

fn record(at: usize, url: &str) -> Json {
    json!({"handle": format!("10.1/{at}"), "values": [
        {"index": 1, "type": "URL", "data": url},
        {"index": 2, "type": "NOTE", "data": "hidden", "permissions": "1100"},
    ]})
}

/// Sets, and other forms of the same records, in a directory.
struct RecordCopies(TempDir);

impl RecordCopies {
    /// `good` has all records, in one layer. `bad` has another seed and several layers: 10.1/7 is
    /// missing, 10.1/8 is different, and 10.1/NEW is extra.
    fn new() -> Self {
        let copies = Self(tempfile::tempdir().unwrap());
        let all: Vec<_> = (0..RECORDS).map(|at| record(at, "https://example.org/")).collect();
        copies.write("good.jsonl", &all);
        copies.publish("good", "good.jsonl", &[]);
        copies.write("base.jsonl", &all[..RECORDS / 2]);
        copies.write("delta.jsonl", &all[RECORDS / 2..]);
        copies.publish("copy", "base.jsonl", &[]);
        copies.publish("copy", "delta.jsonl", &["--delta"]);
        let mut wrong = vec![json!({"handle": "10.1/7", "deleted": true})];
        wrong.push(record(8, "https://wrong.example/"));
        wrong.push(json!({"handle": "10.1/NEW", "values": [{"index": 1, "type": "URL", "data": "x"}]}));
        copies.write("wrong.jsonl", &wrong);
        copies.publish("bad", "base.jsonl", &[]);
        copies.publish("bad", "delta.jsonl", &["--delta"]);
        copies.publish("bad", "wrong.jsonl", &["--delta"]);
        copies.fake_ssh("ssh", "shift 2; exec sh -c \"$1\"");
        copies
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, records: &[Json]) {
        let lines: Vec<_> = records.iter().map(Json::to_string).collect();
        std::fs::write(self.path(name), lines.join("\n")).unwrap();
    }

    fn publish(&self, set: &str, records: &str, options: &[&str]) {
        let mut publish = hdl(["snapshot", "publish"]);
        publish.arg(self.path(set)).arg(self.path(records)).args(options);
        succeed(publish);
    }

    /// A program in place of ssh: it gets `--`, the host and the command.
    fn fake_ssh(&self, name: &str, script: &str) {
        std::fs::write(self.path(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The name of a copy on another machine.
    fn remote(&self, name: &str) -> String {
        format!("ssh://other{}", self.path(name).display())
    }

    /// `hdl reconcile`, with the program of this test also on the other machine.
    fn reconcile<P: AsRef<Path>>(&self, wanted: P, found: P) -> Command {
        let mut command = hdl(["reconcile"]);
        let program = command.get_program().to_owned();
        command.arg(wanted.as_ref()).arg(found.as_ref());
        command.arg("--remote-hdl").arg(program).arg("--ssh").arg(self.path("ssh"));
        command.current_dir(self.0.path());
        command
    }
}

/// The findings between `good` and `bad`.
fn expected(has_values: bool) -> Vec<Json> {
    let missing = json!({"handle": "10.1/7", "difference": "missing"});
    let different = json!({"handle": "10.1/8", "difference": "different", "indexes": [1]});
    let extra = json!({"handle": "10.1/NEW", "difference": "extra"});
    if has_values { vec![missing, different, extra] } else { vec![missing, extra] }
}

#[test]
fn copies_in_every_form_are_compared_by_their_records() {
    let copies = RecordCopies::new();
    let mut import = hdl(["import", "store.redb", "good.jsonl", "--create"]);
    import.current_dir(copies.0.path());
    succeed(import);
    let mut build = hdl(["snapshot", "build", "good.layer", "good.jsonl"]);
    build.current_dir(copies.0.path());
    succeed(build);
    let mut export = hdl(["export", "good", "export.json", "--format", "reference"]);
    export.current_dir(copies.0.path());
    succeed(export);
    let names: Vec<_> = (0..RECORDS).map(|at| format!("10.1/{at}\n")).collect();
    std::fs::write(copies.path("names.txt"), names.concat()).unwrap();

    for same in ["copy", "good.jsonl", "good.layer", "store.redb", "export.json", "names.txt"] {
        let found = reconciled(copies.reconcile(same, "good"));
        assert_eq!((found.exit, found.findings.len()), (0, 0), "{same}: {found:?}");
        assert_eq!(found.counts["compared"], RECORDS, "{same}");
    }
    for wanted in ["good", "copy", "good.jsonl", "good.layer", "store.redb", "export.json", "names.txt"] {
        let found = reconciled(copies.reconcile(wanted, "bad"));
        assert_eq!(found.findings, expected(wanted != "names.txt"), "{wanted}");
        assert_eq!((found.exit, &found.counts["compared"]), (1, &json!(RECORDS + 1)), "{wanted}");
        let counts = ["missing", "different", "extra", "unanswered"].map(|name| &found.counts[name]);
        assert_eq!(
            counts,
            [1, u64::from(wanted != "names.txt"), 1, 0].map(Json::from).each_ref(),
            "{wanted}"
        );
    }
    // The other way round, what was missing is extra.
    let found = reconciled(copies.reconcile("bad", "good"));
    let found: Vec<_> = found.findings.iter().map(|it| it["difference"].as_str().unwrap()).collect();
    assert_eq!(found, ["extra", "different", "missing"]);
    let text = run(copies.reconcile("good", "bad"));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("different   10.1/8: index 1\n") && text.contains("1 missing, 1 different, 1 extra"),
        "{text}"
    );
    // Values that are not public count, and timestamps only if they are asked for.
    let hidden = json!({"handle": "10.1/0", "values": [
        {"index": 1, "type": "URL", "data": "https://example.org/", "timestamp": "2020-01-01T00:00:00Z"},
        {"index": 2, "type": "NOTE", "data": "other", "permissions": "1100"},
    ]});
    copies.write("hidden.jsonl", &[hidden]);
    copies.publish("copy", "hidden.jsonl", &["--delta"]);
    let indexes = |found: &ReconcileResult| {
        found.findings.iter().find(|it| it["handle"] == "10.1/0").unwrap()["indexes"].clone()
    };
    assert_eq!(indexes(&reconciled(copies.reconcile("good", "copy"))), json!([2]));
    let mut dated = copies.reconcile("good", "copy");
    dated.arg("--timestamps");
    assert_eq!(indexes(&reconciled(dated)), json!([1, 2]));
}

#[test]
fn one_wrong_record_on_another_machine_is_found_by_the_digests_on_its_path() {
    let copies = RecordCopies::new();
    for (wanted, found) in [
        ("good".to_owned(), copies.remote("bad")),
        ("good.jsonl".to_owned(), copies.remote("bad")),
        (copies.remote("good"), "bad".to_owned()),
        (copies.remote("good.jsonl"), "bad".to_owned()),
    ] {
        let compared = reconciled(copies.reconcile(&wanted, &found));
        assert_eq!((compared.exit, &compared.findings), (1, &expected(true)), "{wanted} {found}");
        assert_eq!(compared.counts["compared"], RECORDS + 1, "{wanted} {found}");
    }
    let same = reconciled(copies.reconcile("copy", &copies.remote("good")));
    assert_eq!((same.exit, same.findings.len(), &same.counts["compared"]), (0, 0, &json!(RECORDS)));
    assert_eq!(same.counts["requests_to_the_other_machine"], 1, "the roots are the same");
    let names: Vec<_> = (0..RECORDS).map(|at| format!("10.1/{at}\n")).collect();
    std::fs::write(copies.path("names.txt"), names.concat()).unwrap();
    let listed = reconciled(copies.reconcile("names.txt", &copies.remote("bad")));
    assert_eq!(listed.findings, expected(false));

    // The requests go up with the logarithm of the number of records, and little is sent.
    copies.fake_ssh("ssh", "shift 2; sh -c \"$1\" | tee answers");
    copies.write("one.jsonl", &[record(5, "https://wrong.example/")]);
    copies.publish("copy", "one.jsonl", &["--delta"]);
    let one = reconciled(copies.reconcile("good", &copies.remote("copy")));
    assert_eq!(one.findings, [json!({"handle": "10.1/5", "difference": "different", "indexes": [1]})]);
    let levels = (RECORDS / 32).next_power_of_two().ilog2() + 1;
    assert!(
        one.counts["requests_to_the_other_machine"].as_u64().unwrap() <= u64::from(levels) + 3,
        "{one:?}"
    );
    let sent = std::fs::metadata(copies.path("answers")).unwrap().len();
    assert!(sent < 40_000, "{sent} bytes");
}

#[test]
fn damaged_records_are_an_error_and_not_a_difference() {
    let copies = RecordCopies::new();
    let layer = std::fs::read_dir(copies.path("good")).unwrap().map(|entry| entry.unwrap().path());
    let layer = layer.into_iter().find(|path| path.extension().is_some_and(|end| end == "layer")).unwrap();
    let mut bytes = std::fs::read(&layer).unwrap();
    let at = bytes.windows(15).position(|part| part == b"https://example").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&layer, bytes).unwrap();
    for (wanted, found) in [
        ("good".to_owned(), "copy".to_owned()),
        ("copy".to_owned(), "good".to_owned()),
        ("good".to_owned(), copies.remote("copy")),
        ("copy".to_owned(), copies.remote("good")),
    ] {
        let (exit, error) = fail(copies.reconcile(&wanted, &found));
        assert!(exit == 1 && error.contains("damaged"), "{wanted} {found}: {error}");
    }
}

#[test]
fn a_connection_that_fails_or_is_something_else_is_an_error() {
    let copies = RecordCopies::new();
    let there = copies.remote("bad");
    for (script, why) in [
        ("exit 3", "the connection ended"),
        ("echo Welcome to this machine", "Welcome to this machine"),
        (
            "echo '{\"hdl_reconcile\":99,\"folds\":true,\"records_count\":1,\"has_names_only\":false}'",
            "version 99",
        ),
        (
            "echo '{\"hdl_reconcile\":1,\"folds\":false,\"records_count\":1,\"has_names_only\":false}'; cat > /dev/null",
            "distinguishes the case",
        ),
        (
            "echo '{\"hdl_reconcile\":1,\"folds\":true,\"records_count\":1,\"has_names_only\":false}'; read it; \
             echo '{\"nodes\":[]}'; cat > /dev/null",
            "unexpected reply from the remote hdl",
        ),
        (
            "echo '{\"hdl_reconcile\":1,\"folds\":true,\"records_count\":1,\"has_names_only\":false}'; read it; \
             echo '{\"failed\":\"a reason\"}'",
            "a reason",
        ),
    ] {
        copies.fake_ssh("ssh", script);
        let (exit, error) = fail(copies.reconcile("good", &there));
        assert!(exit == 1 && error.contains(why), "{script}: {error}");
    }
    let (exit, error) = fail(copies.reconcile(&there, &there));
    assert!(exit == 2 && error.contains("on this machine"), "{error}");
    let (exit, error) = fail(copies.reconcile("good", "ssh://-oProxyCommand=x/set"));
    assert!(exit == 2 && error.contains("expected ssh://"), "{error}");
}

#[test]
fn the_side_that_serves_refuses_what_is_not_a_request() {
    let copies = RecordCopies::new();
    let begin = |bits: u32| {
        json!({"begin": {"nonce": "00".repeat(16), "scope": "values", "bits": bits}}).to_string() + "\n"
    };
    let nodes = |places: Vec<usize>| format!("{}{}\n", begin(4), json!({"nodes": places}));
    for (requests, why) in [
        ("garbage\n".to_owned(), "not a message"),
        ("{\"nodes\":[1]}\n".to_owned(), "not requested first"),
        (begin(4) + &begin(4), "requested twice"),
        (begin(21), "too many levels"),
        (begin(4).replace("values", "all"), "unknown scope"),
        (begin(4).replace("00", "0g"), "hexadecimal"),
        (begin(4).replace("00", "0"), "another length"),
        (nodes(vec![0]), "no such place"),
        (nodes(vec![32]), "no such place"),
        (nodes(vec![1; 8193]), "too many places"),
        (begin(4) + "{\"records\":[\"zz\"]}\n", "hexadecimal"),
        (begin(4).trim().to_owned(), "cut or too long"),
    ] {
        let mut serve = hdl(["reconcile", "--serve"]);
        serve.arg(copies.path("good")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = serve.spawn().unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(requests.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().unwrap();
        assert!(output.status.code() == Some(1) && last.contains(why), "{requests}: {last}");
        assert!(serde_json::from_str::<Json>(last).unwrap()["failed"].is_string(), "{last}");
    }
    // The limits themselves are accepted.
    for requests in [begin(20), nodes(vec![1; 8192]), nodes(vec![31]), String::new()] {
        let mut serve = hdl(["reconcile", "--serve"]);
        serve.arg(copies.path("good")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = serve.spawn().unwrap();
        child.stdin.take().unwrap().write_all(requests.as_bytes()).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
    }
}

/// A service whose records were exported to `backup.jsonl`, and damaged afterwards.
fn damaged_service() -> InitialisedService {
    let service = InitialisedService::start();
    for name in ["a", "b", "c"] {
        let handle = format!("10.1045/{name}");
        let create =
            ["handle", "create", &handle, "1:URL=https://a.example/", "100:HS_ADMIN=300:10.1045/ADMIN"];
        succeed(service.hdl_as_admin(create));
        service.until_resolved(&handle, 1, "https://a.example/");
    }
    succeed(service.hdl(["export", "site/snapshot", "backup.jsonl"]));
    damage(&service);
    service
}

fn damage(service: &InitialisedService) {
    succeed(service.hdl_as_admin(["handle", "update", "10.1045/b", "1:URL=https://wrong.example/"]));
    succeed(service.hdl_as_admin(["handle", "delete", "10.1045/c"]));
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/d", "1:URL=https://d.example/"]));
    service.until_resolved("10.1045/b", 1, "https://wrong.example/");
    service.until_resolved("10.1045/d", 1, "https://d.example/");
}

fn differences(found: &ReconcileResult) -> Vec<(&str, &str)> {
    found
        .findings
        .iter()
        .map(|it| (it["handle"].as_str().unwrap(), it["difference"].as_str().unwrap()))
        .collect()
}

const DAMAGE: [(&str, &str); 3] =
    [("10.1045/B", "different"), ("10.1045/C", "missing"), ("10.1045/D", "extra")];

#[test]
fn servers_are_asked_for_each_handle_or_list_theirs() {
    let service = damaged_service();
    let queries = service.queries.to_string();
    let ask = |wanted: &str| service.hdl(["reconcile", wanted, "--server", &queries, "--rate", "1000"]);
    let found = reconciled(ask("backup.jsonl"));
    assert_eq!(differences(&found), DAMAGE[..2]);
    // The server is not responsible for the prefix record.
    assert_eq!((found.exit, &found.counts["not_homed"]), (1, &json!(1)), "{found:?}");
    assert_eq!((&found.counts["extra"], &found.counts["compared"]), (&Json::Null, &json!(4)));
    std::fs::write(service.path("names.txt"), "10.1045/a\n10.1045/b\n10.1045/c\n").unwrap();
    assert_eq!(differences(&reconciled(ask("names.txt"))), [DAMAGE[1]]);
    std::fs::write(service.path("names.txt"), "10.1045/a\n10.1045/b\n").unwrap();
    assert_eq!(reconciled(ask("names.txt")).exit, 0);
    // A list says nothing about what is homed: the server does, about records of prefixes. Other
    // handles should be there.
    std::fs::write(service.path("names.txt"), "0.NA/10.1045\n10.9/a\n").unwrap();
    let found = reconciled(ask("names.txt"));
    assert_eq!(
        (differences(&found), &found.counts["not_homed"]),
        (vec![("10.9/A", "unanswered")], &json!(1))
    );
    assert!(found.exit == 1 && found.findings[0]["error"].to_string().contains("301"), "{found:?}");

    // A listing does not have the prefix record.
    let listing = format!("server:{}", service.administration);
    let listed = reconciled(service.hdl_as_admin(["reconcile", "backup.jsonl", &listing]));
    assert_eq!((differences(&listed), &listed.counts["not_homed"]), (DAMAGE.to_vec(), &json!(1)));
    let (exit, error) = fail(service.hdl(["reconcile", "backup.jsonl", &listing]));
    assert!(exit == 1 && error.contains("cannot list"), "{error}");

    // With a prefix, only its handles are listed and compared, in both directions.
    let other = "{\"homed\":\"0.NA/10.7\"}\n{\"handle\":\"10.7/x\",\"values\":[]}\n";
    let backup = std::fs::read_to_string(service.path("backup.jsonl")).unwrap();
    std::fs::write(service.path("two.jsonl"), backup + other).unwrap();
    for places in [["two.jsonl", &listing], [&listing, "two.jsonl"]] {
        let places = ["reconcile", places[0], places[1]];
        let with = |prefix: &'static str| places.into_iter().chain(["--prefix", prefix]);
        let found = reconciled(service.hdl_as_admin(with("10.1045")));
        assert_eq!(found.findings.len(), DAMAGE.len(), "{found:?}");
        assert_eq!((&found.counts["not_homed"], &found.counts["not_listed"]), (&json!(0), &json!(2)));
        let text = run(service.hdl_as_admin(with("10.1045"))).stdout;
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("2 of other prefixes and left out: "), "{text}");
    }

    let silent = free_address().to_string();
    let names: Vec<_> = (0..20).map(|at| format!("10.1045/{at}\n")).collect();
    std::fs::write(service.path("names.txt"), names.concat()).unwrap();
    let (exit, error) = fail(service.hdl(["reconcile", "names.txt", "--server", &silent, "--rate", "1000"]));
    assert!(exit == 1 && error.contains("10 handles in a row are not answered"), "{error}");
}

#[test]
fn differences_are_repaired_through_handle_admin_without_a_dump() {
    let service = damaged_service();
    let script = "#!/bin/sh\nshift 2\nexec sh -c \"$1\"\n";
    service.script("ssh", script);
    let program = hdl([""]).get_program().to_string_lossy().into_owned();
    let remote = format!("ssh://other{}", service.path("site/snapshot").display());
    let options = ["--ssh", "./ssh", "--remote-hdl", &program];
    for place in ["site/snapshot", &remote] {
        let compare = ["reconcile", "backup.jsonl", place].into_iter().chain(options);
        assert_eq!(differences(&reconciled(service.hdl(compare.clone()))), DAMAGE, "{place}");
        // Extra handles are deleted only on request.
        let repair: Vec<_> = compare.clone().chain(["--repair"]).collect();
        let repaired = reconciled(service.hdl_as_admin(repair.iter().copied()));
        assert_eq!((repaired.exit, &repaired.counts["repaired"]), (1, &json!(2)), "{place}: {repaired:?}");
        let shown: Vec<_> = repaired.findings.iter().map(|it| it["repaired"].as_bool()).collect();
        assert_eq!(shown, [Some(true), Some(true), None], "{place}");
        service.until_resolved("10.1045/c", 1, "https://a.example/");
        service.until_resolved("10.1045/b", 1, "https://a.example/");
        let all = repair.iter().copied().chain(["--delete-extra"]);
        let repaired = reconciled(service.hdl_as_admin(all));
        assert_eq!((repaired.exit, &repaired.counts["repaired"]), (0, &json!(1)), "{place}: {repaired:?}");
        service.until_resolved("10.1045/d", 100, "");
        until("the copies are the same", || reconciled(service.hdl(compare.clone())).exit == 0);
        damage(&service);
    }
    // Without rights, a repair is refused and reported, and nothing changes.
    let repair = ["reconcile", "backup.jsonl", "site/snapshot", "--repair"];
    let refused = reconciled(service.hdl_as(repair, "300:10.1045/ADMIN", "site/server-private.bin"));
    assert_eq!((refused.exit, &refused.counts["not_repaired"]), (1, &json!(2)), "{refused:?}");
    service.until_resolved("10.1045/b", 1, "https://wrong.example/");
    std::fs::write(service.path("names.txt"), "10.1045/a\n").unwrap();
    let names = service.hdl_as_admin(["reconcile", "names.txt", "site/snapshot", "--repair"]);
    let (exit, error) = fail(names);
    assert!(exit == 2 && error.contains("no records to repair with"), "{error}");
}
