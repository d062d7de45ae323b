//! Sources whose records are copied into the store: published, served by handled, and equal to the
//! source again after kills, whatever the source does meanwhile.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode as Code, Value, ValueBuf};
use handle_tests::daemon::ask;
use handle_tests::mirror_pair::RecordAdministrator;
use handle_tests::process::{run, succeed, until};
use handle_tests::record_backend::{BackendBehaviour, RecordBackend};
use handle_tests::service_directory::InitialisedService;
use handle_tests::several_admins::SeveralAdmins;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// Kills of a process, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 6;

fn url(target: &str) -> Vec<ValueBuf> {
    vec![ValueBuf::from(&Value::new(1, b"URL", target.as_bytes()))]
}

/// The section for `backend`, which is asked as often as possible.
fn section(backend: &RecordBackend, settings: &str) -> String {
    format!(
        "\n[[sources]]\nname = \"backend\"\nprefixes = [\"10.77\"]\nurl = \"{}\"\ntimeout_ms = 200\n\
         [sources.pull]\npoll_ms = 10\n{settings}\n",
        backend.url()
    )
}

/// A service whose handle-admin copies `backend`. Nothing is started yet.
fn make(backend: &RecordBackend, settings: &str) -> InitialisedService {
    let service = InitialisedService::make();
    let path = service.path("site/handle-admin.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    text += &section(backend, settings);
    std::fs::write(path, text).unwrap();
    service
}

fn command(service: &InitialisedService, command: &str) -> Json {
    ask(&service.path("site/run/handle-admin.sock"), command)
}

/// The progress with the source.
fn pull(service: &InitialisedService) -> Json {
    command(service, "status")["pulls"][0].clone()
}

/// Handles and first values below 10.77 in the published set.
fn published(service: &InitialisedService) -> BTreeSet<(String, String)> {
    let set = run(service.hdl(["export", "site/snapshot", "-"]));
    let text = String::from_utf8(set.stdout).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let rows = records.map(|record| (text(&record["handle"]), text(&record["values"][0]["data"]["value"])));
    rows.filter(|(handle, _)| handle.starts_with("10.77/")).collect()
}

#[test]
fn records_of_a_source_are_published_and_changed_only_there() {
    let backend = RecordBackend::start(&[]);
    for at in 0..20 {
        backend.put(&format!("10.77/item{at:02}"), &url("https://first.example/"));
    }
    backend.put("10.1045/foreign", &url("https://foreign.example/"));
    backend.set_page_lines(7);
    let mut service = make(&backend, "");
    service.start_admin();
    service.start_handled();
    service.until_resolved("10.77/item07", 1, "https://first.example/");
    // Changes are followed without a comparison.
    backend.put("10.77/item07", &url("https://second.example/"));
    backend.put("10.77/new", &url("https://new.example/"));
    backend.delete("10.77/item03");
    service.until_resolved("10.77/item07", 1, "https://second.example/");
    service.until_resolved("10.77/new", 1, "https://new.example/");
    service.until_resolved("10.77/item03", 100, "");
    let status = pull(&service);
    assert_eq!((&status["counts"]["compares"], &status["refused"]), (&1.into(), &Json::Null), "{status}");
    assert_eq!(status["counts"]["rejected"]["foreign"], 1, "{status}");
    assert!(status["last_rejected"].as_str().unwrap().contains("10.1045/foreign"), "{status}");
    // handled answers whatever the source does.
    backend.behave(BackendBehaviour::Hanging);
    service.until_resolved("10.77/item00", 1, "https://first.example/");
    backend.behave(BackendBehaviour::Honest);
    // Others do not change these handles, and are told where they are changed.
    let mut administrator = RecordAdministrator::new(&service, service.administration);
    for handle in ["10.77/item00", "10.77/other"] {
        let (code, text) = administrator.put(handle, "x").unwrap();
        assert!(
            code == Code::OPERATION_NOT_SUPPORTED && text.contains("\"backend\""),
            "{handle}: {code:?} {text}"
        );
    }
    let (code, text) = administrator.delete("10.77/item00").unwrap();
    assert!(code == Code::OPERATION_NOT_SUPPORTED && text.contains("\"backend\""), "{code:?} {text}");
    assert_eq!(administrator.put("10.1045/own", "x").unwrap().0, Code::SUCCESS);
    // hdl shows and compares.
    let socket = service.path("site/run/handle-admin.sock");
    let control = |words: &[&str]| {
        let mut command = service.hdl(["control"].iter().chain(words).copied());
        command.arg("--socket").arg(&socket);
        command
    };
    assert!(succeed(control(&["status"])).contains("source: backend"));
    succeed(control(&["pull", "backend"]));
    until("it is compared again", || pull(&service)["counts"]["compares"] == 2);
    for words in [["pull", "other"], ["accept-deletions", "backend"]] {
        let output = run(control(&words));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains("error: "), "{words:?}: {text}");
    }
}

#[test]
fn a_comparison_deletes_within_its_share_and_an_operator_accepts_more() {
    let backend = RecordBackend::start(&[]);
    for at in 0..20 {
        backend.put(&format!("10.77/item{at:02}"), &url("https://first.example/"));
    }
    let mut service = make(&backend, "");
    service.start_admin();
    until("everything is here", || published(&service).len() == 20);
    // Without changes that tell of it.
    let compare = |compares: u64| {
        backend.forget_changes();
        until("it is compared", || pull(&service)["counts"]["compares"].as_u64() >= Some(compares));
    };
    backend.delete("10.77/item00");
    backend.delete("10.77/item01");
    compare(2);
    until("2 of 20 are deleted", || published(&service).len() == 18);
    for behaviour in [
        BackendBehaviour::Truncating,
        BackendBehaviour::Failing,
        BackendBehaviour::Closing,
        BackendBehaviour::Lying,
        BackendBehaviour::Flooding,
        BackendBehaviour::Hanging,
    ] {
        backend.behave(behaviour);
        let errors = pull(&service)["counts"]["errors"]["source"].as_u64().unwrap_or_default();
        command(&service, "pull backend");
        until(&format!("it has failed: {behaviour:?}"), || {
            pull(&service)["counts"]["errors"]["source"].as_u64() > Some(errors)
        });
        assert_eq!(published(&service).len(), 18, "{behaviour:?}");
    }
    for at in 2..5 {
        backend.delete(&format!("10.77/item{at:02}"));
    }
    backend.forget_changes();
    backend.behave(BackendBehaviour::Honest);
    command(&service, "pull backend");
    until("3 of 18 are refused", || pull(&service)["refused"]["deletions"] == 3);
    assert_eq!(published(&service).len(), 18);
    backend.put("10.77/item19", &url("https://second.example/"));
    until("changes are followed", || {
        published(&service).contains(&("10.77/ITEM19".to_owned(), "https://second.example/".to_owned()))
    });
    assert_eq!(command(&service, "accept-deletions backend")["deletions"], 3);
    until("they are deleted", || published(&service).len() == 15);
    assert_eq!(pull(&service)["refused"], Json::Null);
}

/// The handles of the back end as they should be published.
fn expected(backend: &RecordBackend) -> BTreeSet<String> {
    backend.handles().into_iter().collect()
}

#[test]
fn a_copy_is_complete_after_kills_in_the_middle() {
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let kills = std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let backend = RecordBackend::start(&[]);
    // Several transactions, also of the changes before each kill.
    for at in 0..3000 {
        backend.put(&format!("10.77/item{at:04}"), &url("https://first.example/"));
    }
    backend.set_page_lines(300);
    let mut service = make(&backend, "");
    let handles = |service: &InitialisedService| -> BTreeSet<String> {
        published(service).into_iter().map(|(handle, _)| handle).collect()
    };
    let mut last_id = 0;
    for kill in 0..kills {
        service.start_admin();
        let begun = command(&service, "status")["store"]["content"]["last_transaction"].as_u64().unwrap();
        assert!(begun >= last_id, "acknowledged transactions are there after a kill");
        for _ in 0..2000 {
            let handle = format!("10.77/item{:04}", random.random_range(0..3500));
            match random.random_bool(0.02) {
                true => backend.delete(&handle),
                false => backend.put(&handle, &url(&format!("https://{}.example/", random.random::<u32>()))),
            }
        }
        match random.random_range(0..3) {
            0 => backend.forget_changes(),
            1 => drop(command(&service, "pull backend")),
            _ => {}
        }
        // After a few commits of many.
        let commits = random.random_range(1..5);
        until("some of it is here", || {
            let status = command(&service, "status");
            last_id = status["store"]["content"]["last_transaction"].as_u64().unwrap_or(last_id);
            last_id > begun + commits || pull(&service)["activity"] == "waiting"
        });
        let admin = service.admin.as_mut().unwrap();
        admin.signal("KILL");
        admin.wait();
        println!("kill {kill} after transaction {last_id}");
    }
    service.start_admin();
    until("the set is equal to the source", || handles(&service) == expected(&backend));
    until("all changes are here", || pull(&service)["cursor"].as_str() == Some(&backend.cursor()));
    let values: BTreeSet<_> = published(&service);
    let compares = pull(&service)["counts"]["compares"].as_u64().unwrap();
    command(&service, "pull backend");
    until("it is compared", || pull(&service)["counts"]["compares"].as_u64() > Some(compares));
    assert_eq!(published(&service), values, "a comparison finds no difference");
}

#[test]
fn of_several_processes_the_publisher_copies() {
    let backend = RecordBackend::start(&[]);
    for at in 0..50 {
        backend.put(&format!("10.77/item{at:03}"), &url("https://first.example/"));
    }
    let settings = format!("lease_ms = 500\ninterval_ms = 1{}", section(&backend, ""));
    let Some(mut several) = SeveralAdmins::make(&settings) else { return };
    several.start(0);
    several.start(1);
    let pulls = |several: &SeveralAdmins, at: usize| several.status(at)["pulls"][0].clone();
    let (mut first, records) = (several.publisher(), |several: &SeveralAdmins| {
        several.status(several.publisher())["store"]["content"]["records"].as_u64().unwrap_or_default()
    });
    until("all are here", || pulls(&several, first)["records"] == 50);
    assert_eq!(pulls(&several, 1 - first)["activity"], "elsewhere");
    let before = records(&several);
    for turn in 0..3 {
        backend.put(&format!("10.77/new{turn}"), &url("https://new.example/"));
        several.kill(first);
        until("the other one copies", || {
            pulls(&several, 1 - first)["cursor"].as_str() == Some(&backend.cursor())
        });
        several.start(first);
        first = several.publisher();
    }
    assert_eq!(records(&several), before + 3);
    let elsewhere = several.ask(1 - first, "pull backend");
    assert!(elsewhere["error"].as_str().is_some_and(|why| why.contains("another process")), "{elsewhere}");
}
