//! Builds layers of another publisher again, from layers of the published set and records of steps.

use super::publisher::SetPublisher;
use super::steps::{LayerRecipe, RecipePart};
use super::storage::{DiskStorage, Storage as _};
use crate::format::{HEADER_LEN, LayerHeader};
use crate::map::MappedFile;
use crate::merge::{MergeProgress, merge_parts};
use crate::reader::{Layer, LayerRecords};
use crate::set::manifest::LayerEntry;
use crate::set::{SetError, SetErrorKind};
use crate::verify::layer_digest;
use crate::writer::{HomedPrefixes, LayerWriter};
use core::ops::ControlFlow;
use std::io::{self, Seek, SeekFrom, Write};
use std::vec::Vec;

/// Bytes of each layer that may stay mapped after they were read.
const MAPPED_LEN_MAX: u64 = 1 << 20;
/// What is wrong with a recipe.
const OTHER_LAYER: &str = "the steps of the publisher give another layer than the MANIFEST names";

impl SetPublisher<DiskStorage> {
    /// Builds the layer of `entry` in the file `part` of the directory, which is replaced. The
    /// recipe has to be for the published set, and need not be trusted: the file stays only if its
    /// digest is that of the entry.
    ///
    /// # Errors
    /// When the recipe gives another layer, a system call fails, or `is_stopped` returned true.
    pub fn rebuild_layer(
        &self,
        part: &str,
        entry: &LayerEntry,
        recipe: &LayerRecipe<'_>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), SetError> {
        let (path, disk) = (self.stager.path(part), &*self.stager.storage);
        match disk.remove(part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SetError::io(path, "remove", error));
            }
            _ => {}
        }
        let built = self.build(part, entry, recipe, is_stopped).and_then(|header| {
            match header.file_len == entry.len && layer_digest(&header) == entry.digest {
                true => Ok(()),
                false => Err(SetError::new(&path, SetErrorKind::Refused(OTHER_LAYER))),
            }
        });
        built.inspect_err(|_| {
            // Only saves space: the next attempt replaces the file.
            let _ = disk.remove(part);
        })
    }

    fn build(
        &self,
        part: &str,
        entry: &LayerEntry,
        recipe: &LayerRecipe<'_>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<LayerHeader, SetError> {
        let path = self.stager.path(part);
        let refused = || SetError::new(&path, SetErrorKind::Refused(OTHER_LAYER));
        let fault = |error| SetError::new(&path, SetErrorKind::Build(error));
        let options = self.options(recipe.created_unix_ms).ok_or_else(refused)?;
        let mut layers = Vec::new();
        for part in &recipe.parts {
            layers.push(match part {
                RecipePart::Layer(entry) => self.stager.open_layers(core::slice::from_ref(entry))?.pop(),
                RecipePart::Records(_) | RecipePart::Homed(_) => None,
            });
        }
        let inputs = MergeInputs::of(recipe, &layers).ok_or_else(refused)?;
        let disk = &*self.stager.storage;
        let file = disk.create(part).map_err(|error| SetError::io(&path, "create", error))?;
        // The header is written twice: as zeros first.
        let len_max = entry.len.saturating_add(HEADER_LEN as u64);
        let file = self.stager.steady(file).map_err(|error| SetError::io(&path, "write", error))?;
        let out = BoundedFile { file, len_left: len_max };
        let out = LayerWriter::new(out, disk.dir(), options).map_err(fault)?;
        let MergeInputs { records, layers, homed } = inputs;
        let mut pages = MappedPages { forgotten: std::vec![0; layers.len()], layers };
        let progress = |merging: &MergeProgress<'_>| {
            pages.forget(merging);
            if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let merged = merge_parts(records, homed.as_ref(), !recipe.drops_tombstones, out, progress);
        merged.map(|(_, header)| header).map_err(fault)
    }
}

/// What a recipe merges.
struct MergeInputs<'l> {
    records: Vec<LayerRecords<'l>>,
    /// For each of these, the layer from which they come, if it is mapped.
    layers: Vec<Option<&'l Layer<MappedFile>>>,
    homed: Option<HomedPrefixes>,
}

impl<'l> MergeInputs<'l> {
    /// `layers` has the opened layer of each part that is one.
    fn of(recipe: &LayerRecipe<'l>, layers: &'l [Option<Layer<MappedFile>>]) -> Option<Self> {
        let mut inputs = Self { records: Vec::new(), layers: Vec::new(), homed: None };
        for (part, layer) in recipe.parts.iter().zip(layers) {
            let homed = match *part {
                RecipePart::Homed(list) => Some(HomedPrefixes::of_list(list)?),
                RecipePart::Records(bytes) => {
                    inputs.records.push(LayerRecords::of_bytes(bytes)?);
                    inputs.layers.push(None);
                    None
                }
                RecipePart::Layer(_) => {
                    let layer = layer.as_ref()?;
                    inputs.records.push(layer.records());
                    inputs.layers.push(Some(layer));
                    layer.homed().map(HomedPrefixes::of)
                }
            };
            inputs.homed = inputs.homed.or(homed);
        }
        Some(inputs)
    }
}

/// Mapped layers that are read from start to end, and up to where their pages were released.
struct MappedPages<'l> {
    layers: Vec<Option<&'l Layer<MappedFile>>>,
    forgotten: Vec<u64>,
}

impl MappedPages<'_> {
    fn forget(&mut self, merging: &MergeProgress<'_>) {
        for ((layer, from), to) in self.layers.iter().zip(&mut self.forgotten).zip(merging.read_to()) {
            if let Some(layer) = layer.filter(|_| to - *from >= MAPPED_LEN_MAX) {
                layer.bytes().forget(*from..to);
                *from = to;
            }
        }
    }
}

/// A file to which only so many bytes are written: what a recipe gives has no other bound.
struct BoundedFile<W> {
    file: W,
    len_left: u64,
}

impl<W: Write> Write for BoundedFile<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.len_left {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, OTHER_LAYER));
        }
        let len = self.file.write(bytes)?;
        self.len_left -= len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<W: Seek> Seek for BoundedFile<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
