//! Reading one's own changes: the answer to a change waits until readers of this gateway see it.
//!
//! `handle-admin` answers when a change is durable; the set that has it is published and mapped
//! some milliseconds later. Its answer names a state of its store ([`StorePosition`]), and so does
//! each set. Waiting takes a permit and no thread. When the time is over, or there is no permit,
//! the change is still answered.

use crate::state::GatewayState;
use crate::upstream::Upstream;
use handle_proto::wire::admin::StorePosition;
use std::net::IpAddr;
use std::time::{Duration, Instant};

impl GatewayState {
    /// Completes when readers see the changes to `handles` by a client at `source`, but after
    /// `admin.visible_ms` at the latest. `position` is a state of the store that includes them.
    pub async fn until_visible(
        &self,
        source: IpAddr,
        handles: impl IntoIterator<Item = &[u8]>,
        position: Option<StorePosition>,
    ) {
        let settings = self.settings.current_shared();
        let timeout = Duration::from_millis(settings.admin.visible_ms.into());
        let take_permit = || {
            let waits = self.writing.admin.as_ref()?.visible_waits();
            waits.take(source, settings.admin.visible_waits()).ok().filter(|_| !timeout.is_zero())
        };
        if let Some(upstream) = &self.reading.upstream {
            let handles: Vec<Vec<u8>> = handles.into_iter().map(<[u8]>::to_vec).collect();
            forget(upstream, &handles);
            // The other service may show the change a little later, and its old answer be cached.
            if let Some(permit) = take_permit() {
                let upstream = upstream.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(timeout).await;
                    forget(&upstream, &handles);
                    drop(permit);
                });
            }
        }
        let (Some(set), Some(position)) = (&self.reading.set, position) else { return };
        if set.shows(position) != Some(false) || timeout.is_zero() {
            return;
        }
        let is_visible = match take_permit() {
            Some(_permit) => set.wait_for(position, Instant::now() + timeout).await,
            None => false,
        };
        if !is_visible {
            self.counters.changes_not_visible.add();
        }
    }
}

/// Removes the answers about `handles` from the cache.
fn forget(upstream: &Upstream, handles: &[Vec<u8>]) {
    handles.iter().for_each(|handle| upstream.client().cache.forget(handle));
}
