//! `hdl batch` against a server with records in memory: interrupted batches resume and end in the
//! same store.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::batches::{batch, operations};
use handle_tests::process::{RunningProcess, fail, hdl, succeed, until};
use handle_tests::records_server::{Records, RecordsServer};
use handle_tests::service_directory::InitialisedService;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

struct BatchSetup {
    directory: TempDir,
    server: RecordsServer,
}

impl BatchSetup {
    fn new(text: &str) -> Self {
        let setup = Self { directory: tempfile::tempdir().unwrap(), server: RecordsServer::start() };
        let port = setup.server.address.port().to_string();
        std::fs::write(setup.batch(), text.replace("PORT", &port)).unwrap();
        setup
    }

    fn batch(&self) -> PathBuf {
        self.directory.path().join("batch.txt")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("batch.txt.log")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = hdl(["batch", "--server", &self.server.address.to_string(), "--json"]);
        command.arg("--allow-cleartext-secrets");
        command.arg(self.batch()).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to the end; some operations of these batches are always refused.
    fn run(&self, more: &[&str]) -> String {
        let (code, error) = fail(self.command(more));
        assert_eq!(code, 1, "{error}");
        error
    }
}

/// The records after an uninterrupted batch on an empty store.
fn uninterrupted(text: &str, more: &[&str]) -> Records {
    let setup = BatchSetup::new(text);
    let error = setup.run(more);
    assert!(!error.contains("stopped"), "{error}");
    setup.server.records()
}

fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count())
}

#[test]
fn a_batch_that_is_killed_goes_on_and_ends_in_the_same_store() {
    let count = operations();
    for (seed, more) in [(1, &["--parallel", "1"]), (2, &["--parallel", "8"])] {
        let text = batch(seed, count);
        let expected = uninterrupted(&text, more);
        assert!(expected.len() > count / 50, "{} records", expected.len());
        let setup = BatchSetup::new(&text);
        // A rate limit, so that the batch is not finished when it is killed.
        let slow = [more[0], more[1], "--rate", &(count * 2).to_string()];
        let mut running = RunningProcess::start(setup.command(&slow));
        until("some operations are done", || lines(&setup.log()) > count / 2);
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        let before = lines(&setup.log());
        let error = setup.run(&[more, &["--resume"][..]].concat());
        assert!(!error.contains("stopped") && lines(&setup.log()) > before, "{error}");
        assert_eq!(setup.server.records(), expected, "seed {seed}");
    }
}

#[test]
fn requests_are_repeated_after_lost_answers() {
    let count = operations() / 10;
    let text = batch(3, count);
    let expected = uninterrupted(&text, &[]);
    let setup = BatchSetup::new(&text);
    let mut random = StdRng::seed_from_u64(4);
    let mut args: &[&str] = &[];
    for round in 0.. {
        assert!(round < count, "no progress");
        setup.server.lose_answer_after(random.random_range(0..u32::try_from(count / 10).unwrap()));
        let error = setup.run(args);
        args = &["--resume"];
        if !error.contains("stopped") {
            break;
        }
        assert!(error.contains("was lost") && error.contains("continue with --resume"), "{error}");
    }
    assert_eq!(setup.server.records(), expected);
    // No operation is left, and none is repeated.
    setup.server.lose_answer_after(0);
    let output = setup.command(args).output().unwrap();
    let counts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts["done"], 1, "the set-up of the session");
    assert_eq!(setup.server.records(), expected);
}

#[test]
fn postponed_operations_are_not_assumed_done() {
    let create = "CREATE 10.1045/a\n1 URL 86400 1110 UTF8 x\n\n";
    // The handle exists with other values, so the retried operation is refused.
    let setup = BatchSetup::new(&format!("{create}{create}"));
    assert!(setup.run(&[]).contains("line 4"));
    std::fs::remove_file(setup.log()).unwrap();
    setup.server.refuse_next(2);
    for more in [&[][..], &["--resume"]] {
        let error = setup.run(more);
        assert!(error.contains("stopped: line 1") && error.contains("continue with --resume"), "{error}");
    }
    let error = setup.run(&["--resume"]);
    assert!(error.contains("line 1: create 10.1045/a") && error.contains("line 4"), "{error}");
    // An operation that may have been done is not postponed while the server is busy.
    let setup = BatchSetup::new(create);
    setup.server.lose_answer_after(0);
    assert!(setup.run(&[]).contains("was lost"));
    setup.server.refuse_next(1);
    assert!(setup.run(&["--resume"]).contains("stopped: line 1"));
    assert_eq!(fail(setup.command(&["--resume"])).0, 0);
    // No server listens at the address.
    let setup = BatchSetup::new(create);
    let unused = std::net::TcpListener::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
    let mut command = hdl(["batch", "--server", &unused.to_string()]);
    command.arg(setup.batch()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(fail(command).0, 1);
    let log = std::fs::read_to_string(setup.log()).unwrap();
    assert!(log.lines().last().unwrap().contains("postponed"), "{log}");
}

/// Line number and result in the last entry of a log.
fn last_entry(log: &Path) -> (u64, Option<String>) {
    let text = std::fs::read_to_string(log).unwrap();
    let entry: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (entry["line"].as_u64().unwrap(), entry["result"].as_str().map(str::to_owned))
}

#[test]
fn every_operation_resumes_where_it_was_interrupted() {
    let create = "CREATE 10.1045/a\n1 URL 86400 1110 UTF8 x\n\n";
    let operations = [
        "CREATE 10.1045/b\n1 URL 86400 1110 UTF8 x\n\n",
        "ADD 10.1045/a\n2 URL 86400 1110 UTF8 x\n\n",
        "MODIFY 10.1045/a\n1 URL 86400 1110 UTF8 y\n\n",
        "REMOVE 1:10.1045/a\n",
        "DELETE 10.1045/a\n",
        "HOME 127.0.0.1:PORT:TCP\n0.NA/10.1\n0.NA/10.2\n\n",
        "UNHOME 127.0.0.1:PORT:TCP\n0.NA/10.1\n0.NA/10.2\n\n",
    ];
    for operation in operations {
        let text = format!("{create}{operation}");
        let setup = BatchSetup::new(&text);
        assert_eq!(fail(setup.command(&[])).0, 0, "{operation}");
        let expected = setup.server.records();
        for is_lost in [false, true] {
            let setup = BatchSetup::new(&text);
            let stopped = |more: &[&str]| {
                let output = setup.command(more).output().unwrap();
                let counts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                let (left, before) = (counts["left"].as_u64(), counts["doneBefore"].as_u64());
                assert!(counts["stopped"].is_string() && left == Some(1), "{operation}: {counts}");
                assert_eq!(before, Some(u64::from(!more.is_empty())), "{operation}: {counts}");
            };
            if is_lost {
                // The second operation is carried out and its answer lost.
                setup.server.lose_answer_after(1);
                stopped(&[]);
                assert_eq!(last_entry(&setup.log()), (4, None), "{operation}");
                // It may have been done, so a busy server does not make it postponed.
                setup.server.refuse_next(1);
                stopped(&["--resume"]);
                assert_eq!(last_entry(&setup.log()), (4, None), "{operation}");
            } else {
                setup.server.refuse_after(1, 1);
                stopped(&[]);
                assert_eq!(last_entry(&setup.log()), (4, Some("postponed".to_owned())), "{operation}");
            }
            assert_eq!(fail(setup.command(&["--resume"])).0, 0, "{operation}, {is_lost}");
            assert_eq!(last_entry(&setup.log()), (4, Some("done".to_owned())), "{operation}");
            assert_eq!(setup.server.records(), expected, "{operation}, {is_lost}");
        }
    }
    // One prefix was answered, so the block has no result.
    let setup = BatchSetup::new(operations[5]);
    setup.server.refuse_after(1, 1);
    assert!(setup.run(&[]).contains("stopped: line 1"));
    assert_eq!(last_entry(&setup.log()), (1, None));
    // All prefixes are tried, and the refused ones are named.
    let setup = BatchSetup::new("HOME 127.0.0.1:PORT:TCP\n0.NA/11.1\n0.NA/10.2\n0.NA/11.3\n");
    let error = setup.run(&[]);
    let named = ["0.NA/11.1: ", "0.NA/11.3: "].iter().all(|prefix| error.contains(prefix));
    assert!(named && !error.contains("10.2"), "{error}");
    assert_eq!(last_entry(&setup.log()), (1, Some("refused".to_owned())));
}

#[test]
fn exit_code_log_and_report_show_the_results() {
    let create = "CREATE 10.1045/a\n1 URL 86400 1110 UTF8 x\n\n";
    let setup = BatchSetup::new(&format!("{create}{create}DELETE 10.1045/b\n"));
    let compat = setup.directory.path().join("compat.log");
    let error = setup.run(&["--compat-log", compat.to_str().unwrap()]);
    for text in ["line 4: create 10.1045/a", "line 7: delete 10.1045/b"] {
        assert!(error.contains(text), "{text}: {error}");
    }
    let compat = std::fs::read_to_string(compat).unwrap();
    let expected = [
        "==>SUCCESS[1]: create:10.1045/a",
        "==>FAILURE[4]: create:10.1045/a: Error(101)",
        "Successes/Total Entries: 1/3",
    ];
    assert!(expected.iter().all(|line| compat.contains(line)), "{compat}");
    let log = std::fs::read_to_string(setup.log()).unwrap();
    let results: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let result = |line: u64| {
        let entry =
            results.iter().find(|entry| entry["line"] == line && entry["result"].is_string()).unwrap();
        (entry["result"].as_str().unwrap().to_owned(), entry["code"].as_i64())
    };
    assert_eq!(result(1), ("done".to_owned(), Some(1)));
    assert_eq!(result(4), ("refused".to_owned(), Some(101)));
    assert_eq!(result(7), ("refused".to_owned(), Some(100)));

    // A missing file only fails its own operation.
    let setup = BatchSetup::new(&format!("{create}CREATE 10.1045/c\n1 URL 60 1110 FILE nowhere\n\n"));
    let (code, error) = fail(setup.command(&["--keep-going", "--parallel", "1"]));
    assert!(code == 2 && error.contains("line 4") && error.contains("nowhere"), "{code} {error}");
    assert_eq!(last_entry(&setup.log()), (4, Some("failed".to_owned())));
    assert_eq!(setup.server.records().len(), 1);

    // An operation that was begun and is refused now was not done.
    let setup = BatchSetup::new(&format!("{create}MODIFY 10.1045/a\n7 URL 86400 1110 UTF8 x\n"));
    setup.run(&[]);
    let log = std::fs::read_to_string(setup.log()).unwrap();
    let (begun, last) = log.trim_end().rsplit_once('\n').unwrap();
    assert!(last.contains("refused"), "{last}");
    std::fs::write(setup.log(), format!("{begun}\n")).unwrap();
    let error = setup.run(&["--resume"]);
    assert!(error.contains("line 4: modify 10.1045/a"), "{error}");

    // A wrong option starts no log, so that the same batch can be started afterwards.
    let setup = BatchSetup::new(create);
    let error = setup.run(&["--auth", "300:10.1045/ADMIN", "--key", "nowhere.bin"]);
    assert!(error.contains("nowhere.bin") && !setup.log().exists(), "{error}");
    assert_eq!(fail(setup.command(&[])).0, 0);

    let setup = BatchSetup::new(&format!("{create}{create}DELETE 10.1045/a\n"));
    let error = setup.run(&["--stop-on-error"]);
    assert!(error.contains("stopped"), "{error}");
    assert_eq!(setup.server.records().len(), 1, "the deletion is not reached");
    let setup = BatchSetup::new(create);
    assert_eq!(fail(setup.command(&[])).0, 0);
    let setup = BatchSetup::new(&format!("{create}nonsense\n"));
    assert_eq!((fail(setup.command(&["--keep-going"])).0, setup.server.records().len()), (2, 1));
}

/// The server sets up one session for all connections: it would refuse to sign for one on each.
#[test]
fn all_connections_share_one_session() {
    let mut service = InitialisedService::make();
    service.start_admin();
    let record = |at| {
        format!(
            "{{\"handle\":\"10.1045/{at}\",\"values\":[{{\"index\":1,\"type\":\"URL\",\"data\":\"x\"}},\
             {{\"index\":2,\"type\":\"NOTE\",\"data\":\"encrypted\",\"permissions\":\"1100\"}}]}}\n"
        )
    };
    let key = ["--server-key", "site/server-public.bin", "--json"];
    for (from, parallel) in [(0, &[][..]), (1000, &["--parallel", "128"])] {
        let records: String = (from..from + 600).map(record).collect();
        std::fs::write(service.path("records.jsonl"), records).unwrap();
        let batch: Vec<_> = ["batch", "records.jsonl"].iter().chain(&key).chain(parallel).copied().collect();
        let counts: serde_json::Value = serde_json::from_str(&succeed(service.hdl_as_admin(batch))).unwrap();
        assert_eq!((&counts["done"], &counts["failed"]), (&600.into(), &0.into()), "{counts}");
        std::fs::remove_file(service.path("records.jsonl.log")).unwrap();
    }
    // Each identity that a batch names has a session of its own.
    let again = "AUTHENTICATE PUBKEY:300:10.1045/ADMIN\nsite/admin-private.bin\nDELETE 10.1045/1\n\
                 AUTHENTICATE PUBKEY:300:10.1045/ADMIN\nsite/admin-private.bin\nDELETE 10.1045/2\n";
    std::fs::write(service.path("again.txt"), again).unwrap();
    let batch: Vec<_> = ["batch", "again.txt"].iter().chain(&key).copied().collect();
    succeed(service.hdl_as_admin(batch));
}
