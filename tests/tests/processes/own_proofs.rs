//! What `hdl init` makes passes the proofs that the documents recommend to its operator.

use handle_tests::process::{hdl, program, run, succeed};
use handle_tests::service_directory::InitialisedService;
use serde_json::{Value as Json, json};
use std::process::Command;

/// Runs the load generator against a service, and returns its report.
fn loaded(service: &InitialisedService, arguments: &[&str]) -> Json {
    let mut command = Command::new(program("handle-loadgen", "handle-loadgen"));
    command.current_dir(service.path("."));
    command.args(["run", "--target", &service.queries.to_string(), "--transport", "tcp"]).args(arguments);
    command.args(["--verify-every", "1", "--pattern", "sequential", "--rate", "200", "--duration", "1s"]);
    let _ = std::fs::remove_file(service.path("report.json"));
    command.args(["--quiet", "--json", "report.json"]);
    let output = run(command);
    let report = std::fs::read(service.path("report.json")).expect("a report");
    let report: Json = serde_json::from_slice(&report).expect("JSON");
    // A busy machine sends behind schedule, which makes its figures invalid, and no answer wrong.
    let reasons = report["invalid"].as_array().expect("reasons");
    let is_late = |reason: &Json| {
        let reason = reason.as_str().expect("a text");
        reason.ends_with("behind schedule") || reason.starts_with("requests not sent")
    };
    assert!(reasons.iter().all(is_late), "{reasons:?}");
    assert!(output.status.success() || !reasons.is_empty(), "{output:?}");
    report
}

#[test]
fn a_new_service_passes_every_comparison_with_what_it_serves() {
    let service = InitialisedService::start();
    let create =
        ["handle", "create", "10.1045/one", "1:URL=https://a.example/", "100:HS_ADMIN=300:10.1045/ADMIN"];
    succeed(service.hdl_as_admin(create));
    service.until_resolved("10.1045/one", 1, "https://a.example/");
    succeed(service.hdl(["export", "site/snapshot", "backup.jsonl"]));
    let (queries, listing) = (service.queries.to_string(), format!("server:{}", service.administration));
    for wanted in ["site/snapshot", "backup.jsonl"] {
        let asked = service.hdl(["reconcile", wanted, "--server", &queries]);
        let listed = service.hdl_as_admin(["reconcile", wanted, &listing]);
        let found = service.hdl_as_admin(["reconcile", &listing, wanted]);
        for mut command in [asked, listed, found] {
            command.arg("--json");
            let counts: Json = serde_json::from_str(&succeed(command)).expect("counts alone");
            assert_eq!((&counts["compared"], &counts["not_homed"]), (&json!(2), &json!(1)), "{counts}");
        }
        let text = succeed(service.hdl(["reconcile", wanted, "--server", &queries]));
        assert!(text.contains("1 not homed and left out: 0.NA/10.1045\n"), "{text}");
    }
    let whole = std::fs::read_to_string(service.path("backup.jsonl")).expect("the export");
    let records: Vec<_> = whole.lines().filter(|line| !line.contains("\"homed\"")).collect();
    std::fs::write(service.path("records.jsonl"), records.join("\n")).expect("a file");
    let names = "0.NA/10.1045\n10.1045/ADMIN\n10.1045/one\n";
    std::fs::write(service.path("names.txt"), names).expect("a file");
    service.script("ssh", "#!/bin/sh\nshift 2\nexec sh -c \"$1\"\n");
    let program = hdl([""]).get_program().to_string_lossy().into_owned();
    let other = |name: &str| format!("ssh://other{}", service.path(name).display());
    // A file or list that names no homed prefixes, and places of another machine.
    for wanted in ["records.jsonl", "names.txt"]
        .map(str::to_owned)
        .into_iter()
        .chain(["site/snapshot", "backup.jsonl", "records.jsonl", "names.txt"].map(other))
    {
        let mut commands = vec![
            service.hdl_as_admin(["reconcile", &wanted, &listing]),
            service.hdl_as_admin(["reconcile", &listing, &wanted]),
        ];
        if !wanted.starts_with("ssh:") {
            commands.push(service.hdl(["reconcile", &wanted, "--server", &queries]));
        }
        for mut command in commands {
            command.args(["--json", "--ssh", "./ssh", "--remote-hdl", &program]);
            let counts: Json = serde_json::from_str(&succeed(command)).expect("counts alone");
            let found = (&counts["compared"], &counts["not_homed"]);
            assert_eq!(found, (&json!(2), &json!(1)), "{wanted}: {counts}");
        }
    }

    let reference = [
        ["--snapshot", "site/snapshot", "--verify"].as_slice(),
        &["--records", "backup.jsonl", "--handles", "backup.jsonl"],
    ];
    for reference in reference {
        let report = loaded(&service, reference);
        let (setting, verification) = (&report["setting"], &report["verification"]);
        assert_eq!((&setting["handles"], &setting["handles_not_homed"]), (&json!(2), &json!(1)), "{report}");
        assert_eq!(verification["mismatched"], 0, "{verification}");
        assert!(verification["verified"].as_u64().is_some_and(|verified| verified > 100), "{verification}");
    }
}

#[test]
fn the_store_of_a_new_service_has_nothing_to_report() {
    let service = InitialisedService::make();
    let output = run(service.hdl(["store", "check", "site/store.redb"]));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let checked = || -> Json {
        let text = succeed(service.hdl(["store", "check", "site/store.redb", "--json"]));
        serde_json::from_str(&text).expect("JSON")
    };
    let counts = |checked: &Json| ["damage", "unusual", "not_homed"].map(|name| checked[name].as_u64());
    assert_eq!(counts(&checked()), [Some(0), Some(0), Some(1)]);
    // A record that nobody serves is still reported.
    let elsewhere = r#"{"handle":"10.9/a","values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
    std::fs::write(service.path("elsewhere.jsonl"), elsewhere).expect("a file");
    succeed(service.hdl(["import", "site/store.redb", "elsewhere.jsonl"]));
    assert_eq!(counts(&checked()), [Some(0), Some(1), Some(2)]);
    let output = run(service.hdl(["store", "check", "site/store.redb"]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("10.9/A: the prefix is not homed"), "{errors}");
}
