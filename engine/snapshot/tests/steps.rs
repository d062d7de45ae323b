//! Steps between sets: layers that are built again from layers of an earlier set have the same
//! bytes, and what is not a step builds nothing else.
#![cfg(feature = "std")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Permissions, Value};
use handle_snapshot::set::manifest::{LayerEntry, Manifest};
use handle_snapshot::set::stager::NewLayer;
use handle_snapshot::set::steps::{
    LayerRecipe, LayerRecipes, RecipePart, STEPS_HEAD_LEN, STEPS_MAX, SetStep, StepsHead, between,
    object_name, set_id, split, window,
};
use handle_snapshot::set::{LayerChecks, SetErrorKind};
use handle_snapshot::{
    BuildError, Builder, HomedPrefixes, Layer, LayerOptions, LayerPosition, LayerWriter, LoadMode,
    MappedFile, SetPublisher, merge,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::path::Path;

/// A changed record: the number of its handle, and the number of its value, or `None` for a
/// deletion.
type Change = (u8, Option<u8>);

/// How the next set is made.
#[derive(Clone, Debug)]
enum Publication {
    /// A new layer above the others, with a new table of homed prefixes if there is a number.
    Delta(Vec<Change>, Option<u8>),
    /// As `Delta`, in place of so many of the newest layers.
    Absorbing(Vec<Change>, usize, Option<u8>),
    /// A merge of layers from this position, so many.
    Merge(usize, usize),
    /// A merge of all layers.
    MergeAll,
    /// A base with another seed.
    Rebuild(Vec<Change>),
}

/// A publisher and all its sets, whose layers are never removed.
struct SetSequence {
    dir: tempfile::TempDir,
    publisher: SetPublisher,
    now_unix_ms: u64,
}

fn homed(number: u8) -> HomedPrefixes {
    let mut homed = HomedPrefixes::default();
    homed.add(b"1");
    homed.add(format!("2.{number}").as_bytes());
    homed
}

fn build(changes: &[Change], options: LayerOptions, table: Option<u8>) -> Layer<Vec<u8>> {
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    if let Some(number) = table {
        builder = builder.homed(homed(number));
    }
    let mut changes = changes.to_vec();
    changes.sort_unstable();
    changes.dedup_by_key(|change| change.0);
    for (name, number) in changes {
        let handle = format!("1/h{name}");
        let Some(number) = number else {
            builder.delete(0, handle.as_bytes()).unwrap();
            continue;
        };
        let data = format!("https://a.example/{number}");
        let private = Value { permissions: Permissions(0x0c), ..Value::new(2, b"NOTE", b"secret") };
        let public = Value::new(1, b"URL", data.as_bytes());
        let values = [Some(public), (number % 3 == 0).then_some(private)];
        builder.add(0, handle.as_bytes(), values.into_iter().flatten()).unwrap();
    }
    let (bytes, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
    Layer::open(bytes.into_inner()).unwrap()
}

impl SetSequence {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let publisher = SetPublisher::open(dir.path()).unwrap();
        let mut sets = Self { dir, publisher, now_unix_ms: 1_700_000_000_000 };
        let all: Vec<Change> = (0..100).map(|name| (name, Some(name))).collect();
        sets.rebuild(&all, 1);
        sets
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn set(&self) -> &Manifest {
        self.publisher.manifest().unwrap()
    }

    fn rebuild(&mut self, changes: &[Change], seed: u64) {
        let options = LayerOptions { seed, folds: true, created_unix_ms: self.now_unix_ms };
        let base = build(changes, options, Some(0));
        self.stage_and_publish(LayerPosition::Base, &[base], false);
    }

    fn stage(&self, position: LayerPosition, layers: &[Layer<Vec<u8>>], keep_tombstones: bool) -> NewLayer {
        let options = LayerOptions {
            seed: layers[0].seed(),
            folds: true,
            created_unix_ms: layers[0].created_unix_ms(),
        };
        let stager = self.publisher.stager();
        let staged = stager.stage(position, |file, dir| {
            let out = LayerWriter::new(file, dir, options)?;
            merge(layers, keep_tombstones, out, |_| ControlFlow::Continue(()))
        });
        staged.unwrap()
    }

    fn stage_and_publish(
        &mut self,
        position: LayerPosition,
        layers: &[Layer<Vec<u8>>],
        keep_tombstones: bool,
    ) {
        let layer = self.stage(position, layers, keep_tombstones);
        self.publisher.publish(layer, self.now_unix_ms).unwrap();
    }

    fn read(&self, entry: &LayerEntry) -> Layer<Vec<u8>> {
        Layer::open(fs::read(self.path().join(&entry.file)).unwrap()).unwrap()
    }

    fn publish(&mut self, publication: &Publication) {
        self.now_unix_ms += 17;
        let options = self.publisher.options(self.now_unix_ms).unwrap();
        let count = self.set().layers.len();
        match publication {
            Publication::Delta(..) if count > 20 => self.merge(0..count),
            Publication::Delta(changes, table) => {
                self.stage_and_publish(LayerPosition::Delta, &[build(changes, options, *table)], true);
            }
            Publication::Absorbing(changes, gone, table) => {
                let gone = self.set().layers[..(*gone).min(count - 1)].to_vec();
                let mut layers = vec![build(changes, options, *table)];
                layers.extend(gone.iter().map(|entry| self.read(entry)));
                self.stage_and_publish(LayerPosition::Absorbing(gone), &layers, true);
            }
            Publication::Merge(from, len) => {
                let from = from % count;
                self.merge(from..count.min(from + len));
            }
            Publication::MergeAll => self.merge(0..count),
            Publication::Rebuild(changes) => self.rebuild(changes, options.seed + 1),
        }
    }

    fn merge(&mut self, which: std::ops::Range<usize>) {
        let go_on = |_: &handle_snapshot::MergeProgress<'_>| ControlFlow::Continue(());
        let merged = self.publisher.stager().stage_merge(self.set(), which, self.now_unix_ms, go_on).unwrap();
        self.publisher.publish(merged, self.now_unix_ms).unwrap();
    }

    /// A directory that has this set and nothing else.
    fn replica(&self, set: &Manifest) -> Replica {
        let dir = tempfile::tempdir().unwrap();
        for entry in &set.layers {
            fs::copy(self.path().join(&entry.file), dir.path().join(&entry.file)).unwrap();
        }
        let mut publisher = SetPublisher::open_replica(dir.path()).unwrap();
        publisher.adopt(set).unwrap();
        Replica { publisher, dir }
    }
}

struct Replica {
    publisher: SetPublisher,
    dir: tempfile::TempDir,
}

impl Replica {
    /// Builds and takes a layer; returns whether it was built.
    fn take(&self, entry: &LayerEntry, recipe: &LayerRecipe<'_>) -> bool {
        let part = "built.part";
        match self.publisher.rebuild_layer(part, entry, recipe, &|| false) {
            Ok(()) => {
                self.publisher
                    .take_layer(part, entry, LayerChecks { records: true, reads_back: true })
                    .unwrap();
                true
            }
            Err(_) => {
                assert!(!self.dir.path().join(part).exists(), "a failed attempt leaves nothing");
                false
            }
        }
    }
}

/// The steps that a machine with the set `held` gets from an object for `now`, as it reads them.
fn read_steps<'o>(object: &'o [u8], held: &Manifest, now: &Manifest) -> Option<Vec<&'o [u8]>> {
    let head = StepsHead::parse(&object[..STEPS_HEAD_LEN]).unwrap();
    assert_eq!(head.to, set_id(now));
    let table = head.table();
    let table = &object[usize::try_from(table.start).unwrap()..usize::try_from(table.end).unwrap()];
    let end = head.find(set_id(held), table)?;
    Some(split(&object[..usize::try_from(end).unwrap()], set_id(held)).unwrap())
}

fn publications() -> impl Strategy<Value = Vec<Publication>> {
    let changes = || vec((0..110_u8, prop::option::weighted(0.7, any::<u8>())), 0..12);
    let table = || prop::option::weighted(0.2, 0..4_u8);
    let publication = prop_oneof![
        6 => (changes(), table()).prop_map(|(changes, table)| Publication::Delta(changes, table)),
        6 => (changes(), 1..4_usize, table())
            .prop_map(|(changes, gone, table)| Publication::Absorbing(changes, gone, table)),
        3 => (0..6_usize, 2..4_usize).prop_map(|(from, len)| Publication::Merge(from, len)),
        1 => Just(Publication::MergeAll),
        1 => changes().prop_map(Publication::Rebuild),
    ];
    vec(publication, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Ships every set, or every second or third one, and builds the layers of the last set from
    /// each set before.
    #[test]
    fn layers_are_built_again_from_every_set_of_the_window(
        publications in publications(),
        every in 1..4_usize,
        len_max in prop_oneof![Just(1 << 20), 200..2000_usize],
    ) {
        let mut sets = SetSequence::new();
        let mut shipped = vec![sets.set().clone()];
        let mut steps: Vec<SetStep> = Vec::new();
        for (nth, publication) in publications.iter().enumerate() {
            sets.publish(publication);
            if nth % every > 0 {
                continue;
            }
            let (old, new) = (shipped.last().unwrap().clone(), sets.set().clone());
            shipped.push(new.clone());
            let is_rebuilt = sets.read(&old.layers[0]).seed() != sets.read(&new.layers[0]).seed();
            let step = between(sets.path(), &old, &new, len_max);
            prop_assert_eq!(step.is_none(), is_rebuilt);
            let Some(step) = step else {
                steps.clear();
                continue;
            };
            let added = new.layers.iter().filter(|entry| !old.layers.contains(entry)).count();
            prop_assert!(len_max < 1 << 20 || every > 1 || step.described_count == added, "{:?}", publication);
            let object = window(&step, steps.iter().rev(), len_max);
            check_recipes(&sets, &shipped, &object, &new)?;
            steps.push(step);
        }
    }
}

/// Builds the layers of `new` on machines with each of the sets before it.
fn check_recipes(
    sets: &SetSequence,
    shipped: &[Manifest],
    object: &[u8],
    new: &Manifest,
) -> Result<(), TestCaseError> {
    for (back, held) in shipped.iter().rev().skip(1).enumerate() {
        let steps = read_steps(object, held, new);
        prop_assert!(back > 0 || steps.is_some(), "the first step is always there");
        let Some(steps) = steps else { continue };
        prop_assert_eq!(steps.len(), back + 1);
        let recipes = LayerRecipes::new(held, &steps).unwrap();
        let replica = sets.replica(held);
        for entry in new.layers.iter().filter(|entry| !held.layers.contains(entry)) {
            if let Some(recipe) = recipes.find(entry) {
                prop_assert!(replica.take(entry, &recipe), "{:?} from {} sets before", entry, back + 1);
                let built = fs::read(replica.dir.path().join(&entry.file)).unwrap();
                prop_assert!(built == fs::read(sets.path().join(&entry.file)).unwrap());
            }
        }
    }
    Ok(())
}

fn urls(names: std::ops::Range<u8>, number: u8) -> Vec<Change> {
    names.map(|name| (name, Some(number))).collect()
}

/// A sequence of `count` sets with a step between each two.
fn sequence(count: u8) -> (SetSequence, Vec<Manifest>, Vec<SetStep>) {
    let mut sets = SetSequence::new();
    let (mut shipped, mut steps) = (vec![sets.set().clone()], Vec::new());
    for nth in 0..count {
        sets.publish(&Publication::Absorbing(urls(nth % 90..nth % 90 + 5, nth), usize::from(nth % 3), None));
        let (old, new) = (shipped.last().unwrap(), sets.set().clone());
        steps.push(between(sets.path(), old, &new, 1 << 20).unwrap());
        shipped.push(new);
    }
    (sets, shipped, steps)
}

#[test]
fn a_step_has_little_more_than_the_changed_records() {
    let mut sets = SetSequence::new();
    sets.publish(&Publication::Delta(urls(0..40, 200), None));
    let old = sets.set().clone();
    sets.publish(&Publication::Absorbing(urls(38..48, 201), 1, None));
    let new = sets.set().clone();
    let changed = build(&urls(38..48, 201), sets.publisher.options(0).unwrap(), None);
    let records_len: usize = changed.records().map(|record| record.unwrap().as_bytes().len()).sum();
    let step = between(sets.path(), &old, &new, 1 << 20).unwrap();
    assert_eq!(step.bytes.len(), 2 + 8 + 1 + 8 + 1 + 8 + 4 + records_len);

    // A merge has no records of its own.
    sets.publish(&Publication::MergeAll);
    let step = between(sets.path(), &new, sets.set(), 1 << 20).unwrap();
    assert_eq!((step.described_count, step.bytes.len()), (1, 2 + 8 + 1 + 8 + 1 + 2 * 8 + 4));
}

#[test]
fn a_layer_is_not_described_beyond_the_longest_step_or_without_its_sources() {
    let mut sets = SetSequence::new();
    let old = sets.set().clone();
    sets.publish(&Publication::Delta(urls(0..40, 200), None));
    let new = sets.set().clone();
    let step = between(sets.path(), &old, &new, 1 << 20).unwrap();
    let records_len = step.bytes.len() - (2 + 8 + 1 + 8 + 1 + 4);
    for (len_max, described_count) in [(0, 0), (records_len + 1, 0), (records_len + 2, 1)] {
        let step = between(sets.path(), &old, &new, len_max).unwrap();
        assert_eq!(step.described_count, described_count, "{len_max}");
    }

    // What is missing in the directory is no source.
    sets.publish(&Publication::Absorbing(urls(40..41, 200), 1, None));
    let newest = sets.set().clone();
    assert_eq!(between(sets.path(), &new, &newest, records_len).unwrap().described_count, 1);
    fs::remove_file(sets.path().join(&new.layers[0].file)).unwrap();
    assert_eq!(between(sets.path(), &new, &newest, records_len).unwrap().described_count, 0);
}

#[test]
fn a_window_has_the_last_steps_as_far_as_they_fit() {
    let (_, shipped, steps) = sequence(140);
    let (newest, earlier) = steps.split_last().unwrap();
    let object = window(newest, earlier.iter().rev(), 1 << 20);
    let now = shipped.last().unwrap();
    let reach = |object: &[u8]| {
        let held = shipped.iter().rev().skip(1);
        held.take_while(|held| read_steps(object, held, now).is_some()).count()
    };
    assert_eq!(reach(&object), STEPS_MAX);
    let len = newest.bytes.len() + 12 + earlier.last().unwrap().bytes.len();
    assert_eq!(reach(&window(newest, earlier.iter().rev(), len)), 2);
    assert_eq!(reach(&window(newest, earlier.iter().rev(), len - 1)), 1);
    // A set that is missing in between ends the window.
    let gap = earlier.iter().rev().take(3).chain(earlier.iter().rev().skip(4));
    assert_eq!(reach(&window(newest, gap, 1 << 20)), 4);
    assert_ne!(object_name(now), object_name(&shipped[0]));
}

#[test]
fn every_changed_byte_of_an_object_builds_the_layer_or_nothing() {
    let (sets, shipped, steps) = sequence(4);
    let (held, now) = (&shipped[1], shipped.last().unwrap());
    let object = window(&steps[3], steps[..3].iter().rev(), 1 << 20);
    let replica = sets.replica(held);
    let missing: Vec<_> = now.layers.iter().filter(|entry| !held.layers.contains(entry)).collect();
    assert!(!missing.is_empty());
    let attempt = |object: &[u8]| {
        let steps = StepsHead::parse(object).and_then(|_| split(object, set_id(held)));
        let Some(recipes) = steps.and_then(|steps| LayerRecipes::new(held, &steps)) else { return 0 };
        let builds = |entry: &&&LayerEntry| recipes.find(entry).is_some_and(|it| replica.take(entry, &it));
        missing.iter().filter(builds).count()
    };
    assert_eq!(attempt(&object), missing.len());
    for at in 0..object.len() {
        let mut changed = object.clone();
        changed[at] ^= 1 << (at % 8);
        attempt(&changed);
        attempt(&object[..at]);
    }
    // The layers are what they were.
    for entry in missing {
        let bytes = MappedFile::open(&replica.dir.path().join(&entry.file), LoadMode::Map).unwrap();
        assert_eq!(bytes.as_ref(), fs::read(sets.path().join(&entry.file)).unwrap());
    }
}

#[test]
fn other_parts_build_nothing() {
    let (sets, shipped, steps) = sequence(2);
    let (held, now) = (&shipped[1], &shipped[2]);
    let entry = &now.layers[0];
    let recipes = LayerRecipes::new(held, &[&steps[1].bytes]).unwrap();
    let recipe = recipes.find(entry).unwrap();
    let replica = sets.replica(held);
    let with = |parts: Vec<RecipePart<'_>>| {
        let recipe = LayerRecipe { parts, ..recipe.clone() };
        replica.take(entry, &recipe)
    };
    let parts = recipe.parts.clone();
    assert!(!with(Vec::new()) && !with(parts[1..].to_vec()));
    assert!(!with([&parts[..], &[RecipePart::Layer(&held.layers[1])]].concat()), "more bytes than the layer");
    assert!(!with([&[RecipePart::Homed(b"\x01\x001")], &parts[..]].concat()), "a table of homed prefixes");
    assert!(!with([&[RecipePart::Homed(b"\x05\x001")], &parts[..]].concat()), "a list that is cut");
    let RecipePart::Records(records) = parts[0] else { panic!("records come first") };
    let len = usize::try_from(u32::from_le_bytes(records[4..8].try_into().unwrap())).unwrap();
    let turned = [&records[len..], &records[..len]].concat();
    assert!(!with([&[RecipePart::Records(&turned)], &parts[1..]].concat()), "records out of order");
    assert!(!with([&[RecipePart::Records(&records[..len + 3])], &parts[1..]].concat()), "cut records");
    let missing = LayerEntry { file: "0000000099-0.layer".to_owned(), ..entry.clone() };
    assert!(!with(vec![parts[0], RecipePart::Layer(&missing)]), "a layer that is not there");
    let stopped = replica.publisher.rebuild_layer("built.part", entry, &recipe, &|| true);
    let stopped = stopped.unwrap_err();
    assert!(matches!(stopped.kind, SetErrorKind::Build(BuildError::Stopped)), "{stopped}");
    let late = LayerRecipe { created_unix_ms: recipe.created_unix_ms + 1, ..recipe.clone() };
    assert!(!replica.take(entry, &late));
    assert!(replica.take(entry, &recipe));
}
