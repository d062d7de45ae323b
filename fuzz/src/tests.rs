//! Runs the committed corpora and all earlier findings through the target functions, with any
//! compiler and without libFuzzer.

use super::{TARGETS, replay, select};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn names_in(name: &str) -> BTreeSet<String> {
    let entries = folder(name).read_dir().unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_input_of_the_corpora_keeps_its_property() {
    for (name, target) in TARGETS {
        let count = replay(*target, &folder("corpus").join(name)).unwrap();
        assert!(count > 0, "{name} has no corpus");
    }
}

#[test]
fn earlier_findings_keep_their_property() {
    for name in names_in("found") {
        let path = folder("found").join(&name);
        if path.is_dir() {
            let target = TARGETS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}"));
            replay(target.1, &path).unwrap();
        }
    }
}

#[test]
fn a_target_is_selected_by_its_name() {
    for (name, _) in TARGETS {
        assert!(select(name).is_ok(), "{name}");
    }
    for unknown in ["", "no_such_target"] {
        let error = select(unknown).unwrap_err().to_string();
        assert!(TARGETS.iter().all(|(name, _)| error.contains(name)), "{error}");
    }
}

/// Unlike the seeds, these inputs have no structure.
#[test]
fn short_and_uniform_inputs_keep_every_property() {
    for (name, target) in TARGETS {
        for byte in [0, 1, 0x20, 0x7f, 0x80, 0xff] {
            for len in (0..70).chain([511, 512, 513, 4096]) {
                println!("{name}: {len} bytes of {byte:#04x}");
                target(&vec![byte; len]);
            }
        }
    }
}

#[test]
fn every_target_is_a_program_with_a_corpus() {
    let names: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let programs: BTreeSet<_> = names.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names_in("fuzz_targets"), programs);
    assert_eq!(names_in("corpus"), names);
}
