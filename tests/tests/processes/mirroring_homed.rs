//! The homed prefixes of a mirror are those of its primary, also those that home derived prefixes:
//! by a dump, by transactions, and after a promotion. A difference is shown.

use handle_proto::ResponseCode;
use handle_store::{Store, StoreConfig};
use handle_tests::daemon::free_address;
use handle_tests::http;
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator};
use handle_tests::process::{run, succeed, until};
use std::fs;

const DONE: Option<(ResponseCode, String)> = Some((ResponseCode::SUCCESS, String::new()));
/// The record that homes the prefixes derived from 20.500.900, and that of this prefix itself.
const DERIVED: &str = "0.NA/0.NA/20.500.900";
const ITSELF: &str = "0.NA/20.500.900";

fn equal(service: &MirroredService) {
    until("the sets are equal", || service.is_equal());
}

/// The code of the answer of the mirror's server for this handle.
fn until_code(service: &MirroredService, handle: &str, code: i32) {
    until(&format!("{handle} becomes {code}"), || service.mirror.resolve(handle)["responseCode"] == code);
}

#[test]
fn prefixes_that_home_derived_ones_are_mirrored_by_dump_and_by_transactions() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.primary.start_admin();
    let mut administrator = service.administrator();
    assert_eq!(administrator.home(DERIVED), DONE);
    assert_eq!(administrator.home(ITSELF), DONE);
    assert_eq!(administrator.put("0.NA/20.500.900.1", "a derived prefix"), DONE);
    // By the first dump.
    service.mirror.start_admin();
    equal(&service);
    service.mirror.start_handled();
    service.mirror.until_resolved("0.NA/20.500.900.1", 1, "a derived prefix");
    until("both are compared", || service.progress()["homed_differences"] == 0);
    // By transactions: the prefix itself stays when the derived ones are released.
    assert_eq!(administrator.unhome(DERIVED), DONE);
    until_code(&service, "0.NA/20.500.900.1", 301);
    equal(&service);
    until_code(&service, "20.500.900/x", 100);
    assert_eq!(administrator.home(DERIVED), DONE);
    assert_eq!(administrator.unhome(ITSELF), DONE);
    until_code(&service, "20.500.900/x", 301);
    service.mirror.until_resolved("0.NA/20.500.900.1", 1, "a derived prefix");
    equal(&service);
    until("both are compared", || service.progress()["homed_differences"] == 0);
    // By the promotion, after which the former mirror homes as a primary does.
    service.primary.admin = None;
    let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
    succeed(service.mirror.hdl(["mirror", "promote", "--socket", &socket]));
    let mut administrator = RecordAdministrator::new(&service.primary, service.mirror.administration);
    assert_eq!(administrator.home(ITSELF), DONE);
    until_code(&service, "20.500.900/x", 100);
    service.mirror.until_resolved("0.NA/20.500.900.1", 1, "a derived prefix");
}

#[test]
fn a_difference_in_homed_prefixes_is_shown_until_it_is_gone() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    let config = service.mirror.path("site/handle-admin.toml");
    let observed = free_address();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[observe]\nhttp = \"{observed}\"\n")).unwrap();
    service.start();
    assert_eq!(service.administrator().home("0.NA/10.77"), DONE);
    equal(&service);
    // What a mirror was made of, another program has changed.
    service.mirror.admin = None;
    let store = Store::open(&StoreConfig::at(&service.mirror.path("site/store.redb"))).unwrap();
    assert!(store.change(|transaction| transaction.unhome(b"10.77")).unwrap());
    assert!(store.home(b"0.NA/10.78").unwrap());
    drop(store);
    service.mirror.start_admin();
    until("the difference is found", || service.progress()["homed_differences"] == 2);
    let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
    let output = run(service.mirror.hdl(["mirror", "status", "--socket", &socket]));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("following") && shown.contains("0.NA/10.78, 10.77"), "{shown}");
    let metrics = || http::get(observed, "/metrics").unwrap().body;
    assert!(metrics().contains("handle_admin_mirror_homed_differences{primary=\"main\"} 2"), "{}", metrics());
    // As docs/mirrors.md says: another name lets the mirror begin anew.
    service.mirror.admin = None;
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("name = \"main\"", "name = \"main-2\"")).unwrap();
    service.mirror.start_admin();
    until("the difference is gone", || service.progress()["homed_differences"] == 0);
    equal(&service);
    succeed(service.mirror.hdl(["mirror", "status", "--socket", &socket]));
}
