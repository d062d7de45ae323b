//! What single options of the programs change, each compared with the same command without it.

use handle_admin::mirror::position::{DumpProgress, MirrorPosition};
use handle_formats::bundle::{BundleLimits, SiteBundle};
use handle_proto::ResponseCode;
use handle_snapshot::set::read_manifest;
use handle_store::{Store, StoreConfig};
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator};
use handle_tests::process::{fail, hdl, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;

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

#[test]
fn the_contact_of_init_is_in_the_bundle_for_the_registry() {
    let directory = tempfile::tempdir().unwrap();
    let mut init = hdl(["init", "site", "--prefix", "10.1045", "--address", "192.0.2.1", "--plain"]);
    init.args(["--contact-name", "Ann Other", "--contact-phone", "+1 555 0100"]);
    succeed({
        init.current_dir(directory.path());
        init
    });
    let bundle = fs::read(directory.path().join("site/sitebndl.zip")).unwrap();
    let limits = BundleLimits { entries: 8, unpacked_bytes: 1 << 20 };
    let contact = SiteBundle::read(&bundle, limits).unwrap().contact;
    assert_eq!((&*contact.name, &*contact.phone), ("Ann Other", "+1 555 0100"));
}

#[test]
fn records_are_sorted_in_the_directory_that_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.jsonl");
    fs::write(&records, "{\"handle\":\"10.1/a\",\"values\":[]}\n").unwrap();
    let compare = |location: &str| {
        let mut compare = hdl(["reconcile"]);
        compare.args([&records, &records]).arg("--temp-dir").arg(directory.path().join(location));
        compare
    };
    let (code, error) = fail(compare("missing"));
    assert!(code == 1 && error.contains("cannot write to ") && error.contains("missing"), "{error}");
    fs::create_dir(directory.path().join("there")).unwrap();
    succeed(compare("there"));
    assert_eq!(fs::read_dir(directory.path().join("there")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn steps_are_shipped_unless_they_have_no_length() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (location, options) in [("with", &[][..]), ("without", &["--steps-len", "0"])] {
        for round in 0..2 {
            let line = |n: usize| {
                format!(
                    "{{\"handle\":\"10.1/{n}\",\"values\":[{{\"index\":1,\"type\":\"URL\",\"data\":\"x\"}}]}}\n"
                )
            };
            fs::write(path("records"), (round..200).map(line).collect::<String>()).unwrap();
            let mut publish = hdl(["snapshot", "publish"]);
            publish
                .arg(path(&format!("{location}-set")))
                .arg(path("records"))
                .args((round > 0).then_some("--delta"));
            succeed(publish);
            let mut ship = hdl(["ship"]);
            ship.arg(path(&format!("{location}-set")))
                .arg(format!("file://{}", path(location).display()))
                .args(options);
            succeed(ship);
        }
        let names = fs::read_dir(path(location)).unwrap().map(|entry| entry.unwrap().file_name());
        let has_steps = names.into_iter().any(|name| name.to_string_lossy().ends_with(".steps"));
        assert_eq!(has_steps, options.is_empty(), "{location}");
    }
}

/// A process with a control socket, which notes one command.
#[test]
fn as_many_names_are_asked_for_as_count_says() {
    for (options, expected) in [(&["--count", "3"][..], "cache-top 3"), (&[], "cache-top 20")] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let process = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(b"{\"ok\":true,\"names\":[],\"samples\":0}\n").unwrap();
            line.trim().to_owned()
        });
        let mut top = hdl(["cache", "top", "--json", "--socket"]);
        top.arg(&socket).args(options);
        let output = run(top);
        assert_eq!(process.join().unwrap(), expected, "{output:?}");
    }
}
