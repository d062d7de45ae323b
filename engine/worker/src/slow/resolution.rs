//! What other services say about a handle, and the state of a request that waits for it.

use super::session_proof::SessionProof;
use handle_resolver::RefusalReason;
use std::sync::Arc;

/// What other services say about a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It has these public values, in wire form.
    Record {
        /// The values, one after the other.
        values: Arc<[u8]>,
        /// Their number.
        count: u16,
    },
    /// There is no such handle.
    NoHandle,
    /// This is the answer to a request that was
    /// [handed](super::missing_record::MissingRecord::relayed) to the responsible service: a
    /// message, envelope first, for the client.
    Relayed(Arc<[u8]>),
    /// Nothing, for this reason.
    Failed(RefusalReason),
}

/// The state of a job whose record is not in the cache.
#[derive(Debug)]
pub(crate) struct MissingState {
    pub(super) handle: Box<[u8]>,
    pub(super) is_authoritative: bool,
    pub(super) recursion_count: u8,
    /// Whether the request itself is handed to the responsible service.
    pub(super) is_relayed: bool,
    /// What the credential of the request proved. A MAC counts only once, so it is not checked
    /// again.
    pub(super) proof: SessionProof,
    /// Set when the request goes on.
    pub(super) resolution: Option<Resolution>,
}

impl MissingState {
    /// What the credential of the request proved.
    pub(crate) const fn proof(&self) -> SessionProof {
        self.proof
    }
}
