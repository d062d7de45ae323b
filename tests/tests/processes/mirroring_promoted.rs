//! A mirror is killed while it is promoted, again and again: it starts afterwards, as the mirror
//! that it was or as the primary, and ends as the primary with all that the lost one had.

use handle_proto::ResponseCode;
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator, StoreContent, published_root};
use handle_tests::process::{run, succeed, until};
use handle_tests::strace::{complete_log, has_strace, traced};
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Kills, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 20;
/// What a promotion changes.
const FILES: [&str; 2] = ["site/store.redb", "site/siteinfo.json"];
/// The system calls by which files get other names.
const RENAME: &str = "rename,renameat,renameat2";
/// Those by which a promotion changes files, and makes these changes durable.
const CALLS: [&str; 6] = [RENAME, "write", "pwrite64", "ftruncate", "fsync", "fdatasync"];

/// The time of a promotion in which both files change, about.
const AROUND_THE_COMMIT: Duration = Duration::from_millis(12);

/// Who has done a promotion that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PromotionEnd {
    /// It had not begun, and was done by another one.
    Another,
    /// The next start of `handle-admin`: the site record was missing.
    NextStart,
    /// It was done.
    Itself,
}

/// Whether there is a file that is to replace another one.
fn has_temporary_file(directory: &Path) -> bool {
    let names = fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b".tmp"))
}

/// A mirror whose primary is lost, and that can be what it was before its promotion.
struct KeptMirror {
    service: MirroredService,
    kept: [Vec<u8>; 2],
    /// The set and the store of the primary.
    published: Vec<String>,
    stored: StoreContent,
    socket: String,
}

impl KeptMirror {
    fn make() -> Self {
        let mut service = MirroredService::make("", "interval_ms = 50");
        service.start();
        let mut administrator = service.administrator();
        for n in 0..50 {
            assert!(administrator.put(&format!("10.1045/n{n}"), &format!("number {n}")).is_some());
        }
        assert!(administrator.home("0.NA/0.NA/10.1045").is_some());
        until("the sets are equal", || service.is_equal());
        let published = service.primary.published();
        service.stop_and_compare();
        let kept = FILES.map(|name| fs::read(service.mirror.path(name)).expect("a file"));
        let stored = StoreContent::of(&service.primary);
        let socket = service.mirror.path("site/run/handle-admin.sock").display().to_string();
        Self { service, kept, published, stored, socket }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.service.mirror.path(name)
    }

    /// The command for a mirror that is stopped.
    fn promote_stopped(&self) -> Command {
        self.service.mirror.promotion_command()
    }

    /// The command for a mirror that runs.
    fn promote_running(&self) -> Command {
        self.service.mirror.hdl(["mirror", "promote", "--socket", &self.socket])
    }

    fn restore(&self) {
        // The set is that of a later state of the store; it is published anew.
        for entry in fs::read_dir(self.path("site/snapshot")).expect("a directory").flatten() {
            if entry.path().is_file() {
                fs::remove_file(entry.path()).expect("a file");
            }
        }
        // What a killed promotion has left does not matter, but would be taken for a new file.
        for entry in fs::read_dir(self.path("site")).expect("a directory").flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
                fs::remove_file(entry.path()).expect("a file");
            }
        }
        let files = FILES.iter().zip(&self.kept);
        files.for_each(|(name, bytes)| fs::write(self.path(name), bytes).expect("a file"));
    }

    /// Whether the site record is that of a primary site.
    fn is_primary_site(&self) -> bool {
        let text = fs::read_to_string(self.path("site/siteinfo.json")).expect("a site record");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["primarySite"] == true
    }

    /// Starts what was killed, which completes a promotion that had begun; otherwise promotes it.
    /// It is then the primary, with all that the lost one had.
    fn complete(&mut self, case: &str) -> PromotionEnd {
        let was_primary_site = self.is_primary_site();
        // It starts, whatever was interrupted.
        self.service.mirror.start_admin();
        let end = match (self.service.progress()["activity"] == "promoted", was_primary_site) {
            (true, true) => PromotionEnd::Itself,
            (true, false) => PromotionEnd::NextStart,
            (false, true) => panic!("{case}: the site record of a primary site, and a store that follows"),
            (false, false) => {
                let promoted = run(self.promote_running());
                assert!(promoted.status.success(), "{case}: {promoted:?}");
                PromotionEnd::Another
            }
        };
        assert!(self.is_primary_site(), "{case}");
        let mirror = &self.service.mirror;
        let mut administrator = RecordAdministrator::new(&self.service.primary, mirror.administration);
        let done = administrator.put("10.1045/after", "promoted");
        assert_eq!(done.map(|(code, _)| code), Some(ResponseCode::SUCCESS), "{case}");
        assert!(administrator.delete("10.1045/after").is_some());
        until("the set has what the primary had", || {
            // Nothing may be published yet.
            published_root(mirror).is_some() && mirror.published() == self.published
        });
        self.service.mirror.admin = None;
        StoreContent::of(&self.service.mirror).assert_is(&self.stored, case);
        end
    }
}

#[test]
fn a_promotion_that_is_killed_is_completed_or_has_not_begun() {
    let kills = std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().expect("a number"));
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut mirror = KeptMirror::make();
    // The time that a promotion takes, within which it is killed.
    let begun = Instant::now();
    succeed(mirror.promote_stopped());
    let length = begun.elapsed();
    let site = mirror.path("site");
    // In half of the cases, soon after the new site record is there beside the present one.
    let wait = |kill: usize, random: &mut rand::rngs::StdRng| {
        let (begun, part) = (Instant::now(), random.random_range(0.0..1.1));
        while kill % 4 < 2 && begun.elapsed() < length && !has_temporary_file(&site) {}
        let rest = if kill % 4 < 2 { AROUND_THE_COMMIT } else { length };
        std::thread::sleep(rest.mul_f64(part));
    };
    let mut ends = BTreeMap::<_, usize>::new();
    for kill in 0..kills {
        mirror.restore();
        let start = |mut command: Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
        };
        if kill % 2 == 0 {
            let mut promoting = start(mirror.promote_stopped());
            wait(kill, &mut random);
            promoting.kill().expect("a process");
            promoting.wait().expect("a process");
        } else {
            mirror.service.mirror.start_admin();
            let mut promoting = start(mirror.promote_running());
            wait(kill, &mut random);
            if let Some(process) = &mut mirror.service.mirror.admin {
                process.signal("KILL");
                process.wait();
            }
            promoting.wait().expect("a process");
            mirror.service.mirror.admin = None;
        }
        *ends.entry(mirror.complete(&format!("kill {kill}"))).or_default() += 1;
    }
    println!("who has completed the promotions: {ends:?}");
}

/// How often a thread of the promotion makes each of the calls.
fn calls_of_a_promotion(mirror: &KeptMirror) -> BTreeMap<&'static str, usize> {
    let log = mirror.path("calls.log");
    succeed(traced(&mirror.promote_stopped(), &["-e", &format!("trace={}", CALLS.join(","))], &log));
    let mut counts = BTreeMap::new();
    for line in complete_log(&log).lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let called = call.trim_start().split('(').next().unwrap_or_default();
        let name = CALLS.iter().find(|names| names.split(',').any(|name| name == called));
        if let Some(&name) = name {
            *counts.entry((name, thread.to_owned())).or_insert(0_usize) += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((name, _), count) in counts {
        let known = most.entry(name).or_insert(0);
        *known = count.max(*known);
    }
    most
}

/// Wherever a promotion is between two of its steps, strace kills it there: each call is the first
/// that is not made.
#[test]
fn a_promotion_that_is_killed_at_any_system_call_is_completed_or_has_not_begun() {
    if !has_strace() {
        return;
    }
    let mut mirror = KeptMirror::make();
    let (calls, log) = (calls_of_a_promotion(&mirror), mirror.path("calls.log"));
    let mut ends = BTreeMap::<_, usize>::new();
    for (call, nth) in calls.iter().flat_map(|(call, count)| (1..=*count).map(move |nth| (call, nth))) {
        mirror.restore();
        let inject = format!("inject={call}:signal=KILL:when={nth}");
        let killed = run(traced(&mirror.promote_stopped(), &["-e", &inject], &log));
        assert_eq!(killed.status.signal(), Some(9), "{call} {nth}: {killed:?}");
        let end = mirror.complete(&format!("{call} {nth}"));
        assert!(*call != RENAME || end == PromotionEnd::NextStart, "{call} {nth}: {end:?}");
        *ends.entry(end).or_default() += 1;
    }
    println!("killed at {calls:?}; who has completed the promotions: {ends:?}");
    let kills: usize = ends.values().sum();
    assert!(kills >= KILLS && calls.contains_key(RENAME) && ends.len() == 3, "{calls:?}: {ends:?}");
}

/// The same of a mirror that runs, at the calls between its two files.
#[test]
fn a_running_mirror_that_is_killed_between_the_steps_of_its_promotion_completes_it() {
    if !has_strace() {
        return;
    }
    let mut mirror = KeptMirror::make();
    let log = mirror.path("calls.log");
    for (call, about, expected) in [
        (RENAME, "site/siteinfo.json", PromotionEnd::NextStart),
        // The directory is synced after the site record has changed.
        ("fsync", "site", PromotionEnd::Itself),
    ] {
        mirror.restore();
        let (about, inject) = (mirror.path(about), format!("inject={call}:signal=KILL:when=1"));
        let options = ["-P", about.to_str().expect("a path in UTF-8"), "-e", &inject];
        let command = traced(&mirror.service.mirror.admin_command(), &options, &log);
        mirror.service.mirror.start_admin_as(command);
        assert!(!run(mirror.promote_running()).status.success(), "{call}: nobody has answered");
        let mut process = mirror.service.mirror.admin.take().expect("it runs");
        assert_eq!(process.wait(), None, "{call}: a signal has ended it");
        assert_eq!(mirror.complete(call), expected, "{call}");
    }
}
