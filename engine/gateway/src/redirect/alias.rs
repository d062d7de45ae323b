//! The aliases that one request follows.

use super::{MissingReason, ProxyDecision, RefusalReason};
use handle_proto::{Handle, fold};

/// The handle of a request, and the handles that its aliases name.
#[derive(Clone, Debug)]
pub struct AliasChain {
    /// At least one.
    handles: Vec<Vec<u8>>,
    cache_s: u32,
}

impl AliasChain {
    /// A chain that begins, and so far ends, with the handle of the request.
    #[must_use]
    pub fn new(handle: &[u8]) -> Self {
        Self { handles: vec![handle.to_vec()], cache_s: u32::MAX }
    }

    /// The last handle.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        Handle(self.handles.last().map_or(&[], Vec::as_slice))
    }

    /// All handles, that of the request first.
    pub fn handles(&self) -> impl Iterator<Item = Handle<'_>> {
        self.handles.iter().map(|handle| Handle(handle))
    }

    /// Number of aliases that were followed.
    #[must_use]
    pub fn aliases_count(&self) -> usize {
        self.handles.len() - 1
    }

    /// The seconds for which all aliases of the chain may be cached.
    pub(super) const fn cache_s(&self) -> u32 {
        self.cache_s
    }

    /// Adds the handle that an alias names.
    ///
    /// # Errors
    /// The answer to the request, if the alias cannot be followed.
    pub(super) fn follow(
        &mut self,
        data: &[u8],
        cache_s: u32,
        aliases_max: usize,
    ) -> Result<(), ProxyDecision> {
        let target = data.trim_ascii();
        if target.is_empty() || str::from_utf8(target).is_err() {
            return Err(ProxyDecision::Refused(RefusalReason::AliasWithoutHandle));
        }
        if self.handles.iter().any(|handle| fold::eq(handle, target)) {
            return Err(ProxyDecision::NotFound(MissingReason::AliasLoop));
        }
        if self.aliases_count() >= aliases_max {
            return Err(ProxyDecision::NotFound(MissingReason::AliasChainTooLong));
        }
        self.handles.push(target.to_vec());
        self.cache_s = self.cache_s.min(cache_s);
        Ok(())
    }
}
