//! `hdl batch` against a server that keeps records in memory: what is interrupted goes on, and ends in the same store.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::batches::{batch, operations};
use handle_tests::process::{RunningProcess, fail, hdl, until};
use handle_tests::records_server::{Records, RecordsServer};
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
        let place = Self { directory: tempfile::tempdir().unwrap(), server: RecordsServer::start() };
        let port = place.server.address.port().to_string();
        std::fs::write(place.batch(), text.replace("PORT", &port)).unwrap();
        place
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

/// What a batch makes of an empty store when nothing happens.
fn undisturbed(text: &str, more: &[&str]) -> Records {
    let place = BatchSetup::new(text);
    let error = place.run(more);
    assert!(!error.contains("stopped"), "{error}");
    place.server.records()
}

fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count())
}

#[test]
fn a_batch_that_is_killed_goes_on_and_ends_in_the_same_store() {
    let count = operations();
    for (seed, more) in [(1, &["--parallel", "1"]), (2, &["--parallel", "8"])] {
        let text = batch(seed, count);
        let expected = undisturbed(&text, more);
        assert!(expected.len() > count / 50, "{} records", expected.len());
        let place = BatchSetup::new(&text);
        // So that it cannot be through before it is killed.
        let slow = [more[0], more[1], "--rate", &(count * 2).to_string()];
        let mut running = RunningProcess::start(place.command(&slow));
        until("some of it is done", || lines(&place.log()) > count / 2);
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        let before = lines(&place.log());
        let error = place.run(&[more, &["--resume"][..]].concat());
        assert!(!error.contains("stopped") && lines(&place.log()) > before, "{error}");
        assert_eq!(place.server.records(), expected, "seed {seed}");
    }
}

#[test]
fn answers_that_are_lost_are_asked_for_again() {
    let count = operations() / 10;
    let text = batch(3, count);
    let expected = undisturbed(&text, &[]);
    let place = BatchSetup::new(&text);
    let mut random = StdRng::seed_from_u64(4);
    let mut args: &[&str] = &[];
    for round in 0.. {
        assert!(round < count, "it goes on");
        place.server.lose_answer_after(random.random_range(0..u32::try_from(count / 10).unwrap()));
        let error = place.run(args);
        args = &["--resume"];
        if !error.contains("stopped") {
            break;
        }
        assert!(error.contains("was lost") && error.contains("continue with --resume"), "{error}");
    }
    assert_eq!(place.server.records(), expected);
    // Nothing is left to be done, and nothing is done twice.
    place.server.lose_answer_after(0);
    let output = place.command(args).output().unwrap();
    let counts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts["done"], 1, "the session, which is set up in every run");
    assert_eq!(place.server.records(), expected);
}

#[test]
fn what_the_server_could_not_do_then_is_asked_plainly_later() {
    let create = "CREATE 10.1045/a\n1 URL 86400 1110 UTF8 x\n\n";
    // The handle is there, with other values: it is not this batch that made it, whatever was tried before.
    let place = BatchSetup::new(&format!("{create}{create}"));
    assert!(place.run(&[]).contains("line 4"));
    std::fs::remove_file(place.log()).unwrap();
    place.server.refuse_next(2);
    for more in [&[][..], &["--resume"]] {
        let error = place.run(more);
        assert!(error.contains("stopped: line 1") && error.contains("continue with --resume"), "{error}");
    }
    let error = place.run(&["--resume"]);
    assert!(error.contains("line 1: create 10.1045/a") && error.contains("line 4"), "{error}");
    // What may have been done before the server could do nothing is not taken for a refusal.
    let place = BatchSetup::new(create);
    place.server.lose_answer_after(0);
    assert!(place.run(&[]).contains("was lost"));
    place.server.refuse_next(1);
    assert!(place.run(&["--resume"]).contains("stopped: line 1"));
    assert_eq!(fail(place.command(&["--resume"])).0, 0);
    // Nobody is there.
    let place = BatchSetup::new(create);
    let nobody = std::net::TcpListener::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
    let mut command = hdl(["batch", "--server", &nobody.to_string()]);
    command.arg(place.batch()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(fail(command).0, 1);
    let log = std::fs::read_to_string(place.log()).unwrap();
    assert!(log.lines().last().unwrap().contains("postponed"), "{log}");
}

/// The last line of a log: the line of the operation in the batch, and what came of it.
fn last(log: &Path) -> (u64, Option<String>) {
    let text = std::fs::read_to_string(log).unwrap();
    let entry: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (entry["line"].as_u64().unwrap(), entry["result"].as_str().map(str::to_owned))
}

#[test]
fn every_operation_goes_on_as_far_as_it_came() {
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
        let place = BatchSetup::new(&text);
        assert_eq!(fail(place.command(&[])).0, 0, "{operation}");
        let expected = place.server.records();
        for is_lost in [false, true] {
            let place = BatchSetup::new(&text);
            let stopped = |more: &[&str]| {
                let output = place.command(more).output().unwrap();
                let counts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                let (left, before) = (counts["left"].as_u64(), counts["doneBefore"].as_u64());
                assert!(counts["stopped"].is_string() && left == Some(1), "{operation}: {counts}");
                assert_eq!(before, Some(u64::from(!more.is_empty())), "{operation}: {counts}");
            };
            if is_lost {
                // The first operation is answered, the second carried out and its answer lost.
                place.server.lose_answer_after(1);
                stopped(&[]);
                assert_eq!(last(&place.log()), (4, None), "{operation}");
                // What may have been done is not postponed by a server that can do nothing.
                place.server.refuse_next(1);
                stopped(&["--resume"]);
                assert_eq!(last(&place.log()), (4, None), "{operation}");
            } else {
                place.server.refuse_after(1, 1);
                stopped(&[]);
                assert_eq!(last(&place.log()), (4, Some("postponed".to_owned())), "{operation}");
            }
            assert_eq!(fail(place.command(&["--resume"])).0, 0, "{operation}, {is_lost}");
            assert_eq!(last(&place.log()), (4, Some("done".to_owned())), "{operation}");
            assert_eq!(place.server.records(), expected, "{operation}, {is_lost}");
        }
    }
    // One prefix was answered before; nobody says of the block that nothing came of it.
    let place = BatchSetup::new(operations[5]);
    place.server.refuse_after(1, 1);
    assert!(place.run(&[]).contains("stopped: line 1"));
    assert_eq!(last(&place.log()), (1, None));
    // All prefixes are asked for, and those that are refused are named.
    let place = BatchSetup::new("HOME 127.0.0.1:PORT:TCP\n0.NA/11.1\n0.NA/10.2\n0.NA/11.3\n");
    let error = place.run(&[]);
    let named = ["0.NA/11.1: ", "0.NA/11.3: "].iter().all(|prefix| error.contains(prefix));
    assert!(named && !error.contains("10.2"), "{error}");
    assert_eq!(last(&place.log()), (1, Some("refused".to_owned())));
}

#[test]
fn what_came_of_it_is_told_by_exit_code_log_and_report() {
    let create = "CREATE 10.1045/a\n1 URL 86400 1110 UTF8 x\n\n";
    let place = BatchSetup::new(&format!("{create}{create}DELETE 10.1045/b\n"));
    let compat = place.directory.path().join("compat.log");
    let error = place.run(&["--compat-log", compat.to_str().unwrap()]);
    for says in ["line 4: create 10.1045/a", "line 7: delete 10.1045/b"] {
        assert!(error.contains(says), "{says}: {error}");
    }
    let compat = std::fs::read_to_string(compat).unwrap();
    let expected = [
        "==>SUCCESS[1]: create:10.1045/a",
        "==>FAILURE[4]: create:10.1045/a: Error(101)",
        "Successes/Total Entries: 1/3",
    ];
    assert!(expected.iter().all(|line| compat.contains(line)), "{compat}");
    let log = std::fs::read_to_string(place.log()).unwrap();
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

    // A file that is gone meanwhile fails its operation, and no other.
    let place = BatchSetup::new(&format!("{create}CREATE 10.1045/c\n1 URL 60 1110 FILE nowhere\n\n"));
    let (code, error) = fail(place.command(&["--keep-going"]));
    assert!(code == 2 && error.contains("line 4") && error.contains("nowhere"), "{code} {error}");
    assert_eq!(last(&place.log()), (4, Some("failed".to_owned())));
    assert_eq!(place.server.records().len(), 1);

    // What was begun and is refused again was not done.
    let place = BatchSetup::new(&format!("{create}MODIFY 10.1045/a\n7 URL 86400 1110 UTF8 x\n"));
    place.run(&[]);
    let log = std::fs::read_to_string(place.log()).unwrap();
    let (begun, last) = log.trim_end().rsplit_once('\n').unwrap();
    assert!(last.contains("refused"), "{last}");
    std::fs::write(place.log(), format!("{begun}\n")).unwrap();
    let error = place.run(&["--resume"]);
    assert!(error.contains("line 4: modify 10.1045/a"), "{error}");

    // What is wrong with the command begins no log, so that the same batch can be begun afterwards.
    let place = BatchSetup::new(create);
    let error = place.run(&["--auth", "300:10.1045/ADMIN", "--key", "nowhere.bin"]);
    assert!(error.contains("nowhere.bin") && !place.log().exists(), "{error}");
    assert_eq!(fail(place.command(&[])).0, 0);

    let place = BatchSetup::new(&format!("{create}{create}DELETE 10.1045/a\n"));
    let error = place.run(&["--stop-on-error"]);
    assert!(error.contains("stopped"), "{error}");
    assert_eq!(place.server.records().len(), 1, "the deletion is not reached");
    let place = BatchSetup::new(create);
    assert_eq!(fail(place.command(&[])).0, 0);
    let place = BatchSetup::new(&format!("{create}nonsense\n"));
    assert_eq!((fail(place.command(&["--keep-going"])).0, place.server.records().len()), (2, 1));
}
