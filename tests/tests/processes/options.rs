//! What single options of the programs change, each compared with the same command without it.

use handle_admin::mirror::position::{DumpProgress, MirrorPosition};
use handle_proto::ResponseCode;
use handle_snapshot::set::read_manifest;
use handle_store::{Store, StoreConfig};
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator};
use handle_tests::process::{fail, hdl, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::fs;

/// Both forms of the command, while `handle-admin` runs and while it does not.
#[test]
fn a_mirror_that_lacks_records_is_promoted_with_force_only() {
    for is_running in [true, false] {
        let mut service = MirroredService::make("", "interval_ms = 50");
        service.start();
        until("the sets are equal", || service.is_equal());
        (service.primary.admin, service.mirror.admin) = (None, None);
        // The primary was lost in the middle of a dump.
        let store = Store::open(&StoreConfig::at(&service.mirror.path("site/store.redb"))).unwrap();
        let begun = store.change(|transaction| {
            let position = MirrorPosition::read(transaction, "main")?.unwrap();
            let dump = Some(DumpProgress::default());
            MirrorPosition { needs_dump: true, dump, ..position }.write(transaction, "main")
        });
        begun.unwrap();
        drop(store);
        let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
        if is_running {
            service.mirror.start_admin();
        }
        let promote = |more: &[&'static str]| {
            let mut command = match is_running {
                true => service.mirror.hdl(["mirror", "promote", "--socket", &socket]),
                false => service.mirror.promotion_command(),
            };
            command.args(more);
            command
        };
        let site = service.mirror.path("site/siteinfo.json");
        let is_primary_site = || {
            let json: Json = serde_json::from_slice(&fs::read(&site).unwrap()).unwrap();
            json["primarySite"] == true
        };
        let (_, error) = fail(promote(&[]));
        assert!(error.contains("primary main") && error.contains("promote with --force"), "{error}");
        assert!(!is_primary_site());
        let shown = succeed(promote(&["--force"]));
        assert!(shown.contains("this is the primary now") && is_primary_site(), "{shown}");
        if !is_running {
            service.mirror.start_admin();
        }
        until("it is promoted", || service.progress()["activity"] == "promoted");
        let mut administrator = RecordAdministrator::new(&service.primary, service.mirror.administration);
        let done = administrator.put("10.1045/after", "promoted");
        assert_eq!(done.map(|(code, _)| code), Some(ResponseCode::SUCCESS));
        until("it is published", || {
            service.mirror.published().iter().any(|line| line.contains("10.1045/AFTER"))
        });
    }
}

#[test]
fn a_set_is_copied_into_memory_with_copy_to_memory_only() {
    let mut service = InitialisedService::make();
    service.start_admin();
    service.admin = None;
    for copies in [false, true] {
        let mut command = service.handled_command();
        command.args(if copies { &["--copy-to-memory"][..] } else { &[] });
        service.start_handled_as(command);
        let pid = service.handled.as_ref().unwrap().process.0.id();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert_eq!(!maps.contains(".layer"), copies, "{maps}");
        assert_eq!(service.resolve("10.1045/ADMIN")["responseCode"], 1);
        service.handled = None;
    }
}

#[test]
fn a_handle_is_replaced_with_overwrite_only_and_has_the_ttl_that_is_named() {
    let service = InitialisedService::start();
    let create = |more: &[&'static str], value: &'static str| {
        let command = ["handle", "create", "10.1045/replaced", value].into_iter().chain(more.iter().copied());
        run(service.hdl_as_admin(command))
    };
    let value = || service.resolve("10.1045/replaced")["values"][0].clone();
    assert!(create(&[], "1:URL=https://one.example/").status.success());
    service.until_resolved("10.1045/replaced", 1, "https://one.example/");
    assert_eq!(value()["ttl"], 86_400);
    let refused = create(&[], "1:URL=https://two.example/");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("101"), "{error}");
    assert!(create(&["--overwrite", "--ttl", "77"], "1:URL=https://three.example/").status.success());
    service.until_resolved("10.1045/replaced", 1, "https://three.example/");
    assert_eq!(value()["ttl"], 77);
}

#[test]
fn passphrases_are_read_from_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let key = |arguments: &[&str]| {
        let mut command = hdl(["key"].iter().chain(arguments));
        command.current_dir(directory.path()).env("OLD", "one two").env("NEW", "three");
        command
    };
    succeed(key(&["generate", "private.bin", "public.bin", "--passphrase-env", "OLD"]));
    let convert = ["convert", "private.bin", "private.pem", "--passphrase-env", "OLD"];
    succeed(key(&[&convert[..], &["--new-passphrase-env", "NEW"]].concat()));
    for (file, good, wrong) in [("private.bin", "OLD", "NEW"), ("private.pem", "NEW", "OLD")] {
        let shown = succeed(key(&["show", file, "--json", "--passphrase-env", good]));
        let shown: Json = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["encrypted"], true, "{shown}");
        let (_, error) = fail(key(&["show", file, "--passphrase-env", wrong]));
        assert!(error.contains("passphrase"), "{error}");
    }
    let (code, error) = fail(key(&["show", "private.bin", "--passphrase-env", "UNSET"]));
    assert!(code == 2 && error.contains("variable UNSET is not set"), "{code}: {error}");
}

#[test]
fn deltas_are_merged_without_the_base_with_deltas_only() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    for round in 0..4 {
        let lines: String = (0..100)
            .map(|n| {
                let data = if n == round { format!("round {round}") } else { "same".to_owned() };
                format!("{{\"handle\":\"10.1/{n}\",\"values\":[{{\"index\":1,\"type\":\"URL\",\"data\":\"{data}\"}}]}}\n")
            })
            .collect();
        let records = directory.path().join("records.jsonl");
        fs::write(&records, lines).unwrap();
        let mut publish = hdl(["snapshot", "publish"]);
        publish.arg(&set).arg(&records).args((round > 0).then_some("--delta"));
        succeed(publish);
    }
    let layers = || read_manifest(&set).unwrap().layers;
    let before = layers();
    assert!(before.len() > 2, "{before:?}");
    let merge = |more: &[&str]| {
        let mut merge = hdl(["snapshot", "merge"]);
        merge.arg(&set).args(more);
        succeed(merge)
    };
    merge(&["--deltas"]);
    let after = layers();
    assert_eq!(after.len(), 2);
    assert_eq!(before.last(), after.last(), "the base stays");
    merge(&[]);
    assert_eq!(layers().len(), 1);
}

#[test]
fn punctuation_around_a_reference_is_left_out_with_lenient_only() {
    let written = "<doi:10.1000/182>.";
    let shown = succeed(hdl(["reference", "--lenient", written]));
    assert!(shown.contains("hdl:10.1000/182\n"), "{shown}");
    let exact = run(hdl(["reference", written]));
    let shown = String::from_utf8_lossy(&exact.stdout).into_owned();
    assert!(!shown.contains("hdl:10.1000/182\n"), "{shown}");
}
