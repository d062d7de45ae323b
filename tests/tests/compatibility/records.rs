//! Records in the sets, the stores and the caches of each version, and what is beside them.

use crate::corpus::{VersionFiles, copy_all, read_each};
use anyhow::{Context as _, ensure};
use handle_admin::mirror::position::MirrorPosition;
use handle_admin::pull::position::PullPosition;
use handle_auth::PublisherKey;
use handle_cache::saved;
use handle_console::registration::store::RegistrationStore;
use handle_fleet::{FetchLimits, FleetUrl, SetFetcher, StorageConfig, location};
use handle_gateway::Gateway;
use handle_proto::{ResponseCode, Value, Values};
use handle_snapshot::set::SetTree;
use handle_snapshot::set::statement::AcceptedPublishers;
use handle_snapshot::{LoadMode, NameRule, PublishedSet, hash_key};
use handle_store::{Store, StoreConfig};
use handle_tests::client::TestClient;
use handle_tests::fleet::verified;
use handle_tests::process::{hdl, run, succeed};
use handle_tests::records::Record;
use handle_tests::{gateway_server, test_server};
use handle_worker::Server;
use handle_worker::config::Datapath;
use std::collections::BTreeMap;
use std::path::Path;

/// The sets, and whether they are signed.
const SETS: [(&str, bool); 2] = [("sets/signed", true), ("sets/exact", false)];

/// The values of a record that everybody may read.
fn public_values(record: &Record) -> Vec<u8> {
    let mut public = Vec::new();
    for value in Values::from_encoded(record.values_count, &record.values).unwrap().iter() {
        if value.is_public() {
            value.encode(&mut public);
        }
    }
    public
}

#[test]
fn sets_have_their_records_and_their_roots() {
    for (name, is_signed) in SETS {
        read_each(name, |corpus| {
            let set = PublishedSet::open(&corpus.path(name), LoadMode::Map)?;
            set.verify()?;
            let expected = &corpus.expected["sets"][name];
            let manifest = set.manifest();
            ensure!(SetTree::of(&set)?.root().to_string() == expected["root"].as_str().unwrap(), "the root");
            ensure!(set.generation() == expected["generation"].as_u64().unwrap(), "the generation");
            ensure!(manifest.names.map(NameRule::word) == expected["names"].as_str(), "the rule for names");
            ensure!(manifest.statement().is_some() == is_signed, "the signature");
            let (records, rule) = (set.records(), NameRule::of(set.records().folds()));
            let find = |handle: &str| {
                let key = rule.key_of(handle.as_bytes());
                records.find(hash_key(records.seed(), &key), &key).context("a damaged record")
            };
            for record in corpus.records() {
                let found = find(&record.handle)?.with_context(|| record.handle.clone())?;
                let mut values = Vec::new();
                for value in found.values_in_order() {
                    value.context("a damaged value")?.encode(&mut values);
                }
                ensure!(values == record.values, "{}: other values", record.handle);
            }
            for deleted in corpus.expected_texts("deleted") {
                ensure!(find(&deleted)?.is_none(), "{deleted} was deleted");
            }
            Ok(())
        });
    }
}

#[test]
fn sets_are_served_as_they_were() {
    read_each("sets/signed", |corpus| {
        let (directory, set) = corpus.copy("sets/signed");
        let mut config = test_server::config(&set, Datapath::Auto);
        config.publishers.keys = vec![corpus.path("publisher.bin")];
        let last_set = directory.path().join("last-set");
        copy_all(&corpus.path("last-set"), &last_set);
        config.publishers.last_set_file = Some(last_set);
        let server = Server::start(&config)?;
        let mut client = TestClient::new(server.addresses()[0]);
        let mut resolve = |handle: &str| client.resolve(handle.as_bytes()).context("an answer");
        let mut gateway = gateway_server::config();
        gateway.snapshot = Some(set);
        gateway.publishers.keys = vec![corpus.path("publisher.bin")];
        let gateway = Gateway::start(&gateway)?;
        for record in corpus.records() {
            let answer = resolve(&record.handle)?;
            ensure!(answer.values == public_values(&record), "{}: {}", record.handle, answer.code);
            if record.handle.is_ascii() {
                let answer = gateway_server::get(
                    gateway.addresses()[0],
                    &format!("/api/handles/{}", record.handle),
                    "",
                );
                ensure!(answer.status == 200, "{}: status {}", record.handle, answer.status);
            }
        }
        for deleted in corpus.expected_texts("deleted") {
            ensure!(resolve(&deleted)?.code == ResponseCode::HANDLE_NOT_FOUND, "{deleted}");
        }
        for (handle, data) in corpus.expected["templated"].as_object().unwrap() {
            let answer = resolve(handle)?;
            let (value, _) = Value::split(&answer.values).ok().context("a value")?;
            ensure!(value.data == data.as_str().unwrap().as_bytes(), "{handle}");
        }
        gateway.stop()?;
        server.stop()?;
        Ok(())
    });
}

#[test]
fn proofs_are_valid() {
    for (name, is_present) in [("present.proof", true), ("absent.proof", false)] {
        read_each(name, |corpus| {
            let handle = corpus.expected["proofs"][name].as_str().unwrap();
            let mut verify = hdl(["verify-proof", "--json", "--handle", handle]);
            verify.arg(corpus.path(name)).arg("--key").arg(corpus.path("publisher.bin"));
            let output = run(verify);
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            // A valid proof that there is no record has an exit code of its own.
            ensure!(output.status.code() == Some(if is_present { 0 } else { 3 }), "{shown}");
            let json: serde_json::Value = serde_json::from_str(&shown)?;
            ensure!(json["is_present"] == is_present, "{shown}");
            Ok(())
        });
    }
}

#[test]
fn stores_have_their_records_positions_and_prefixes() {
    read_each("store.redb", |corpus| {
        let (_directory, file) = corpus.unpacked("store.redb");
        let store = Store::open(&StoreConfig::at(&file))?;
        let snapshot = store.snapshot()?;
        let mut found = BTreeMap::new();
        for stored in snapshot.records()? {
            let stored = stored?;
            let mut values = Vec::new();
            stored.record()?.values.iter().for_each(|value| value.encode(&mut values));
            found.insert(stored.handle().to_ascii_uppercase(), values);
        }
        let expected: BTreeMap<_, _> = corpus
            .records()
            .into_iter()
            .map(|record| (record.handle.into_bytes().to_ascii_uppercase(), record.values))
            .collect();
        ensure!(found == expected, "other records");
        let homed: Vec<_> =
            snapshot.homed()?.into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
        ensure!(homed == corpus.expected_texts("prefixes"), "{homed:?}");
        ensure!(
            Some(snapshot.last_id()?) == corpus.expected["transactions"].as_u64(),
            "the last transaction"
        );
        drop(snapshot);
        let mirrored = store.change(|transaction| MirrorPosition::read(transaction, "main"))?;
        ensure!(mirrored == Some(MirrorPosition::new("all".to_owned())), "the position of a mirror");
        let pulled = PullPosition::of(&store, "catalogue")?.context("the position of a source")?;
        ensure!(pulled == PullPosition::new("all"), "the position of a source");
        drop(store);
        let mut check = hdl(["store", "check"]);
        check.arg(&file);
        succeed(check);
        Ok(())
    });
}

#[test]
fn caches_have_their_entries() {
    read_each("cache", |corpus| {
        let mut found = BTreeMap::new();
        saved::load(&corpus.path("cache"), &mut |entry| {
            found.insert(entry.key.to_vec(), entry.values.to_vec());
        })?;
        let expected: BTreeMap<_, _> = corpus
            .records()
            .iter()
            .map(|record| (record.handle.to_ascii_uppercase().into_bytes(), public_values(record)))
            .collect();
        ensure!(found == expected, "other entries");
        Ok(())
    });
}

/// What a publisher has shipped is fetched, and its steps lead from one set to the next.
#[test]
fn shipped_sets_are_fetched_and_steps_are_used() {
    read_each("shipped", |corpus| {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("set"))?;
        let key = PublisherKey::from_record(&std::fs::read(corpus.path("publisher.bin"))?)?;
        let accepted = AcceptedPublishers::new(Box::new(move |signer, message, signature| {
            key.has_signed(&signer.0, message, signature)
        }));
        let url: FleetUrl = format!("file://{}", path("store").display()).parse()?;
        copy_all(&corpus.path("shipped/1"), &path("store"));
        let store = location::open(&url, &StorageConfig::default())?;
        let mut fetcher = SetFetcher::open(store, &path("set"), Some(accepted), FetchLimits::default())?;
        fetcher.fetch(&|| false)?;
        ensure!(generation(&path("set")) == Some(1), "the first set");
        copy_all(&corpus.path("shipped/2"), &path("store"));
        fetcher.fetch(&|| false)?;
        ensure!(generation(&path("set")) == Some(2), "the second set");
        ensure!(fetcher.counters().layers_rebuilt.get() > 0, "a layer was built from steps");
        Ok(())
    });
}

fn generation(set: &Path) -> Option<u64> {
    verified(set).map(|manifest| manifest.generation)
}

#[test]
fn requests_for_prefixes_are_there() {
    read_each("registrations", |corpus| {
        let (_directory, registrations) = corpus.copy("registrations");
        let store = RegistrationStore::open(&registrations)?;
        let all = store.all();
        ensure!(all.len() == 1, "{} requests", all.len());
        ensure!(all[0].details.note == "two\nlines \"quoted\" ü", "{:?}", all[0].details.note);
        ensure!(all[0].state.prefix() == Some("10.5072"), "{:?}", all[0].state);
        Ok(())
    });
}

/// No set, store or cache is opened here: a folder without one of them would pass unnoticed.
#[test]
fn each_version_has_all_files() {
    for VersionFiles { version, dir, .. } in VersionFiles::all() {
        for name in super::make::NAMES {
            assert!(dir.join(name).exists(), "{version} has {name}");
        }
    }
}
