//! Adopting the directory of a reference server with `hdl init --adopt`, and exporting its records
//! back.

use handle_auth::keyfile;
use handle_tests::daemon::free_address;
use handle_tests::process::{fail, hdl, program, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::{Value as Json, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory as of a reference server, with its records in an export, beside a service without
/// one.
fn reference_directory() -> InitialisedService {
    let service = InitialisedService::make();
    succeed(service.hdl(["export", "site/store.redb", "export.json", "--format", "reference"]));
    let old = service.path("svr");
    fs::rename(service.path("site"), &old).expect("the directory of the service");
    for (ours, theirs) in [
        ("server-private.bin", "privkey.bin"),
        ("server-public.bin", "pubkey.bin"),
        ("admin-private.bin", "admpriv.bin"),
        ("admin-public.bin", "admpub.bin"),
    ] {
        fs::rename(old.join(ours), old.join(theirs)).expect("the directory of the service");
    }
    for name in ["handled.toml", "handle-admin.toml", "service.toml", "sitebndl.zip"] {
        let _ = fs::remove_file(old.join(name));
    }
    // As deployed: one interface over TCP for queries and administration, and one over HTTP.
    let port = service.queries.port();
    let mut site = site_of(&service, "svr");
    site["servers"][0]["interfaces"] = json!([
        { "query": true, "admin": true, "protocol": "TCP", "port": port },
        { "query": true, "admin": false, "protocol": "UDP", "port": port },
        { "query": true, "admin": true, "protocol": "HTTP", "port": 8000 },
    ]);
    fs::write(old.join("siteinfo.json"), site.to_string()).expect("the directory of the service");
    let interface = format!(
        "{{ \"bind_address\" = \"127.0.0.1\" \"bind_port\" = \"{port}\" \"log_accesses\" = \"no\" }}"
    );
    let config = format!(
        "{{ \"server_type\" = \"server\" \"interfaces\" = ( \"hdl_udp\" \"hdl_tcp\" \"hdl_http\" )
          \"hdl_udp_config\" = {interface} \"hdl_tcp_config\" = {interface} \"hdl_http_config\" = {interface}
          \"server_config\" = {{
            \"server_admins\" = ( \"300:10.1045/ADMIN\" ) \"server_admin_full_access\" = \"yes\"
            \"auto_homed_prefixes\" = ( \"0.NA/10.1045\" ) \"this_server_id\" = \"1\" \"case_sensitive\" = \"no\"
            \"max_session_time\" = \"3600000\" \"enable_monitor_daemon\" = \"yes\" \"odd\" = \"x\" }} }}"
    );
    fs::write(old.join("config.dct"), config).expect("the directory of the service");
    fs::write(old.join("contactdata.dct"), "{ \"org_name\" = \"An organisation\" }")
        .expect("the directory of the service");
    service
}

fn site_of(service: &InitialisedService, directory: &str) -> Json {
    serde_json::from_slice(
        &fs::read(service.path(directory).join("siteinfo.json")).expect("the directory of the service"),
    )
    .expect("the directory of the service")
}

fn adopt(service: &InitialisedService, port: u16) -> Json {
    let port = port.to_string();
    let report = succeed(service.hdl([
        "init",
        "site",
        "--adopt",
        "svr",
        "--admin-port",
        &port,
        "--no-metrics",
        "--json",
    ]));
    serde_json::from_str(&report).expect("the report of hdl init")
}

/// What `hdl init --adopt` says to do before the old server is stopped.
fn check_configurations(service: &InitialisedService) {
    for (package, name) in
        [("handle-admin", "handle-admin"), ("handle-server", "handled"), ("handle-gateway", "handle-gateway")]
    {
        let mut check = Command::new(program(package, name));
        check.arg("--check-config").arg("--config").arg(service.path(&format!("site/{name}.toml")));
        let said = run(check);
        let text =
            String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{name}: {text}");
        assert!(name == "handle-admin" || text.contains("warning: no set is published in"), "{name}: {text}");
        let config = fs::read_to_string(service.path(&format!("site/{name}.toml"))).expect("a file");
        assert!(name == "handled" || config.contains("\"run/admin.socket\""), "{name}: {config}");
    }
}

/// Both processes serve the imported records, and the previous administrator can change them.
fn check_service(mut service: InitialisedService) {
    succeed(service.hdl(["import", "site/store.redb", "export.json"]));
    check_configurations(&service);
    service.start_admin();
    // Without a set, handled would answer that handles do not exist, so handle-admin publishes
    // first.
    until("a set is published", || service.path("site/snapshot/MANIFEST").exists());
    service.start_handled();
    service.until_resolved("10.1045/ADMIN", 1, "");
    let create = ["handle", "create", "10.1045/moved", "1:URL=https://example.org/"];
    succeed(service.hdl_as_admin(create));
    service.until_resolved("10.1045/moved", 1, "https://example.org/");
    // The export has all records, under the names that the storage of the reference uses.
    service.admin = None;
    succeed(service.hdl(["export", "site/store.redb", "back.json", "--format", "reference"]));
    let back: Json = serde_json::from_slice(&fs::read(service.path("back.json")).expect("the export"))
        .expect("the export");
    assert_eq!(back["homedPrefixes"], json!(["0.NA/10.1045"]));
    let names: Vec<&String> = back["handleRecords"].as_object().expect("the export").keys().collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in ["0.NA/10.1045", "10.1045/ADMIN", "10.1045/MOVED"] {
        assert_eq!(back["handleRecords"][name]["handle"], name);
    }
}

#[test]
fn a_reference_directory_becomes_a_service_with_two_ports() {
    let service = reference_directory();
    let before = site_of(&service, "svr");
    let report = adopt(&service, service.administration.port());
    assert_eq!((&report["homed"], &report["site_changed"]), (&json!(["0.NA/10.1045"]), &json!(true)));
    let left_out: Vec<&str> = report["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|setting| setting["key"].as_str().unwrap())
        .collect();
    assert_eq!(left_out, ["enable_monitor_daemon", "odd"]);
    let site = site_of(&service, "site");
    assert_eq!(site["serialNumber"], before["serialNumber"].as_i64().unwrap() + 1);
    assert_eq!(site["servers"][0]["publicKey"], before["servers"][0]["publicKey"]);
    let (port, admin_port) = (service.queries.port(), service.administration.port());
    assert_eq!(
        site["servers"][0]["interfaces"],
        json!([
            { "query": true, "admin": false, "protocol": "TCP", "port": port },
            { "query": false, "admin": true, "protocol": "TCP", "port": admin_port },
            { "query": true, "admin": false, "protocol": "UDP", "port": port },
        ])
    );
    let bundle = fs::read(service.path("site/sitebndl.zip")).unwrap();
    assert!(bundle.windows(15).any(|part| part == b"An organisation"), "the contact is in the bundle");
    check_service(service);
}

#[test]
fn a_reference_directory_becomes_a_service_with_one_port() {
    let mut service = reference_directory();
    adopt(&service, service.queries.port());
    let site = site_of(&service, "site");
    let port = service.queries.port();
    assert_eq!(
        site["servers"][0]["interfaces"],
        json!([
            { "query": true, "admin": true, "protocol": "TCP", "port": port },
            { "query": true, "admin": false, "protocol": "UDP", "port": port },
        ])
    );
    service.administration = service.queries;
    check_service(service);
}

/// The export with a record of this name beside the first ones.
fn export_with(service: &InitialisedService, handle: &str, file: &str) {
    let export = fs::read(service.path("export.json")).expect("the export");
    let mut export: Json = serde_json::from_slice(&export).expect("the export");
    let url = json!({ "index": 1, "type": "URL", "ttl": 86400, "permissions": "1110",
        "data": { "format": "string", "value": format!("https://example.org/{handle}") } });
    export["handleRecords"][handle] = json!({ "handle": handle, "values": [url] });
    fs::write(service.path(file), export.to_string()).expect("a file");
}

/// The switch of `docs/migration.md`: `handled` answers from the set of a rehearsal while the last
/// export is imported, and from then on without interruption.
fn switch(service: &mut InitialisedService) {
    export_with(service, "10.1045/GONE", "rehearsal.json");
    succeed(service.hdl(["import", "site/store.redb", "rehearsal.json"]));
    let mut rehearsal = service.admin_command();
    rehearsal.args(["--listen", &free_address().to_string()]);
    service.start_admin_as(rehearsal);
    until("a set is published", || service.path("site/snapshot/MANIFEST").exists());
    service.admin = None;
    service.start_handled();
    service.until_resolved("10.1045/gone", 1, "https://example.org/10.1045/GONE");

    let (queries, is_over) = (service.queries.to_string(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let meter = scope.spawn(|| {
            let mut answers = 0;
            while !is_over.load(Ordering::Relaxed) {
                succeed(hdl(["resolve", "10.1045/ADMIN", "--server", &queries]));
                answers += 1;
            }
            answers
        });
        export_with(service, "10.1045/LATE", "last.json");
        succeed(service.hdl(["import", "new.redb", "last.json", "--create"]));
        fs::rename(service.path("new.redb"), service.path("site/store.redb")).expect("a store");
        service.start_admin();
        service.until_resolved("10.1045/late", 1, "https://example.org/10.1045/LATE");
        service.until_resolved("10.1045/gone", 100, "");
        is_over.store(true, Ordering::Relaxed);
        assert!(meter.join().expect("every query is answered") > 0);
    });
    // Clients with the old site record resolve, and with the new one administer as well.
    for site in ["svr/siteinfo.json", "site/siteinfo.json"] {
        succeed(service.hdl(["resolve", "10.1045/late", "--site", site]));
        succeed(service.hdl(["resolve", "10.1045/late", "--site", site, "--tcp"]));
    }
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/after", "1:URL=https://example.org/after"]));
    service.until_resolved("10.1045/after", 1, "https://example.org/after");
}

#[test]
fn a_service_is_switched_to_two_ports() {
    let mut service = reference_directory();
    adopt(&service, service.administration.port());
    switch(&mut service);
}

#[test]
fn a_service_is_switched_to_one_port_and_changed_to_two_later() {
    let mut service = reference_directory();
    let administration = std::mem::replace(&mut service.administration, service.queries);
    adopt(&service, service.queries.port());
    switch(&mut service);
    // As the page says.
    let (port, admin_port) = (service.queries.port(), administration.port());
    let edit = |name: &str, from: &str, to: &str| {
        let path = service.path("site").join(name);
        let text = fs::read_to_string(&path).expect("a configuration");
        assert!(text.contains(from), "{name}: {text}");
        fs::write(path, text.replace(from, to)).expect("a configuration");
    };
    edit("handle-admin.toml", &service.queries.to_string(), &administration.to_string());
    edit("handled.toml", "[tcp]\nenabled = false\n", "");
    let mut site = site_of(&service, "site");
    site["serialNumber"] = json!(site["serialNumber"].as_i64().expect("a number") + 1);
    site["servers"][0]["interfaces"] = json!([
        { "query": true, "admin": false, "protocol": "TCP", "port": port },
        { "query": false, "admin": true, "protocol": "TCP", "port": admin_port },
        { "query": true, "admin": false, "protocol": "UDP", "port": port },
    ]);
    fs::write(service.path("site/siteinfo.json"), site.to_string()).expect("the site record");
    (service.admin, service.handled, service.administration) = (None, None, administration);
    service.start_admin();
    service.start_handled();
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/two", "1:URL=https://example.org/two"]));
    service.until_resolved("10.1045/two", 1, "https://example.org/two");
    for site in ["svr/siteinfo.json", "site/siteinfo.json"] {
        succeed(service.hdl(["resolve", "10.1045/two", "--site", site, "--tcp"]));
    }
}

#[test]
fn keys_are_adopted_as_they_are_kept() {
    let service = reference_directory();
    let key_file = service.path("svr/privkey.bin");
    let plain = fs::read(&key_file).unwrap();
    let key = keyfile::decode(&plain, None).unwrap();
    // As the reference keeps it, but readable by everybody and encrypted.
    fs::write(&key_file, keyfile::encrypt(&key.view(), b"a passphrase")).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, error) = fail(service.hdl(["init", "site", "--adopt", "svr"]));
    assert!(code == 1 && error.contains("--server-passphrase-file"), "{error}");
    assert!(!service.path("site").exists(), "no file is written before everything is read");
    let encrypted = |args: &[&'static str]| {
        let mut command =
            service.hdl(["init", "site", "--adopt", "svr", "--server-passphrase-env", "PHRASE"]);
        command.args(args).env("PHRASE", "a passphrase");
        command
    };
    let output = handle_tests::process::run(encrypted(&[]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("chmod 600"), "{error}");
    let adopted = service.path("site/server-private.bin");
    assert_eq!(fs::read(&adopted).unwrap(), plain);
    assert_eq!(adopted.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Signatures by a key that is not in the site record would not verify.
    fs::rename(service.path("site"), service.path("first")).unwrap();
    fs::copy(service.path("svr/admpriv.bin"), &key_file).unwrap();
    let (code, error) = fail(service.hdl(["init", "site", "--adopt", "svr"]));
    assert!(code == 1 && error.contains("is not the key of server 1"), "{error}");
}

#[test]
fn storage_of_a_reference_server_is_refused_with_a_hint() {
    let service = reference_directory();
    fs::create_dir(service.path("svr/bdbje")).unwrap();
    fs::write(service.path("svr/bdbje/00000000.jdb"), "x").unwrap();
    for name in ["svr", "svr/bdbje", "svr/bdbje/00000000.jdb"] {
        let (code, error) = fail(service.hdl(["import", "new.redb", name, "--create"]));
        assert!(code == 1 && error.contains("StorageToJson svr export.json"), "{name}: {error}");
        assert!(!service.path("new.redb").exists());
    }
}
