//! Files that are damaged anywhere: every program reports it, and no damaged bytes count as a
//! record.

use super::super::*;
use super::{COMMIT_KINDS, committing};
use handle_proto::{Value, Values};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;

/// Records by name, as far as they could be read.
type ReadableRecords = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store with pages of every kind: several levels, records longer than a page, a log, homed
/// prefixes.
fn make(config: &StoreConfig) -> ReadableRecords {
    let store = Store::create(config, true).unwrap();
    (0..40).for_each(|nth| assert!(store.home(format!("10.{nth}").as_bytes()).unwrap()));
    for nth in 0..300_usize {
        let key = format!("10.{}/{nth}", nth % 40).into_bytes();
        let data = vec![u8::try_from(nth % 251).unwrap(); if nth % 50 == 0 { 9000 } else { nth }];
        let put = move |transaction: &mut Transaction<'_>| {
            transaction.put(&key, Values::build([Value::new(1, b"N", &data)], &mut Vec::new()))
        };
        store.change(put).unwrap();
    }
    let (found, error) = read(&store);
    assert!(error.is_none() && found.len() == 300);
    found
}

/// Reads all records, and each by its name. Returns the error if reading ended early.
fn read(store: &Store) -> (ReadableRecords, Option<StoreError>) {
    let mut found = ReadableRecords::new();
    let snapshot = match store.snapshot() {
        Ok(snapshot) => snapshot,
        Err(error) => return (found, Some(error)),
    };
    let mut read = || {
        for stored in snapshot.records()? {
            let stored = stored?;
            stored.record()?;
            found.insert(stored.handle().to_vec(), stored.record()?.values.as_bytes().to_vec());
            snapshot.record(stored.handle())?;
        }
        snapshot.homed()?;
        snapshot.log_after(0)?.try_for_each(|entry| entry.map(drop))
    };
    let error = read().err();
    (found, error)
}

/// Positions all over a file, each with the bits to flip there.
fn flips(len: usize) -> impl Iterator<Item = (usize, u8)> {
    const COUNT: usize = 200;
    let headers = (0..320).step_by(5).map(|at| (at, 0x11));
    let anywhere = (0..COUNT).map(move |nth| (nth * 2_654_435_761 % len, 1 << (nth % 8)));
    // Pages begin with their type and the number of their entries.
    let pages = (0..len).step_by(4096).flat_map(|at| [0, 1, 2, 3, 5, 9].map(|more| (at + more, 0xff)));
    headers.chain(anywhere).chain(pages)
}

#[test]
fn flipped_bits_never_open_a_changed_store() {
    for kind in COMMIT_KINDS {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("store");
        let config = StoreConfig { cache_bytes: 1 << 20, ..committing(kind, &file) };
        let expected = make(&config);
        let whole = std::fs::read(&file).unwrap();
        let (mut refused, mut unused) = (0, 0);
        for (at, bits) in flips(whole.len()) {
            let what = format!("byte {at} of {}, {bits:#x}", whole.len());
            let mut bytes = whole.clone();
            bytes[at] ^= bits;
            std::fs::write(&file, &bytes).unwrap();
            match Store::open(&config) {
                Ok(store) => {
                    unused += 1;
                    let (found, error) = read(&store);
                    assert!(found == expected && error.is_none(), "{what}: {error:?}");
                    let findings = store.check(|finding| assert!(!finding.is_damage(), "{what}: {finding}"));
                    findings.unwrap();
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    assert!(
                        text.contains(&*file.to_string_lossy()) && !text.contains('\n'),
                        "{what}: {text}"
                    );
                    assert!(
                        matches!(error, StoreError::Broken { .. } | StoreError::Unopened { .. }),
                        "{what}: {text}"
                    );
                    assert_eq!(std::fs::read(&file).unwrap(), bytes, "{what}: it stays as it is");
                }
            }
        }
        assert!(refused > 100 && unused > 20, "{refused} refused, {unused} in what is not used");
    }
}

#[test]
fn damage_of_an_open_store_leads_to_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store");
    // A small cache, so that damage of the file is noticed.
    let config = StoreConfig { cache_bytes: 4096, ..StoreConfig::at(&file) };
    make(&config);
    let whole = std::fs::read(&file).unwrap();
    let (mut reported, mut failed) = (0, 0);
    // The first byte of a page is its type.
    for at in (4096..whole.len()).step_by(4096) {
        std::fs::write(&file, &whole).unwrap();
        let store = Store::open(&config).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .write_all_at(&[0x77], at as u64)
            .unwrap();
        if let (_, Some(error)) = read(&store) {
            reported += 1;
            let text = error.to_string();
            let is_named = text.contains(&*file.to_string_lossy());
            assert!(is_named || matches!(error, StoreError::Damaged(_)), "byte {at}: {text}");
        }
        let changed = store.change(|transaction| {
            transaction.put(b"10.7/7", Values::build([Value::new(1, b"N", b"new")], &mut Vec::new()))
        });
        if let Err(error) = changed {
            failed += 1;
            let why = store.failure();
            assert!(matches!(error, StoreError::Failed), "byte {at}: {error}");
            assert!(
                why.as_ref().is_some_and(|why| why.contains(&*file.to_string_lossy())),
                "byte {at}: {why:?}"
            );
        }
    }
    assert!(reported > 20 && failed > 0, "{reported} reported, {failed} failed");
}
