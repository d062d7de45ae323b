//! The position of a mirror in the streams of one server of a primary. It is in the store, and
//! changes in the commits that change the records.

use handle_proto::limit::CLOCK_AHEAD_MS_MAX;
use handle_store::{StoreError, Transaction};
use serde::{Deserialize, Serialize};

/// The position with one server of a primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorPosition {
    /// Which records are taken: see [`MirrorScope::describe`](super::scope::MirrorScope::describe).
    pub scope: String,
    /// The last transaction of the primary that was applied or left out.
    pub last_id: u64,
    /// Time up to which all transactions have been applied, by the clock of the primary, in
    /// milliseconds since 1970; 0 before the first complete dump. It is given back to the primary,
    /// and decides nothing here but whether an older dump is a replay. A time that is too far
    /// ahead of the clock of this machine is not stored: see [`believed`](Self::believed).
    pub complete_unix_ms: u64,
    /// When all transactions had last been applied, by the clock of this machine, in milliseconds
    /// since 1970; 0 if not known.
    #[serde(default)]
    pub contact_unix_ms: u64,
    /// Whether all records have to be requested.
    pub needs_dump: bool,
    /// Whether records may be as of different moments: a stream of transactions has been applied
    /// in part. A transaction comes with the values that the record has when it is sent, so all
    /// records are as of one moment only at the end of a stream.
    #[serde(default)]
    pub is_partial: bool,
    /// The epoch of the lease of the process that follows, of several over one database. Another
    /// one makes no more changes.
    #[serde(default)]
    pub epoch: u64,
    /// The dump in progress.
    pub dump: Option<DumpProgress>,
    /// When the mirror was promoted, in milliseconds since 1970. From then on, nothing is taken
    /// from this primary.
    pub promoted_unix_ms: Option<u64>,
    /// Whether the promotion has still to change the site record, which is a file beside the store.
    /// What was interrupted there is completed at the next start.
    #[serde(default)]
    pub site_is_pending: bool,
}

/// The progress of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpProgress {
    /// The last transaction of this store before the dump.
    pub begun_id: u64,
    /// Whether the log of this store has the changes of the dump. The log starts again after a
    /// first dump.
    pub is_logged: bool,
    /// The last transaction of the primary that the dump is certain to have, and its time there;
    /// once it is known.
    pub source: Option<(u64, u64)>,
    /// When the dump was requested, by the clock of this machine, in milliseconds since 1970.
    #[serde(default)]
    pub contact_unix_ms: u64,
    /// The last item: its kind, as in a request to continue, and its name.
    pub after: Option<(i32, Vec<u8>)>,
    /// The step.
    pub step: MirrorDumpStep,
    /// Records so far.
    pub records: u64,
    /// Records from before the dump that it has not replaced. With none, nothing has to be looked
    /// for that the dump did not name. `None` if the dump has begun without counting them.
    #[serde(default)]
    pub older_left: Option<u64>,
}

/// The steps of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MirrorDumpStep {
    /// Items are being received.
    #[default]
    Receiving,
    /// All items are here. Records that it did not name are removed; those up to this name have
    /// been looked at.
    Removing(Option<Vec<u8>>),
    /// What the dump has named is forgotten.
    Clearing,
}

impl MirrorPosition {
    /// The position of a mirror that has nothing yet.
    #[must_use]
    pub fn new(scope: String) -> Self {
        Self { scope, needs_dump: true, ..Self::default() }
    }

    /// Reads the position with `primary`.
    ///
    /// # Errors
    /// When the store cannot be read, or is damaged.
    pub fn read(transaction: &Transaction<'_>, primary: &str) -> Result<Option<Self>, StoreError> {
        let stored = transaction.mirror_position(primary)?;
        stored.map(|stored| Self::decode(&stored)).transpose()
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn decode(stored: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(stored)
            .map_err(|_| StoreError::Damaged("the position of a mirror does not decode"))
    }

    /// Writes the position with `primary`, unless the mirror has been promoted meanwhile.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn write(&self, transaction: &mut Transaction<'_>, primary: &str) -> Result<(), StoreError> {
        let stored = serde_json::to_vec(self);
        let stored = stored.map_err(|_| StoreError::Damaged("the position of a mirror does not encode"))?;
        transaction.set_mirror_position(primary, &stored, self.is_held())
    }

    /// Whether nothing may be published now: not all records are here, or they are as of different
    /// moments.
    const fn is_held(&self) -> bool {
        let is_new = self.is_followed() && !self.has_been_complete();
        is_new || self.dump.is_some() || self.is_partial
    }

    /// The time of the primary that is stored for `unix_ms`: the time of this machine in place of
    /// one that is too far ahead of it.
    #[must_use]
    pub const fn believed(unix_ms: u64, now_unix_ms: u64) -> u64 {
        if unix_ms > now_unix_ms.saturating_add(CLOCK_AHEAD_MS_MAX) { now_unix_ms } else { unix_ms }
    }

    /// Whether all records of the primary have been here once.
    #[must_use]
    pub const fn has_been_complete(&self) -> bool {
        self.complete_unix_ms > 0
    }

    /// Whether this primary is followed.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        self.promoted_unix_ms.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip_and_damage_is_an_error() {
        let dump = DumpProgress {
            begun_id: 7,
            is_logged: true,
            source: Some((u64::MAX, 5)),
            contact_unix_ms: 6,
            after: Some((2, b"10.1/\xff\0".to_vec())),
            step: MirrorDumpStep::Removing(Some(b"x".to_vec())),
            records: 9,
            older_left: Some(3),
        };
        for dump in [None, Some(dump.clone()), Some(DumpProgress { step: MirrorDumpStep::Clearing, ..dump })]
        {
            let position = MirrorPosition { dump, last_id: 3, ..MirrorPosition::new("all".to_owned()) };
            let stored = serde_json::to_vec(&position).unwrap();
            assert_eq!(MirrorPosition::decode(&stored).unwrap(), position);
            assert!((0..stored.len()).all(|len| MirrorPosition::decode(&stored[..len]).is_err()));
        }
    }
}
