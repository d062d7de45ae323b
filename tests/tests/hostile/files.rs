//! Files that `hdl` reads and writes: private batch logs, imports with errors, keys in all forms of
//! other tools, and errors that are found before the first operation.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::process::{fail, hdl, run, succeed};
use handle_tests::records_server::RecordsServer;
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

fn hdl_in(directory: &TempDir, args: &[&str]) -> Command {
    let mut command = hdl(args);
    command.current_dir(directory.path());
    command
}

fn write(directory: &TempDir, name: &str, text: &str) {
    std::fs::write(directory.path().join(name), text).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn logs_of_batches_are_private_and_their_digests_keyed() {
    let (directory, server) = (tempfile::tempdir().unwrap(), RecordsServer::start());
    let batch = "CREATE 10.1/a\n301 HS_SECKEY 86400 1100 UTF8 1234\n\n";
    write(&directory, "batch", batch);
    let server = server.address.to_string();
    let batch_args =
        ["batch", "batch", "--server", &server, "--compat-log", "compat", "--allow-cleartext-secrets"];
    succeed(hdl_in(&directory, &batch_args));
    for name in ["batch.log", "compat"] {
        assert_eq!(mode(&directory.path().join(name)), 0o600, "{name}");
    }
    let header = |name: &str| -> Json {
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        serde_json::from_str(text.lines().next().unwrap()).unwrap()
    };
    // A digest without a key would confirm guesses of the batch file.
    let first = header("batch.log");
    std::fs::remove_file(directory.path().join("batch.log")).unwrap();
    run(hdl_in(&directory, &batch_args));
    let second = header("batch.log");
    assert_ne!((&first["key"], &first["batch"]), (&second["key"], &second["batch"]));
    let log = std::fs::read_to_string(directory.path().join("batch.log")).unwrap();
    use sha2::Digest as _;
    let plain = data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(batch));
    assert!(!log.contains(&plain), "{log}");
    // The batch is still recognised by the digest.
    let resume = [&batch_args[..], &["--resume"]].concat();
    run(hdl_in(&directory, &resume));
    write(&directory, "batch", &batch.replace("1234", "4321"));
    let (code, error) = fail(hdl_in(&directory, &resume));
    assert!(code == 1 && error.contains("belongs to another batch file"), "{code} {error}");
}

#[test]
fn files_named_in_a_batch_are_checked_before_it_runs() {
    let (directory, server) = (tempfile::tempdir().unwrap(), RecordsServer::start());
    let good = "CREATE 10.1/a\n1 URL 86400 1110 UTF8 x\n\n";
    let address = server.address.to_string();
    for (bad, line) in [
        ("CREATE 10.1/b\n1 URL 86400 1110 FILE nowhere\n\n", "line 4: cannot read nowhere"),
        ("CREATE 10.1/b\n300 HS_PUBKEY 86400 1110 FILE nowhere.bin\n\n", "line 4: cannot open nowhere.bin"),
        ("AUTHENTICATE PUBKEY:300:10.1/b\nnowhere.bin\n\n", "line 4: cannot open nowhere.bin"),
    ] {
        write(&directory, "batch", &format!("{good}{bad}"));
        let (code, error) =
            fail(hdl_in(&directory, &["batch", "batch", "--server", &address, "--allow-cleartext-secrets"]));
        assert!(code == 2 && error.contains(line), "{code} {error}");
        assert!(server.records().is_empty() && !directory.path().join("batch.log").exists(), "{bad}");
    }
}

#[test]
fn the_compatible_log_has_lines_and_counts_of_the_reference() {
    let (directory, server) = (tempfile::tempdir().unwrap(), RecordsServer::start());
    let port = server.address.port();
    write(&directory, "secret", "x");
    let value = "1 URL 86400 1110 UTF8 x\n\n";
    let batch = format!(
        "SESSIONSETUP\nUSESESSION:0\n\nAUTHENTICATE SECKEY:301:10.1/x\nsecret\n\nCREATE 10.1/w\n{value}\
         CREATE 10.1/w\n{value}MODIFY 10.1/none\n{value}ADD 10.1/w\n2 URL 86400 1110 UTF8 y\n\nREMOVE 2:10.1/w\n\
         DELETE 10.1/w\n\nHOME 127.0.0.1:{port}:TCP\n0.NA/10.1\n0.NA/11.2\n\n"
    );
    write(&directory, "batch", &batch);
    let address = server.address.to_string();
    let (code, error) = fail(hdl_in(
        &directory,
        &["batch", "batch", "--server", &address, "--compat-log", "compat", "--allow-cleartext-secrets"],
    ));
    assert_eq!(code, 1, "{error}");
    let log = std::fs::read_to_string(directory.path().join("compat")).unwrap();
    // The format of hdl-genericbatch of Handle.Net 9.3.1, with line numbers of the batch file.
    let entries: Vec<&str> = log.lines().filter(|line| line.starts_with("==>")).collect();
    assert_eq!(
        entries,
        [
            "==>SUCCESS[7]: create:10.1/w",
            "==>FAILURE[10]: create:10.1/w: Error(101): HANDLE ALREADY EXISTS",
            "==>FAILURE[13]: modify values:10.1/none: Error(100): HANDLE NOT FOUND",
            "==>SUCCESS[16]: add values:10.1/w",
            "==>SUCCESS[19]: remove values:10.1/w",
            "==>SUCCESS[20]: delete:10.1/w",
            "==>SUCCESS[22]: home/unhome:0.NA/10.1",
            "==>FAILURE[22]: home/unhome:0.NA/11.2: Error(400): INVALID ADMIN",
        ],
        "{log}"
    );
    assert!(log.starts_with("Start Time: ") && log.contains("\nFinish Time: "), "{log}");
    assert!(log.contains("\nSuccesses/Total Entries: 5/8\n"), "{log}");
    assert!(!log.lines().any(|line| line.ends_with(' ')), "{log}");
}

#[test]
fn an_import_that_reads_nothing_fails() {
    let directory = tempfile::tempdir().unwrap();
    let import = |more: &[&str]| hdl_in(&directory, &[&["import", "store.redb", "--create"], more].concat());
    write(&directory, "prefixes", "\u{feff}# homed here\n0.NA/10.1045\r\n20.500.12345\n\n");
    assert_eq!(succeed(import(&["prefixes"])), "no records read, 2 prefixes homed\n");
    assert_eq!(succeed(import(&["--homed", "0.NA/10.1046"])), "no records read, 1 prefix homed\n");
    let stats = succeed(hdl_in(&directory, &["store", "stats", "store.redb", "--json"]));
    let stats: Json = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["homed_prefixes"], 3, "{stats}");
    write(&directory, "handles", "10.1045/a\n10.1045/b\n");
    write(&directory, "table.csv", "prefix,count\n10.1045,7\n");
    write(&directory, "other.sql", "CREATE TABLE other (a int);\nINSERT INTO other VALUES (1);\n");
    write(&directory, "empty", "\n");
    for (args, expected) in [
        (&["handles"][..], "handles:1: \"10.1045/a\" is a handle, not a prefix"),
        (&["table.csv"], "unknown format"),
        (&["other.sql"], "no rows of the tables `handles` and `nas`"),
        (&["prefixes", "--from", "sql"], "no rows of the tables `handles` and `nas`"),
        (&["empty"], "nothing to import"),
    ] {
        let output = run(import(args));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let (code, error) = fail(import(&["--homed", "10.1045/a"]));
    assert!(code == 2 && error.contains("is a handle, not a prefix"), "{error}");
}

#[test]
fn records_without_time_stamps_get_the_time_of_their_import() {
    let directory = tempfile::tempdir().unwrap();
    let value = |index: i32, more: &str| format!(r#"{{"index":{index},"type":"URL","data":"x"{more}}}"#);
    let values = [
        value(1, ""),
        value(2, r#","timestamp":"2001-02-03T04:05:06Z""#),
        value(3, r#","timestamp":"1970-01-01T00:00:00Z""#),
    ];
    let record = |name: &str| format!(r#"{{"handle":"10.1/{name}","values":[{}]}}"#, values.join(","));
    write(&directory, "lines.jsonl", &record("LINE"));
    write(&directory, "array.json", &format!("[{}]", record("ARRAY")));
    write(
        &directory,
        "export.json",
        &format!(
            r#"{{"homedPrefixes":["0.NA/10.1"],"handleRecords":{{"10.1/EXPORT":{}}}}}"#,
            record("EXPORT")
        ),
    );
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    for file in ["lines.jsonl", "array.json", "export.json"] {
        succeed(hdl_in(&directory, &["import", "store.redb", file, "--create"]));
    }
    let after = now();
    let exported = succeed(hdl_in(&directory, &["export", "store.redb", "-"]));
    let mut count = 0;
    for line in exported.lines().filter(|line| line.contains("values")) {
        let record: Json = serde_json::from_str(line).unwrap();
        let stamp = |at: usize| record["values"][at]["timestamp"].as_str().unwrap().to_owned();
        assert_eq!((&*stamp(1), &*stamp(2)), ("2001-02-03T04:05:06Z", "1970-01-01T00:00:00Z"), "{line}");
        let dated = [before, after].map(|unix_s| stamp_of(&directory, unix_s));
        assert!((&dated[0]..=&dated[1]).contains(&&stamp(0)), "{line}: {dated:?}");
        count += 1;
    }
    assert_eq!(count, 3);
    // An export is restored unchanged.
    write(&directory, "backup.jsonl", &exported);
    succeed(hdl_in(&directory, &["import", "restored.redb", "backup.jsonl", "--create"]));
    assert_eq!(succeed(hdl_in(&directory, &["export", "restored.redb", "-"])), exported);
}

/// A Unix time in the format of records.
fn stamp_of(directory: &TempDir, unix_s: u64) -> String {
    let output = Command::new("date")
        .args(["-u", "-d", &format!("@{unix_s}"), "+%Y-%m-%dT%H:%M:%SZ"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Keys written by `hdl-keygen` and `hdl-convert-key` of Handle.Net 9.3.1; encrypted under
/// "secret".
const FOREIGN: [(&str, &str); 3] = [
    ("rsa1024.pem", include_str!("../../../engine/auth/testdata/handle-net-rsa1024.pem")),
    ("rsa1024-encrypted.pem", include_str!("../../../engine/auth/testdata/handle-net-rsa1024-encrypted.pem")),
    ("rsa1024-public.pem", include_str!("../../../engine/auth/testdata/handle-net-rsa1024-public.pem")),
];

#[test]
fn keys_are_accepted_in_every_form_and_short_ones_with_a_warning() {
    let mut service = InitialisedService::make();
    service.start_admin();
    for (name, text) in FOREIGN {
        std::fs::write(service.path(name), text).unwrap();
        std::fs::set_permissions(service.path(name), Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::write(service.path("passphrase"), "secret\n").unwrap();
    std::fs::set_permissions(service.path("passphrase"), Permissions::from_mode(0o600)).unwrap();
    let admin = "site/admin-private.bin";
    for form in ["pem", "jwk", "native"] {
        succeed(service.hdl(["key", "convert", admin, &format!("admin.{form}"), "--to", form, "--plain"]));
        let name = format!("admin.{form}");
        succeed(service.hdl_as(["handle", "list", "10.1045"], "300:10.1045/ADMIN", &name));
    }
    // An administrator with a key of 1024 bits, in both forms that the tools write.
    let values = ["1:URL=x", "300:HS_PUBKEY=@rsa1024-public.pem", "100:HS_ADMIN=300:10.1045/OLD"];
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/OLD"].into_iter().chain(values)));
    for (key, more) in
        [("rsa1024.pem", &[][..]), ("rsa1024-encrypted.pem", &["--passphrase-file", "passphrase"])]
    {
        let update = ["handle", "update", "10.1045/OLD", "1:URL=y"];
        let args = update.into_iter().chain(more.iter().copied());
        let output = run(service.hdl_as(args, "300:10.1045/OLD", key));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{key}: {error}");
        assert!(error.contains("warning") && error.contains("1024 bits"), "{key}: {error}");
    }
    let encrypted = ["handle", "list", "10.1045"];
    let (code, error) = fail(service.hdl_as(encrypted, "300:10.1045/OLD", "rsa1024-encrypted.pem"));
    assert!(code == 1 && error.contains("encrypted: add --passphrase-file"), "{error}");
    let (code, error) = fail(service.hdl_as(encrypted, "300:10.1045/OLD", "rsa1024-public.pem"));
    assert!(code == 1 && error.contains("is a public key: name the private key file"), "{error}");
    // The fingerprint of a private key is that of its public key, also for DSA.
    let keys = &handle_tests::vectors::fixture("servers.json")["keys"];
    for (id, form) in [("admin_dsa", "DSA"), ("admin_dsa2048", "DSA"), ("admin_rsa", "RSA")] {
        let file = |name: &str, member: &str| {
            std::fs::write(service.path(name), keys[id][member].as_str().unwrap()).unwrap();
            std::fs::set_permissions(service.path(name), Permissions::from_mode(0o600)).unwrap();
            let shown = succeed(service.hdl(["key", "show", name, "--json"]));
            let shown: Json = serde_json::from_str(&shown).unwrap();
            assert_eq!(shown["algorithm"], form);
            shown["fingerprint"].as_str().unwrap().to_owned()
        };
        assert_eq!(file("private.pem", "pkcs8_pem"), file("public.pem", "spki_pem"), "{id}");
    }
}

#[test]
fn errors_in_the_command_line_have_exit_code_2_and_name_the_expected_form() {
    let directory = tempfile::tempdir().unwrap();
    let at = ["--server", "127.0.0.1:1"];
    for (args, expected) in [
        (
            &["handle", "create", "10.1/a", "URL=https://example.org/"][..],
            "the index is missing: expected INDEX:URL=...",
        ),
        (&["handle", "create", "10.1/a", "x:URL=y"], "invalid index \"x\": expected a number"),
        (&["handle", "create", "10.1/a", "1:URL"], "has no data: expected INDEX:TYPE=DATA"),
        (&["handle", "create", "10.1/a", "1:=x"], "the type is missing"),
        (&["handle", "create", "10.1/a", "1:HS_ADMIN=300"], "BITS:INDEX:HANDLE"),
        (&["handle", "create", "10.1/a", "1:URL=x", "--permissions", "777"], "expected four bits"),
        (&["resolve", "10.1/a", "10.1/b"], "exactly one handle"),
        (&["resolve", "10.1/a", "--auth", "300:10.1/a"], "needs a key or a secret"),
        (
            &["resolve", "10.1/a", "--auth", "300:10.1/a", "--secret-env", "NOT_SET_HERE"],
            "NOT_SET_HERE is not set",
        ),
    ] {
        let (code, error) = fail(hdl_in(&directory, &[args, &at].concat()));
        assert!(code == 2 && error.contains(expected), "{args:?}: {code} {error}");
        assert!(!error.contains("not set: "), "{error}");
        assert!(!error.lines().any(|line| line.ends_with(' ')), "{error:?}");
        // The data may be secret, and is not shown.
        assert!(!error.contains("example.org/\""), "{error}");
    }
}
