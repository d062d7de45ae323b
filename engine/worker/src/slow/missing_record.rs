//! A request that waits, outside of all threads, for a record that is not in the cache.

use super::SlowPath;
use super::queue::SlowJob;
use super::resolution::{MissingState, Resolution};
use handle_auth::source::RequestOrigin;
use handle_proto::Handle;
use handle_resolver::RefusalReason;
use std::net::IpAddr;
use std::sync::Arc;

/// A request that waits for the record of a handle. If it is dropped, the client is told that no
/// server has answered.
#[derive(Debug)]
pub struct MissingRecord {
    path: Arc<SlowPath>,
    /// Always there, until it is settled.
    job: Option<Box<SlowJob>>,
}

impl MissingRecord {
    /// Wraps a job with a [`MissingState`].
    pub(crate) fn new(path: &Arc<SlowPath>, job: Box<SlowJob>) -> Self {
        Self { path: Arc::clone(path), job: Some(job) }
    }

    fn state(&self) -> Option<&MissingState> {
        self.job.as_ref()?.missing.as_deref()
    }

    /// The handle, as the client spelt it.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        Handle(self.state().map_or(&[], |state| &state.handle))
    }

    /// Whether the client asks for the answer of a primary site, past all caches.
    #[must_use]
    pub fn is_authoritative(&self) -> bool {
        self.state().is_some_and(|state| state.is_authoritative)
    }

    /// Number of servers that the request has passed through, at most
    /// [`SERVER_RECURSION_MAX`](handle_proto::limit::SERVER_RECURSION_MAX) - 1.
    #[must_use]
    pub fn recursion_count(&self) -> u8 {
        self.state().map_or(0, |state| state.recursion_count)
    }

    /// The request, envelope first, if the responsible service is to answer it itself. The handle
    /// is empty if it answers a challenge.
    #[must_use]
    pub fn relayed(&self) -> Option<&[u8]> {
        let job = self.job.as_ref()?;
        job.missing.as_ref().filter(|state| state.is_relayed).map(|_| &job.request[..])
    }

    /// The sender of the request.
    #[must_use]
    pub fn origin(&self) -> Option<RequestOrigin> {
        Some(self.job.as_ref()?.route.origin())
    }

    /// The address of the client.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        Some(self.origin()?.ip)
    }

    /// Goes on with the request.
    pub fn settle(mut self, resolution: Resolution) {
        self.finish(resolution);
    }

    fn finish(&mut self, resolution: Resolution) {
        let Some(mut job) = self.job.take() else { return };
        if let Some(state) = &mut job.missing {
            state.resolution = Some(resolution);
        }
        self.path.queues.resume(job);
    }
}

impl Drop for MissingRecord {
    fn drop(&mut self) {
        self.finish(Resolution::Failed(RefusalReason::NotResolved));
    }
}
