//! A mirror is killed while it is promoted, again and again: it starts afterwards, as the mirror
//! that it was or as the primary, and ends as the primary with all that the lost one had.

use handle_proto::ResponseCode;
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator, published_root};
use handle_tests::process::{run, succeed, until};
use rand::{RngExt as _, SeedableRng as _};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Kills, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 20;
/// What a promotion changes.
const FILES: [&str; 2] = ["site/store.redb", "site/siteinfo.json"];

/// The time of a promotion in which both files change, about.
const AROUND_THE_COMMIT: Duration = Duration::from_millis(12);

/// Whether there is a file that is to replace another one.
fn has_temporary_file(directory: &Path) -> bool {
    let names = fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b".tmp"))
}

/// Whether the site record of the mirror is that of a primary site.
fn is_primary_site(service: &MirroredService) -> bool {
    let text = fs::read_to_string(service.mirror.path("site/siteinfo.json")).expect("a site record");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["primarySite"] == true
}

#[test]
fn a_promotion_that_is_killed_is_completed_or_has_not_begun() {
    let kills = std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().expect("a number"));
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut service = MirroredService::make("retry_ms_max = 100", "interval_ms = 50");
    service.start();
    let mut administrator = service.administrator();
    for n in 0..50 {
        assert!(administrator.put(&format!("10.1045/n{n}"), &format!("number {n}")).is_some());
    }
    assert!(administrator.home("0.NA/0.NA/10.1045").is_some());
    until("the sets are equal", || service.is_equal());
    let expected = service.primary.published();
    (service.primary.admin, service.mirror.admin) = (None, None);
    let kept = FILES.map(|name| fs::read(service.mirror.path(name)).expect("a file"));
    let restore = |service: &MirroredService| {
        // The set is that of a later state of the store; it is published anew.
        for entry in fs::read_dir(service.mirror.path("site/snapshot")).expect("a directory").flatten() {
            if entry.path().is_file() {
                fs::remove_file(entry.path()).expect("a file");
            }
        }
        // What a killed promotion has left does not matter, but would be taken for a new file.
        for entry in fs::read_dir(service.mirror.path("site")).expect("a directory").flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
                fs::remove_file(entry.path()).expect("a file");
            }
        }
        FILES
            .iter()
            .zip(&kept)
            .for_each(|(name, bytes)| fs::write(service.mirror.path(name), bytes).expect("a file"));
    };

    let stopped = ["mirror", "promote", "--config", "site/handle-admin.toml"];
    let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
    let running = ["mirror", "promote", "--socket", &socket];
    // The time that a promotion takes, within which it is killed.
    let begun = Instant::now();
    succeed(service.mirror.hdl(stopped));
    let length = begun.elapsed();
    let site = service.mirror.path("site");
    // In half of the cases, soon after the new site record is there beside the present one.
    let wait = |kill: usize, random: &mut rand::rngs::StdRng| {
        let (begun, part) = (Instant::now(), random.random_range(0.0..1.1));
        while kill % 4 < 2 && begun.elapsed() < length && !has_temporary_file(&site) {}
        let rest = if kill % 4 < 2 { AROUND_THE_COMMIT } else { length };
        std::thread::sleep(rest.mul_f64(part));
    };
    let (mut completed, mut interrupted) = (0, 0);
    for kill in 0..kills {
        restore(&service);
        if kill % 2 == 0 {
            let mut command = service.mirror.hdl(stopped);
            let mut promoting =
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("hdl starts");
            wait(kill, &mut random);
            promoting.kill().expect("a process");
            promoting.wait().expect("a process");
        } else {
            service.mirror.start_admin();
            let mut command = service.mirror.hdl(running);
            let mut promoting =
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("hdl starts");
            wait(kill, &mut random);
            if let Some(process) = &mut service.mirror.admin {
                process.signal("KILL");
                process.wait();
            }
            promoting.wait().expect("a process");
            service.mirror.admin = None;
        }
        let was_primary_site = is_primary_site(&service);
        // It starts, whatever was interrupted.
        service.mirror.start_admin();
        if service.progress()["activity"] == "promoted" {
            completed += 1;
            interrupted += usize::from(!was_primary_site);
        } else {
            assert!(!was_primary_site, "{kill}: the site record of a primary site, and a store that follows");
            let promoted = run(service.mirror.hdl(running));
            assert!(promoted.status.success(), "{kill}: {promoted:?}");
        }
        assert!(is_primary_site(&service), "{kill}");
        let mut administrator = RecordAdministrator::new(&service.primary, service.mirror.administration);
        let done = administrator.put("10.1045/after", "promoted");
        assert_eq!(done.map(|(code, _)| code), Some(ResponseCode::SUCCESS), "{kill}");
        assert!(administrator.delete("10.1045/after").is_some());
        until("the set has what the primary had", || {
            // Nothing may be published yet.
            published_root(&service.mirror).is_some() && service.mirror.published() == expected
        });
        service.mirror.admin = None;
    }
    println!("{completed} of {kills} promotions were complete, {interrupted} of them by the next start");
}
