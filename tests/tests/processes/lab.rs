//! A small Handle System of nine servers: handles are resolved from the global registry down.

use handle_client::bootstrap::Root;
use handle_client::lookup::{Client, LookupOptions};
use handle_client::{BlockingDriver, Question};
use handle_tests::lab::LabProcess;
use handle_tests::process::{fail, hdl, succeed};
use handle_tests::records;
use serde_json::{Value as Json, json};
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::sync::{Arc, OnceLock};

/// The lab of tests that do not change it.
fn lab() -> &'static LabProcess {
    static LAB: OnceLock<LabProcess> = OnceLock::new();
    LAB.get_or_init(LabProcess::up)
}

#[test]
fn every_handle_resolves_from_the_global_registry() {
    let (lab, records) = (lab(), records::load());
    let mut driver = BlockingDriver::new(Arc::new(lab.client()));
    for record in &records {
        let resolved = driver.resolve(&Question::all(record.handle.as_bytes()), &LookupOptions::default());
        record.assert_is(resolved.outcome.unwrap().values());
    }
    // The same with the command line: several handles at a time, printed in order.
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
        "0.NA/20.500.LAB  (to find the service of the prefix)".to_owned(),
        "the global service: 1 site".to_owned(),
        format!("{registry} answers 303 prefix referral"),
        "the service of the referral: 1 site".to_owned(),
        format!("{derived} answers 1 success, 1 HS_SITE"),
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
    let alias = ["resolve", "20.500.LAB/alias", "--aliases", "1", "--trace"];
    let shown = succeed(lab.hdl(&alias));
    assert!(shown.contains("cached: "), "the target is in the same prefix: {shown}");
    let shown = succeed(lab.hdl(&[&alias[..], &["--no-cache"]].concat()));
    assert!(!shown.contains("cached: "), "{shown}");
    let tcp = succeed(lab.hdl(&["resolve", "20.500.LAB/hello", "--tcp", "--trace"]));
    assert!(tcp.contains("over TCP") && !tcp.contains("over UDP"), "{tcp}");
}

#[test]
fn of_the_sites_of_a_service_those_with_a_keyword_are_asked() {
    let directory = tempfile::tempdir().unwrap();
    let sites = ["europe", "asia near"].map(|keywords| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let site = json!({
            "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true,
            "attributes": [{ "name": "site_filter_keywords", "value": keywords }],
            "servers": [{
                "serverId": 1, "address": "127.0.0.1",
                "interfaces": [{
                    "query": true, "admin": false, "protocol": "UDP", "port": socket.local_addr().unwrap().port(),
                }],
            }],
        });
        (socket, json!({ "nas": ["0.NA/10.9"], "site": site }))
    });
    let file = directory.path().join("local_info.json");
    std::fs::write(&file, Json::from([&sites[0].1, &sites[1].1].map(Json::clone).to_vec()).to_string())
        .unwrap();
    // Whether a question has come to each of the sites, which give no answer.
    let asked = |options: &[&str]| {
        let file = ["--local-info", file.to_str().unwrap(), "--lookup-timeout", "8"];
        let output = hdl([&["resolve", "10.9/x"][..], &file, options].concat()).output().unwrap();
        assert!(!output.status.success());
        [0, 1].map(|at| {
            let count = std::iter::from_fn(|| sites[at].0.recv(&mut [0; 512]).ok()).count();
            count > 0
        })
    };
    assert_eq!(asked(&["--keyword", "near"]), [false, true]);
    assert_eq!(asked(&["--keyword", "europe"]), [true, false]);
    assert_eq!(asked(&[]), [true, true]);
}

#[test]
fn the_bootstrap_file_is_refreshed_if_all_its_records_are_signed() {
    let lab = lab();
    let new = lab.directory.path().join("bootstrap_new");
    let shown = succeed(lab.hdl(&["root", "--refresh", "--output", new.to_str().unwrap()]));
    assert!(shown.contains("2 records, all signed"), "{shown}");
    let args = ["resolve", "20.500.LAB/hello", "--url", "--certify", "--root", new.to_str().unwrap()];
    assert_eq!(succeed(lab.hdl(&args)), "https://lab.example/hello\n");
    let shown = succeed(lab.hdl(&["resolve", "0.SERV/LAB", "--signatures", "--type", "HS_SITE"]));
    assert!(shown.contains("value 3: signed"), "{shown}");
    // Under another key no record is trusted, and the file stays unchanged.
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
    for (args, code, expected) in [
        (&["10.1016/none-such"][..], 3, ""),
        (&["20.500.LAB/hello", "--type", "EMAIL"], 4, ""),
        (&["10.9999/x"], 5, "check its spelling"),
        (&["hdl:doi:10.1016/x"], 2, "two schemes"),
        (&["10.1016/x", "--root", "/does/not/exist"], 1, "cannot read"),
        (&["20.500.LAB/hello", "10.1016/none-such"], 3, "handle not found"),
        (&["hdl://127.0.0.1/20.500.LAB/hello", "--certify"], 2, "--certify cannot be used"),
        (&["hdl://127.0.0.1/20.500.LAB/hello", "--url"], 2, "--url cannot be used"),
        (&["20.500.LAB/hello", "hdl://127.0.0.1/20.500.LAB/hello"], 1, "resolve it with a separate command"),
        (&["20.500.LAB/hello", "20.500.LAB/hello", "--signatures"], 2, "exactly one handle"),
        (&["20.500.LAB/hello", "--url", "--signatures"], 1, "a value is missing"),
        (&["hdl://127.0.0.1/20.500.LAB/hello", "--server", "127.0.0.2"], 2, "remove one of them"),
        (
            &["hdl://127.0.0.2/20.500.LAB/hello", "--auth", "300:10.1016/ADMIN", "--secret-env", "HOME"],
            2,
            "add --server 127.0.0.2",
        ),
        (&["10.1016/x", "--server", "127.0.0.1:1"], 7, "connection refused"),
        (&["10.1016/x", "--server", "127.0.0.1:1", "--tcp"], 7, "cannot connect"),
        (&["--file", "/does/not/exist"], 1, "cannot open"),
        (&["--no-such-option"], 2, "unexpected argument"),
    ] {
        let mut command = lab.hdl(&["resolve"]);
        command.args(args);
        let (exit, error) = fail(command);
        assert_eq!(exit, code, "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let mut nowhere = lab.hdl(&["resolve", "10.1016/x"]);
    nowhere.env_remove("HDL_ROOT").env("HOME", lab.directory.path());
    let (exit, error) = fail(nowhere);
    assert!(exit == 1 && error.contains("global service is not known"), "{error}");
}

#[test]
fn errors_of_single_handles_are_shown_as_json_and_do_not_affect_others() {
    let lab = lab();
    let file = lab.directory.path().join("mixed");
    std::fs::write(&file, b"\xef\xbb\xbf20.500.LAB/hello\r\n\xff/x\n\nhdl:%\n20.500.LAB/hello").unwrap();
    let shown = |args: &[&str]| {
        let output = handle_tests::process::run(lab.hdl(args));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        (output.status.code(), lines.collect::<Vec<Json>>())
    };
    let (exit, lines) = shown(&["resolve", "--json", "--file", file.to_str().unwrap()]);
    let codes: Vec<Option<u64>> = lines.iter().map(|line| line["responseCode"].as_u64()).collect();
    assert_eq!((exit, codes), (Some(1), vec![Some(1), None, None, Some(1)]));
    assert!(lines[1]["error"].as_str().unwrap().contains("not UTF-8"), "{lines:?}");
    let (exit, lines) = shown(&["reference", "--json", "hdl:%", "hdl:10.1/x"]);
    assert_eq!((exit, lines.len()), (Some(1), 2));
    assert_eq!((&lines[0]["reference"], &lines[1]["handle"]), (&"hdl:%".into(), &"10.1/x".into()));
    for args in [
        &["site", "10.9999/x", "--json"][..],
        &["check", "10.9999/x", "--json"],
        &["root", "--json", "--root", "/does/not/exist"],
        &["reference", "--json", "--charset", "none-such", "10.1/x"],
        &["resolve", "--json", "10.9999/x", "--root", "/does/not/exist"],
    ] {
        let (exit, lines) = shown(args);
        assert!(exit == Some(1) && lines.len() == 1 && lines[0]["error"].is_string(), "{args:?}: {lines:?}");
    }
}

#[test]
fn the_directory_of_a_deployed_client_is_read() {
    let lab = lab();
    let home = lab.directory.path().join("home");
    let directory = home.join(".handle");
    std::fs::create_dir_all(&directory).unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(directory.join(name), bytes).unwrap();
    put("bootstrap_handles", &std::fs::read(&lab.root).unwrap());
    put("config.dct", br#"{ "no_udp_resolution" = "yes" "tcp_timeout" = "20000" "server_type" = "server" }"#);
    let resolve = |args: &[&str]| {
        let mut command = lab.hdl(&["resolve", "20.500.LAB/hello", "--trace"]);
        command.args(args).env_remove("HDL_ROOT").env("HOME", &home);
        command
    };
    let shown = succeed(resolve(&[]));
    assert!(shown.contains("over TCP") && !shown.contains("over UDP"), "{shown}");
    // With --root, the directory is not used.
    let shown = succeed(resolve(&["--root", lab.root.to_str().unwrap()]));
    assert!(shown.contains("over UDP"), "{shown}");
    // A site that answers all public queries, and prefixes for which it answers all queries.
    put("resolver_site", &std::fs::read(lab.siteinfo("derived")).unwrap());
    let shown = succeed(resolve(&["--client-dir", directory.to_str().unwrap()]));
    assert!(shown.contains("sites that are configured") && !shown.contains("0.NA/"), "{shown}");
    let shown = succeed(resolve(&["--all"]));
    assert!(shown.contains("0.NA/20.500.LAB"), "private values come from the service: {shown}");
    put("local_nas", b"0.NA/20.500.lab\n");
    let shown = succeed(resolve(&["--all"]));
    assert!(shown.contains("sites that are configured"), "{shown}");
    put("config.dct", br#"{ "preferred_global_service_handle" = "0.SERV/NONE" }"#);
    let (exit, error) = fail(resolve(&[]));
    assert!(exit == 1 && error.contains("names no site"), "{error}");
    // The file as people write it.
    put("config.dct", b"{\nno_udp_resolution = yes; tcp_timeout = 20000,\n}\n}");
    let shown = succeed(resolve(&[]));
    assert!(shown.contains("over TCP") && !shown.contains("over UDP"), "{shown}");
    put("config.dct", b"{\n\"tcp_timeout\" 5 }");
    let (exit, error) = fail(resolve(&[]));
    assert!(exit == 1 && error.contains("config.dct: line 2"), "{error}");
}

#[test]
fn check_shows_which_servers_disagree_and_which_are_not_responsible() {
    let lab = lab();
    let shown = succeed(lab.hdl(&["check", "10.1016/j.rcae.2013.04.001", "--certify", "--json"]));
    let json: Json = serde_json::from_str(&shown).unwrap();
    let servers = json["servers"].as_array().unwrap();
    // Four, two and one servers, over both protocols; three are responsible.
    assert_eq!((servers.len(), &json["agree"]), (14, &true.into()));
    for server in servers {
        let expected = if server["responsible"] == true { "4 values" } else { "301 server not responsible" };
        assert_eq!(server["says"], expected, "{server}");
    }
    let mut command = lab.hdl(&["check", "10.1016/lab-new", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Json = serde_json::from_slice(&output.stdout).unwrap();
    let bad = json["servers"].as_array().unwrap().iter().filter(|server| server["good"] == false);
    let bad: Vec<_> = bad.map(|server| server["address"].as_str().unwrap().to_owned()).collect();
    let mirror = lab.addresses("mirror")[0].to_string();
    assert_eq!(bad, [mirror.clone(), mirror], "the mirror is outdated");
    let shown = succeed(lab.hdl(&["site", "10.1016"]));
    assert!(shown.contains("site 3: secondary") && shown.contains("->"), "{shown}");
}

#[test]
fn the_shares_of_the_servers_of_a_site_are_complete() {
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
    assert!(exit == 1 && error.contains("no server with"), "{error}");
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

#[test]
fn a_long_running_client_refreshes_its_bootstrap_information() {
    let lab = lab();
    let mut root = Root::read(&std::fs::read(&lab.root).unwrap()).unwrap();
    root.updated_unix_ms = Some(0);
    let path = lab.directory.path().join("renewed");
    let mut client = Client::new(root);
    client.renewal.file = Some(path.clone());
    let client = Arc::new(client);
    let mut driver = BlockingDriver::new(Arc::clone(&client));
    driver.renew_if_due().expect("the bootstrap information is old").unwrap();
    let written = Root::read(&std::fs::read(&path).unwrap()).unwrap();
    assert!(written.updated_unix_ms > Some(0));
    assert_eq!(client.root.get().updated_unix_ms, written.updated_unix_ms);
    assert!(driver.renew_if_due().is_none(), "the bootstrap information is new");
    let mut question = Question::all(b"20.500.LAB/hello");
    question.wants.certified = true;
    let answer = driver.resolve(&question, &LookupOptions::default()).outcome.unwrap();
    assert!(answer.certified);
}
