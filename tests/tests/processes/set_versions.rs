//! Programs and sets of different versions together, as while a fleet is updated.

use bytes::Bytes;
use handle_fleet::store::PutCondition;
use handle_fleet::{FetchError, RefusalReason};
use handle_gateway::Gateway;
use handle_proto::ResponseCode;
use handle_snapshot::format::checksum;
use handle_snapshot::proof::RecordProof;
use handle_snapshot::set::{SetTree, read_manifest};
use handle_snapshot::{LoadMode, NameRule, PublishedSet};
use handle_tests::client::TestClient;
use handle_tests::fleet::{TestFleet, TestSigner, verified};
use handle_tests::gateway_server;
use handle_tests::process::{fail, hdl, succeed, until};
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::Datapath;
use std::path::Path;
use std::process::Command;

fn code(server: &Server, handle: &str) -> ResponseCode {
    TestClient::new(server.addresses()[0]).resolve(handle.as_bytes()).expect("an answer").code
}

fn prove(set: &Path, handle: &str) -> Command {
    let mut prove = hdl(["prove"]);
    prove.arg(set).arg(handle);
    prove
}

/// Machines are updated before their publisher: its sets are fetched and served as before. Proofs
/// need a set of the new version.
#[test]
fn a_set_of_an_older_publisher_is_served_and_proves_nothing_until_it_is_published_again() {
    let (fleet, signer) = (TestFleet::new(), TestSigner::generate());
    signer.write_public(&fleet.path("public.bin"));
    let mut publisher = fleet.publisher("published", Some(&signer));
    publisher.publish(0..3, "first", true);
    let first = publisher.write_version_1(&signer);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(Some(signer.accepted())));
    shipper.ship().unwrap();
    fetcher.fetch(&|| false).unwrap();
    assert_eq!(verified(&fleet.path("set")), Some(first), "with all its bytes");
    let mut config = test_server::config(&fleet.path("set"), Datapath::Auto);
    config.publishers.keys = vec![fleet.path("public.bin")];
    config.publishers.last_set_file = Some(fleet.path("last-set"));
    let server = Server::start(&config).unwrap();
    assert_eq!(code(&server, "10.5072/1"), ResponseCode::SUCCESS);

    let (exit, refused) = fail(prove(&fleet.path("set"), "10.5072/1"));
    assert!(
        exit == 1 && refused.contains("before format 2") && refused.contains("publish it again"),
        "{refused}"
    );
    let set = PublishedSet::open(&fleet.path("set"), LoadMode::Map).unwrap();
    let path = SetTree::of(&set).unwrap().path(b"10.5072/1").unwrap();
    let proof = RecordProof { path, signed: set.manifest().statement().unwrap() };
    let text = proof.encode().replace("handle record proof 2", "handle record proof 1");
    std::fs::write(fleet.path("proof"), text).unwrap();
    let verify = || {
        let mut verify = hdl(["verify-proof"]);
        verify.arg(fleet.path("proof")).arg("--key").arg(fleet.path("public.bin"));
        verify.args(["--handle", "10.5072/1"]);
        verify
    };
    let (exit, refused) = fail(verify());
    assert!(exit == 1 && refused.contains("made before format 2: make it again"), "{refused}");

    publisher.publish(3..4, "second", false);
    shipper.ship().unwrap();
    fetcher.fetch(&|| false).unwrap();
    assert_eq!(read_manifest(&fleet.path("set")).unwrap().names, Some(NameRule::Folded));
    until("the new set is served", || code(&server, "10.5072/3") == ResponseCode::SUCCESS);
    std::fs::write(fleet.path("proof"), succeed(prove(&fleet.path("set"), "10.5072/1"))).unwrap();
    succeed(verify());
}

/// What programs of this version see of a later publisher is what older ones see of this one.
#[test]
fn a_manifest_of_a_later_version_is_refused_by_name_and_the_old_set_stays() {
    let (fleet, signer) = (TestFleet::new(), TestSigner::generate());
    signer.write_public(&fleet.path("public.bin"));
    let mut publisher = fleet.publisher("published", Some(&signer));
    publisher.publish(0..3, "first", true);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(Some(signer.accepted())));
    shipper.ship().unwrap();
    fetcher.fetch(&|| false).unwrap();
    let mut config = test_server::config(&publisher.dir, Datapath::Auto);
    config.publishers.keys = vec![fleet.path("public.bin")];
    let mut gateway_config = gateway_server::config();
    gateway_config.snapshot = Some(publisher.dir.clone());
    gateway_config.publishers.keys = vec![fleet.path("public.bin")];
    let (server, gateway) = (Server::start(&config).unwrap(), Gateway::start(&gateway_config).unwrap());

    let text = publisher.publish(3..4, "second", false).encode().replace("snapshot set 2", "snapshot set 3");
    let text = &text[..text.rfind("end ").unwrap()];
    let later = format!("{text}end {:016x}\n", checksum(text.as_bytes()));
    std::fs::write(fleet.path("later"), &later).unwrap();
    until("both have the second set", || {
        let mapped = gateway.state().reading.set.as_ref().unwrap().current().generation();
        [server.shared().live.current().generation(), mapped] == [2; 2]
    });
    std::fs::rename(fleet.path("later"), publisher.dir.join("MANIFEST")).unwrap();
    until("the manifest is refused", || {
        let shown = [server.shared().live.to_json(), gateway.state().reading.set.as_ref().unwrap().to_json()];
        shown.iter().all(|it| it["last_error"].to_string().contains("unsupported version"))
    });
    assert_eq!(code(&server, "10.5072/3"), ResponseCode::SUCCESS, "the old set stays");
    assert_eq!(gateway_server::get(gateway.addresses()[0], "/api/handles/10.5072/3", "").status, 200);

    let later = Bytes::from(later);
    fleet.store().put("MANIFEST", later, &PutCondition::Always).unwrap();
    let refused = fetcher.fetch(&|| false).unwrap_err();
    assert!(matches!(refused, FetchError::Refused(RefusalReason::Damaged, _)), "{refused}");
    assert!(refused.to_string().contains("unsupported version"), "{refused}");
    assert_eq!(fetcher.counters().refused_damaged.get(), 1);
    assert_eq!(verified(&fleet.path("set")).unwrap().generation, 1);

    for refused in [
        Server::start(&config).map(drop).unwrap_err(),
        Gateway::start(&gateway_config).map(drop).unwrap_err(),
    ] {
        let refused = format!("{refused:#}");
        assert!(refused.contains("unsupported version") && refused.contains("update this one"), "{refused}");
    }
    let (exit, refused) = fail(prove(&publisher.dir, "10.5072/1"));
    assert!(exit == 1 && refused.contains("unsupported version"), "{refused}");
    gateway.stop().unwrap();
}
