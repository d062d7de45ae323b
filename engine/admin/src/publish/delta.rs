//! Builds a layer from changed records.

use handle_proto::{Handle, Values};
use handle_snapshot::set::manifest::LayerEntry;
use handle_snapshot::set::stager::NewLayer;
use handle_snapshot::set::storage::Storage;
use handle_snapshot::{
    BuildError, Builder, HomedPrefixes, Layer, LayerOptions, LayerPosition, LayerWriter, SetError, Stager,
    merge,
};
use handle_store::{ChangedRecord, StoreError, StoreSnapshot};
use std::io::{Cursor, Write as _};
use std::ops::ControlFlow;
use std::path::Path;

/// Leaves out records that exceed the limits of a layer, and counts them: one of them must not
/// block all others.
#[derive(Debug, Default)]
pub(super) struct UnfitFilter {
    count: u64,
}

impl UnfitFilter {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Adds a record unless it exceeds the limits of a layer; returns whether it was added.
    pub(super) fn add(
        &mut self,
        builder: &mut Builder<'_>,
        origin: u64,
        handle: &[u8],
        values: Values<'_>,
    ) -> Result<bool, BuildError> {
        match builder.add(origin, handle, values.iter()) {
            Err(BuildError::Record { why, .. }) => {
                self.count += 1;
                tracing::error!(handle = %Handle(handle), %why, "a record of the store cannot be published");
                Ok(false)
            }
            added => added.map(|()| true),
        }
    }
}

/// The changed records, in memory, as a layer.
#[derive(Debug)]
pub(super) struct DeltaLayer {
    bytes: Vec<u8>,
    header: handle_snapshot::format::LayerHeader,
    options: LayerOptions,
    /// Records that exceed the limits of a layer; their handles are shown as deleted.
    pub(super) left_out: u64,
}

impl DeltaLayer {
    /// Builds the layer; `homed` replaces the table of homed prefixes.
    pub(super) fn build(
        temp_dir: &Path,
        options: LayerOptions,
        changed: &[ChangedRecord],
        homed: Option<HomedPrefixes>,
    ) -> Result<Self, BuildError> {
        let mut builder = Builder::new(temp_dir, options);
        if let Some(homed) = homed {
            builder = builder.homed(homed);
        }
        let mut leaving = UnfitFilter::default();
        for (nth, changed) in (0..).zip(changed) {
            let is_there = match &changed.record {
                Some(record) => leaving.add(&mut builder, nth, &changed.handle, record.view().values)?,
                None => false,
            };
            if !is_there {
                match builder.delete(nth, &changed.handle) {
                    // The name itself exceeds the limits, so no layer contains it.
                    Err(BuildError::Record { .. }) => {}
                    deleted => deleted?,
                }
            }
        }
        let (bytes, header) = builder.finish(Cursor::new(Vec::new()))?;
        Ok(Self { bytes: bytes.into_inner(), header, options, left_out: leaving.count() })
    }

    pub(super) const fn len(&self) -> u64 {
        self.header.file_len
    }

    /// Writes the layer unchanged.
    pub(super) fn stage<S: Storage>(&self, stager: &Stager<S>) -> Result<NewLayer, SetError> {
        stager.stage(LayerPosition::Delta, |mut file, _| {
            file.write_all(&self.bytes)?;
            Ok((file, self.header))
        })
    }

    /// Writes the layer merged with the newest layers of the set.
    pub(super) fn stage_absorbing<S: Storage>(
        &self,
        stager: &Stager<S>,
        gone: &[LayerEntry],
        layers: &[Layer<S::Bytes>],
    ) -> Result<NewLayer, SetError> {
        stager.stage(LayerPosition::Absorbing(gone.to_vec()), |file, temp_dir| {
            let open = |bytes| Layer::open(bytes).expect("these are open already");
            let own = std::iter::once(open(self.bytes.as_slice()));
            let inputs: Vec<_> = own.chain(layers.iter().map(|layer| open(layer.as_bytes()))).collect();
            let out = LayerWriter::new(file, temp_dir, self.options)?;
            merge(&inputs, true, out, |_| ControlFlow::Continue(()))
        })
    }
}

/// The homed prefixes of the store.
pub(super) fn homed_prefixes(snapshot: &StoreSnapshot) -> Result<HomedPrefixes, StoreError> {
    let mut homed = HomedPrefixes::default();
    for prefix in snapshot.homed()? {
        homed.add(&prefix);
    }
    Ok(homed)
}
