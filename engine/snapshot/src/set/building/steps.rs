//! Steps from one shipped set to the next: what a machine with an earlier set needs to build the
//! new layers from layers that it has.
//!
//! Building a layer is deterministic, so a step need not be trusted: what is built from it is
//! compared with the digest in the MANIFEST. A step is worth nothing more than the transfer that it
//! saves.
//!
//! - [`between`] makes a step by comparing layers, and [`window`] puts it with those before it into
//!   one object, whose name follows from the MANIFEST of the new set ([`object_name`]).
//! - [`StepsHead`], [`StepsHead::find`] and [`split`] read such an object, of which a machine needs
//!   the start up to the step from its own set.
//! - [`LayerRecipes`] puts several steps together: layers that only sets between had are not built.
//!
//! `docs/snapshot-format.md` describes the object.

use crate::format::Sha256Sum;
use crate::increment::{LayerIncrement, increment};
use crate::map::{AccessPattern, LoadMode, MappedFile};
use crate::reader::Layer;
use crate::set::manifest::{LAYERS_MAX, LayerEntry, Manifest};
use crate::set::open_layer;
use crate::writer::HomedPrefixes;
use core::ops::Range;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::format;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// Suffix of the name of every object with steps.
pub const STEPS_SUFFIX: &str = ".steps";
/// First bytes of such an object; the last is the version of the format.
pub const STEPS_MAGIC: [u8; 8] = *b"HDLSTEP\x01";
/// Bytes before the first step.
pub const STEPS_HEAD_LEN: usize = 40;
/// Bytes of a row of the table of further steps.
pub const STEPS_ROW_LEN: usize = 12;
/// Most steps in an object.
pub const STEPS_MAX: usize = 128;
/// Most bytes of steps in an object.
pub const STEPS_LEN_MAX: usize = 4 << 20;
/// Most parts from which a layer is built.
pub const RECIPE_PARTS_MAX: usize = 256;
/// Hexadecimal digits of the digest of the MANIFEST in the name of an object.
const NAME_DIGITS: usize = 32;
/// Flag of a layer: it is not described, and has to be downloaded.
pub const FLAG_WHOLE: u8 = 1;
/// Flag of a layer: it has no tombstones of its sources.
pub const FLAG_DROPS_TOMBSTONES: u8 = 2;
/// Flag of a layer: a list of homed prefixes follows.
pub const FLAG_HOMED_LIST: u8 = 4;

/// The start of the SHA-256 of a MANIFEST.
pub type SetId = [u8; 8];
/// The start of the digest of a layer.
type LayerId = [u8; 8];

fn layer_id(entry: &LayerEntry) -> LayerId {
    *entry.digest.0.first_chunk().expect("a digest is longer")
}

/// The start of the SHA-256 of a manifest, by which steps name it.
#[must_use]
pub fn set_id(manifest: &Manifest) -> SetId {
    let digest: [u8; 32] = Sha256::digest(manifest.encode()).into();
    *digest.first_chunk().expect("a digest is longer")
}

/// Name of the object with the steps to the set of this manifest.
#[must_use]
pub fn object_name(manifest: &Manifest) -> String {
    let digest = format!("{}", Sha256Sum(Sha256::digest(manifest.encode()).into()));
    format!("{:010}-{}{STEPS_SUFFIX}", manifest.generation, &digest[..NAME_DIGITS])
}

/// A step from one set to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetStep {
    /// The set before.
    pub from: SetId,
    /// The set after.
    pub to: SetId,
    /// The layers that the set after has and the set before has not, as in an object.
    pub bytes: Vec<u8>,
    /// Number of these layers that are described.
    pub described_count: usize,
}

/// Compares two sets whose layers are in `dir`. The result has at most `len_max` bytes and a few
/// for each layer. Layers for which more would be needed, that are missing or are damaged, are not
/// described.
///
/// Returns `None` if the sets hash differently, so that nothing before the step is of use after it.
#[must_use]
pub fn between(dir: &Path, old: &Manifest, new: &Manifest, len_max: usize) -> Option<SetStep> {
    let open = |entry: &LayerEntry| -> Option<Layer<MappedFile>> {
        let bytes = MappedFile::open(&dir.join(&entry.file), LoadMode::Map).ok()?;
        bytes.expect(AccessPattern::Sequential);
        open_layer(bytes, entry).ok()
    };
    let hashing = |set: &Manifest| {
        let layer = set.layers.iter().find_map(open)?;
        Some((layer.seed(), layer.folds()))
    };
    if hashing(old).zip(hashing(new)).is_none_or(|(old, new)| old != new) {
        return None;
    }
    let gone = old.layers.iter().filter(|entry| !new.layers.contains(entry));
    let gone: Vec<_> = gone.filter_map(|entry| Some((layer_id(entry), open(entry)?))).collect();
    let candidates: Vec<_> = gone.iter().map(|(_, layer)| layer).collect();
    let added: Vec<_> = new.layers.iter().filter(|entry| !old.layers.contains(entry)).collect();
    let mut bytes = u16::try_from(added.len()).expect("at most LAYERS_MAX").to_le_bytes().to_vec();
    let mut described_count = 0;
    for entry in added {
        let is_oldest = new.layers.last() == Some(entry);
        let capacity = len_max.saturating_sub(bytes.len());
        let found = open(entry).and_then(|layer| increment(&layer, is_oldest, &candidates, capacity).ok()?);
        bytes.extend_from_slice(&layer_id(entry));
        let Some(found) = found else {
            bytes.push(FLAG_WHOLE);
            continue;
        };
        described_count += 1;
        let sources: Vec<_> = found.sources.iter().map(|&at| gone[at].0).collect();
        describe(&found, &sources, &mut bytes);
    }
    Some(SetStep { from: set_id(old), to: set_id(new), bytes, described_count })
}

fn describe(increment: &LayerIncrement, sources: &[LayerId], bytes: &mut Vec<u8>) {
    let mut flags = 0;
    if increment.drops_tombstones {
        flags |= FLAG_DROPS_TOMBSTONES;
    }
    if increment.homed.is_some() {
        flags |= FLAG_HOMED_LIST;
    }
    bytes.push(flags);
    bytes.extend_from_slice(&increment.created_unix_ms.to_le_bytes());
    bytes.push(u8::try_from(sources.len()).expect("at most LAYERS_MAX"));
    bytes.extend(sources.iter().flatten());
    let homed = increment.homed.as_ref().map(HomedPrefixes::to_list);
    for part in homed.iter().chain([&increment.records]) {
        let len = u32::try_from(part.len()).expect("at most STEPS_LEN_MAX");
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(part);
    }
}

/// The object with a step and those before it, newest first, as far as each continues the one
/// before it and they fit into `len_max` bytes.
#[must_use]
pub fn window<'s>(new: &SetStep, earlier: impl IntoIterator<Item = &'s SetStep>, len_max: usize) -> Vec<u8> {
    let mut len = new.bytes.len();
    let mut next = new.from;
    let mut steps = Vec::new();
    for step in earlier {
        len += STEPS_ROW_LEN + step.bytes.len();
        if step.to != next || len > len_max.min(STEPS_LEN_MAX) || steps.len() + 1 == STEPS_MAX {
            break;
        }
        next = step.from;
        steps.push(step);
    }
    let offset = |at: usize| u32::try_from(at).expect("at most STEPS_LEN_MAX").to_le_bytes();
    let first_end = STEPS_HEAD_LEN + new.bytes.len();
    let mut end = first_end + STEPS_ROW_LEN * steps.len();
    let mut object = Vec::with_capacity(STEPS_HEAD_LEN + len);
    object.extend_from_slice(&STEPS_MAGIC);
    object.extend_from_slice(&new.to);
    object.extend_from_slice(&new.from);
    object.extend_from_slice(&offset(first_end));
    object.extend_from_slice(&offset(end));
    object.extend_from_slice(&[0; 8]);
    object.extend_from_slice(&new.bytes);
    for step in &steps {
        end += step.bytes.len();
        object.extend_from_slice(&step.from);
        object.extend_from_slice(&offset(end));
    }
    for step in &steps {
        object.extend_from_slice(&step.bytes);
    }
    object
}

/// The first bytes of an object with steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepsHead {
    /// The set to which the steps lead.
    pub to: SetId,
    /// The set from which the first step leads there.
    pub from: SetId,
    /// Where the first step ends.
    end: usize,
    /// Where the table of the other steps ends.
    table_end: usize,
}

impl StepsHead {
    /// Parses the first [`STEPS_HEAD_LEN`] bytes of an object; `None` if no object begins so.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(..STEPS_HEAD_LEN)?;
        let (magic, to, from) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
        let (end, table_end) = (take_offset(&mut rest)?, take_offset(&mut rest)?);
        let rows = table_end.checked_sub(end)?;
        let is_valid = magic == STEPS_MAGIC
            && end >= STEPS_HEAD_LEN
            && table_end <= STEPS_HEAD_LEN + STEPS_LEN_MAX
            && rows.is_multiple_of(STEPS_ROW_LEN)
            && rows / STEPS_ROW_LEN < STEPS_MAX
            && rest == [0; 8];
        is_valid.then_some(Self { to, from, end, table_end })
    }

    /// Where the table of the other steps is in the object.
    #[must_use]
    pub const fn table(&self) -> Range<u64> {
        self.end as u64..self.table_end as u64
    }

    /// Up to where a machine with the set `from` needs the object; `None` if it has no step from
    /// there. `table` is the table of the other steps, which is not needed for the first.
    #[must_use]
    pub fn find(&self, from: SetId, table: &[u8]) -> Option<u64> {
        if from == self.from {
            return Some(self.end as u64);
        }
        let (_, end) = rows(table).find(|row| row.0 == from)?;
        let is_valid = end >= self.table_end && end <= STEPS_HEAD_LEN + STEPS_LEN_MAX;
        is_valid.then_some(end as u64)
    }
}

fn rows(table: &[u8]) -> impl Iterator<Item = (SetId, usize)> {
    let (rows, _) = table.as_chunks::<STEPS_ROW_LEN>();
    rows.iter().filter_map(|row| {
        let mut row = row.as_slice();
        Some((take(&mut row)?, take_offset(&mut row)?))
    })
}

/// The steps from the set `from` to that of an object, oldest first. `bytes` is the start of the
/// object, up to where [`StepsHead::find`] says; `None` if it is damaged.
#[must_use]
pub fn split(bytes: &[u8], from: SetId) -> Option<Vec<&[u8]>> {
    let head = StepsHead::parse(bytes)?;
    let mut steps = std::vec![bytes.get(STEPS_HEAD_LEN..head.end)?];
    if from == head.from {
        return Some(steps);
    }
    let mut start = head.table_end;
    for (id, end) in rows(bytes.get(head.end..head.table_end)?) {
        steps.push(bytes.get(start..end)?);
        start = end;
        if id == from {
            steps.reverse();
            return Some(steps);
        }
    }
    None
}

/// One input of a layer that is built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipePart<'a> {
    /// A layer of the set that the machine has.
    Layer(&'a LayerEntry),
    /// Records of a step, as they are in a layer.
    Records(&'a [u8]),
    /// Homed prefixes of a step, each after its length in two bytes.
    Homed(&'a [u8]),
}

/// From what a layer is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRecipe<'a> {
    /// When the layer was built, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Whether tombstones are left out.
    pub drops_tombstones: bool,
    /// The parts, newest first. The homed prefixes are those of the first part that has some.
    pub parts: Vec<RecipePart<'a>>,
}

/// How a layer of some set between is built.
#[derive(Debug)]
struct KnownLayer {
    created_unix_ms: u64,
    drops_tombstones: bool,
    /// Positions among all parts.
    parts: Vec<u32>,
}

/// The recipes for the layers of a set, made from steps that lead there.
#[derive(Debug)]
pub struct LayerRecipes<'a> {
    parts: Vec<RecipePart<'a>>,
    layers: BTreeMap<LayerId, KnownLayer>,
}

impl<'a> LayerRecipes<'a> {
    /// Puts the steps from the set `held`, oldest first, together; `None` if one is damaged.
    #[must_use]
    pub fn new(held: &'a Manifest, steps: &[&'a [u8]]) -> Option<Self> {
        let mut recipes = Self { parts: Vec::new(), layers: BTreeMap::new() };
        for entry in &held.layers {
            let parts = std::vec![recipes.add_part(RecipePart::Layer(entry))];
            let known = KnownLayer { created_unix_ms: 0, drops_tombstones: false, parts };
            recipes.layers.insert(layer_id(entry), known);
        }
        for step in steps {
            recipes.take_step(step)?;
        }
        Some(recipes)
    }

    /// The recipe for a layer that the held set has not; `None` if there is none.
    #[must_use]
    pub fn find(&self, entry: &LayerEntry) -> Option<LayerRecipe<'a>> {
        let known = self.layers.get(&layer_id(entry))?;
        Some(LayerRecipe {
            created_unix_ms: known.created_unix_ms,
            drops_tombstones: known.drops_tombstones,
            parts: known.parts.iter().map(|&at| self.parts[at as usize]).collect(),
        })
    }

    fn add_part(&mut self, part: RecipePart<'a>) -> u32 {
        self.parts.push(part);
        u32::try_from(self.parts.len() - 1).expect("steps are bounded")
    }

    /// Adds the layers of a step, which are made from those known before it.
    fn take_step(&mut self, mut step: &'a [u8]) -> Option<()> {
        let count = u16::from_le_bytes(take(&mut step)?);
        if usize::from(count) > LAYERS_MAX {
            return None;
        }
        let mut added = Vec::new();
        for _ in 0..count {
            let (id, [flags]) = (take(&mut step)?, take(&mut step)?);
            if flags != FLAG_WHOLE {
                added.push((id, self.take_layer(flags, &mut step)?));
            }
        }
        for (id, known) in added {
            self.layers.extend(known.map(|known| (id, known)));
        }
        step.is_empty().then_some(())
    }

    /// Reads a layer of a step. Without a recipe for one of its sources there is none for the
    /// layer.
    #[expect(clippy::option_option, reason = "the outer one says whether the step is damaged")]
    fn take_layer(&mut self, flags: u8, step: &mut &'a [u8]) -> Option<Option<KnownLayer>> {
        if flags & !(FLAG_DROPS_TOMBSTONES | FLAG_HOMED_LIST) != 0 {
            return None;
        }
        let created_unix_ms = u64::from_le_bytes(take(step)?);
        let [sources_count] = take(step)?;
        if usize::from(sources_count) > LAYERS_MAX {
            return None;
        }
        let sources: Vec<LayerId> = (0..sources_count).map(|_| take(step)).collect::<Option<_>>()?;
        let mut own = Vec::new();
        if flags & FLAG_HOMED_LIST != 0 {
            own.push(self.add_part(RecipePart::Homed(take_counted(step)?)));
        }
        own.push(self.add_part(RecipePart::Records(take_counted(step)?)));
        let drops_tombstones = flags & FLAG_DROPS_TOMBSTONES != 0;
        let parts = self.flatten(own, &sources, drops_tombstones);
        Some(parts.map(|parts| KnownLayer { created_unix_ms, drops_tombstones, parts }))
    }

    /// The parts of a layer followed by those of its sources, each once. A part that comes again
    /// has nothing that its first position has not.
    fn flatten(&self, own: Vec<u32>, sources: &[LayerId], drops_tombstones: bool) -> Option<Vec<u32>> {
        let mut parts = own;
        let is_homed = |at: u32| matches!(self.parts[at as usize], RecipePart::Homed(_));
        let mut has_homed = parts.iter().any(|&at| is_homed(at));
        let mut is_used = std::vec![false; self.parts.len()];
        for id in sources {
            let source = self.layers.get(id)?;
            if source.drops_tombstones && !drops_tombstones {
                return None;
            }
            for &at in &source.parts {
                if core::mem::replace(&mut is_used[at as usize], true) || is_homed(at) && has_homed {
                    continue;
                }
                has_homed |= is_homed(at);
                parts.push(at);
            }
            if parts.len() > RECIPE_PARTS_MAX {
                return None;
            }
        }
        Some(parts)
    }
}

fn take<const LEN: usize>(bytes: &mut &[u8]) -> Option<[u8; LEN]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn take_offset(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(take(bytes)?)).ok()
}

fn take_counted<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_offset(bytes)?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}
