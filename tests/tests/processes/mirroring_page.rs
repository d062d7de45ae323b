//! A second site, as docs/mirrors.md says: on a service that `hdl init` has created, with an
//! identity of its own for the mirror.

use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::{run, succeed, until};
use std::fs;

/// The section and its line, as on the page.
const PERMISSION: &str = "[administrators]\nreplication = [\"300:10.1045/MIRROR\"]\n";

#[test]
fn a_second_site_from_nothing_follows_with_an_identity_of_its_own() {
    let page = include_str!("../../../docs/mirrors.md");
    let shown = page.replace("   ", "");
    assert!(
        shown.contains(PERMISSION) && shown.contains("`service.toml`"),
        "the page has the section and its file"
    );
    let mut service = MirroredService::make("", "interval_ms = 50");
    // Step 1: the key of the mirror.
    let keys = ["key", "generate", "mirror-private.bin", "mirror-public.bin", "--plain"];
    succeed(service.mirror.hdl(keys));
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).expect("a file");
    let admin_key = service.primary.path("site/admin-private.bin").display().to_string();
    let own_key = service.mirror.path("mirror-private.bin").display().to_string();
    let text = text.replace("300:10.1045/ADMIN", "300:10.1045/MIRROR").replace(&admin_key, &own_key);
    fs::write(&config, text).expect("a file");
    // Step 2: its identity, and its permission in the section that `hdl init` has written.
    service.start();
    let public = format!("300:HS_PUBKEY=@{}", service.mirror.path("mirror-public.bin").display());
    succeed(service.primary.hdl_as_admin(["handle", "create", "10.1045/MIRROR", &public]));
    until("the mirror is refused", || service.progress()["counts"]["errors"]["refused"].as_u64() >= Some(1));
    let shared = service.primary.path("site/service.toml");
    let text = fs::read_to_string(&shared).expect("a file");
    fs::write(&shared, text.replace("[administrators]\n", PERMISSION)).expect("a file");
    let socket = service.primary.path("site/run/handle-admin.sock").display().to_string();
    succeed(service.primary.hdl(["control", "reload", "--socket", &socket]));
    until("the mirror has all records", || service.is_equal());
    // `handled` reads the same file.
    let mut check = service.primary.handled_command();
    check.arg("--check-config");
    succeed(check);
    // A second section, in the other file, is refused.
    let config = service.primary.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).expect("a file");
    fs::write(&config, format!("{text}\n{PERMISSION}")).expect("a file");
    let refused = run(service.primary.hdl(["control", "reload", "--socket", &socket]));
    let said = [refused.stdout, refused.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(!refused.status.success() && said.concat().contains("administrators"), "{said:?}");
}
