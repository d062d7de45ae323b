//! A primary whose clock was a day ahead, and a mirror whose clock was: all changes arrive, the lag
//! is that of the mirror, and the difference of both clocks is shown.

use handle_admin::mirror::position::MirrorPosition;
use handle_daemon::clock::now_unix_ms;
use handle_proto::ResponseCode;
use handle_store::{Store, StoreConfig};
use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::{run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use std::fs;
use std::ops::Range;

const DONE: Option<(ResponseCode, String)> = Some((ResponseCode::SUCCESS, String::new()));
const DAY_MS: u64 = 86_400_000;

fn store(service: &InitialisedService) -> Store {
    Store::open(&StoreConfig::at(&service.path("site/store.redb"))).expect("a store")
}

/// Changes a record, and waits until the mirror has published it and answers with a small lag.
fn change(service: &MirroredService, data: &str) {
    let mut administrator = service.administrator();
    assert_eq!(administrator.put("10.1045/n", data), DONE);
    assert_eq!(administrator.home(&format!("0.NA/0.NA/10.{}", data.len())), DONE);
    until("the change has arrived", || service.is_equal());
    until("the lag is small", || service.progress()["lag_seconds"].as_f64().is_some_and(|lag| lag < 30.0));
    until("homed prefixes are equal", || service.progress()["homed_differences"] == 0);
}

/// Waits until the mirror sees the clock of its primary ahead by so many seconds. A change may have
/// come in an answer whose time was compared before.
fn until_ahead(service: &MirroredService, expected: Range<f64>) {
    until("the difference of the clocks is seen", || {
        service.progress()["clock_ahead_seconds"].as_f64().is_some_and(|ahead| expected.contains(&ahead))
    });
}

#[test]
fn clocks_that_were_a_day_ahead_stop_no_change() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.start();
    change(&service, "1");
    // The clock of the primary is a day ahead: its log has times of tomorrow.
    service.primary.admin = None;
    let ahead = store(&service.primary).promote(0, now_unix_ms() + DAY_MS, |_| Ok(()));
    assert!(ahead.is_ok(), "{ahead:?}");
    service.primary.start_admin();
    change(&service, "22");
    until_ahead(&service, 86_000.0..86_401.0);
    let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
    until("the status shows the difference", || {
        let output = run(service.mirror.hdl(["mirror", "status", "--socket", &socket]));
        String::from_utf8_lossy(&output.stdout).contains("ahead of the one here")
    });
    // The time that the mirror had from it is not stored.
    service.mirror.admin = None;
    let position = |store: &Store| {
        let stored = store.change(|transaction| MirrorPosition::read(transaction, "main"));
        stored.expect("a readable store").expect("a position")
    };
    let opened = store(&service.mirror);
    assert!(position(&opened).complete_unix_ms < now_unix_ms() + DAY_MS / 2, "{:?}", position(&opened));
    drop(opened);
    service.mirror.start_admin();
    change(&service, "333");
    let dumps = service.progress()["counts"]["dumps"].as_u64();
    assert!(dumps.is_some_and(|dumps| dumps <= 1), "{dumps:?}: one may be needed, and then transactions");

    // The clock is right again: a copy of the records, with times of now.
    service.primary.admin = None;
    succeed(service.primary.hdl(["export", "site/store.redb", "site/copy.jsonl"]));
    fs::remove_file(service.primary.path("site/store.redb")).expect("a file");
    succeed(service.primary.hdl(["import", "--create", "site/store.redb", "site/copy.jsonl"]));
    service.primary.start_admin();
    change(&service, "4444");
    until_ahead(&service, -30.0..30.0);

    // The mirror was a day ahead, or an older version of it has believed the primary.
    service.mirror.admin = None;
    let opened = store(&service.mirror);
    let changed = opened.change(|transaction| {
        let position = MirrorPosition::read(transaction, "main")?.expect("a position");
        let (complete_unix_ms, contact_unix_ms) =
            (position.complete_unix_ms + DAY_MS, position.contact_unix_ms + DAY_MS);
        MirrorPosition { complete_unix_ms, contact_unix_ms, ..position }.write(transaction, "main")
    });
    assert!(changed.is_ok(), "{changed:?}");
    drop(opened);
    service.mirror.start_admin();
    change(&service, "55555");
    // An import after the clock was set back reaches the mirror, too.
    service.primary.admin = None;
    let line = r#"{"handle":"10.1045/imported","values":[{"index":1,"type":"URL","data":"x"}]}"#;
    fs::write(service.primary.path("site/more.jsonl"), line).expect("a file");
    let imported = run(service.primary.hdl(["import", "site/store.redb", "site/more.jsonl"]));
    assert!(imported.status.success(), "{imported:?}");
    service.primary.start_admin();
    change(&service, "666666");
    let has_imported = |line: &String| line.contains("10.1045/IMPORTED");
    assert!(service.mirror.published().iter().any(has_imported));
    service.stop_and_compare();
}
