//! Two `handle-admin` over one database that follow the same primary: one at a time does, also when
//! processes are killed or stopped.

use handle_store::StoreRecords as _;
use handle_tests::mirror_pair::RecordAdministrator;
use handle_tests::process::until;
use handle_tests::service_directory::InitialisedService;
use handle_tests::several_admins::SeveralAdmins;
use serde_json::Value as Json;

/// A primary, and two processes of its mirror.
struct SharedMirror {
    primary: InitialisedService,
    several: SeveralAdmins,
}

impl SharedMirror {
    /// Starts all; `None` if PostgreSQL is not installed.
    fn start() -> Option<Self> {
        let mut primary = InitialisedService::make();
        let path = |name: &str| primary.path(name).display().to_string();
        let (site, key) = (path("site/siteinfo.json"), path("site/admin-private.bin"));
        let mirror = format!(
            "lease_ms = 500\n[mirror]\ninterval_ms = 50\n[[mirror.primary]]\nname = \"main\"\n\
             site = \"{site}\"\nidentity = \"300:10.1045/ADMIN\"\nkey_file = \"{key}\"\n"
        );
        let mut several = SeveralAdmins::make(&mirror)?;
        let site = several.service.path("site/siteinfo.json");
        let text = std::fs::read(&site).expect("a file");
        let mut json: Json = serde_json::from_slice(&text).expect("JSON");
        json["primarySite"] = false.into();
        std::fs::write(&site, json.to_string()).expect("a file");
        primary.start_admin();
        several.start(0);
        several.start(1);
        Some(Self { primary, several })
    }

    fn administrator(&self) -> RecordAdministrator {
        RecordAdministrator::new(&self.primary, self.primary.administration)
    }

    /// What a process does with the primary; null if it does not answer.
    fn progress(&self, at: usize) -> Json {
        self.several.status(at)["mirror"][0].clone()
    }

    fn follows(&self, at: usize) -> bool {
        let status = self.several.status(at);
        status["mirror_lease"]["held"] == true && status["mirror"][0]["activity"] == "following"
    }

    /// Waits until one of the processes follows, and returns which.
    fn follower(&self) -> usize {
        let mut found = None;
        until("one of them follows", || {
            found = (0..2).find(|&at| self.follows(at));
            found.is_some()
        });
        found.expect("found above")
    }

    /// Creates a handle at the primary and waits until the mirror has it.
    fn create(&self, handle: &str) {
        let created = self.administrator().put(handle, "x").expect("an answer");
        assert_eq!(created.0, handle_proto::ResponseCode::SUCCESS, "{created:?}");
        self.wait_for(handle);
    }

    fn wait_for(&self, handle: &str) {
        until(&format!("the mirror has {handle}"), || {
            let snapshot = self.several.store().snapshot().expect("a store");
            snapshot.record(handle.to_uppercase().as_bytes()).expect("a store").is_some()
        });
    }
}

#[test]
fn one_process_follows_and_another_one_takes_over() {
    let Some(mut mirror) = SharedMirror::start() else { return };
    let first = mirror.follower();
    let second = 1 - first;
    mirror.create("10.1045/followed");
    until("the other one waits", || mirror.progress(second)["activity"] == "waiting");
    let progress = mirror.progress(second);
    assert_eq!((&progress["counts"]["streams"], &progress["counts"]["dumps"]), (&0.into(), &0.into()));
    until("it knows how far the mirror is", || {
        mirror.progress(second)["last_transaction"] == mirror.progress(first)["last_transaction"]
    });
    // The one that follows is killed.
    mirror.several.kill(first);
    mirror.create("10.1045/after-a-kill");
    assert_eq!(mirror.follower(), second);
    assert_eq!(mirror.progress(second)["counts"]["dumps"], 0, "it goes on where the other one was");
    // One that is stopped for longer than its lease follows no more.
    mirror.several.start(first);
    mirror.several.signal(second, "STOP");
    mirror.create("10.1045/while-stopped");
    mirror.several.signal(second, "CONT");
    until("it knows that it does not follow", || mirror.progress(second)["activity"] == "waiting");
    mirror.create("10.1045/after-it-goes-on");
    assert!(mirror.follows(first) && !mirror.follows(second));
    // One that is asked to stop lets another one follow at once.
    mirror.several.signal(first, "TERM");
    mirror.create("10.1045/after-a-signal");
    assert_eq!(mirror.follower(), second);
}
