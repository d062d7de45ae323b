//! Notices of the publisher of some prefixes. A notice says that there is a new set, and which
//! handles have changed. What is known about these counts as expired: the next request for a record
//! causes a question. If no server answers it, the expired record is shown. A notice without names
//! counts for all handles of these prefixes.

use crate::config::Config;
use crate::state::CacheState;
use anyhow::Context as _;
use handle_daemon::clock::now_unix_s;
use handle_daemon::notice::listener::{NoticeReceiver, NotifyConfig};
use handle_daemon::notice::{ChangedHandles, NoticeKey, PublicationNotice};
use handle_daemon::shutdown::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// What waits for notices.
#[derive(Debug)]
pub(crate) struct CacheNotices {
    state: Arc<CacheState>,
    shutdown: Arc<Shutdown>,
    /// The newest notice, also of an earlier connection.
    newest: Mutex<Option<PublicationNotice>>,
}

impl CacheNotices {
    pub(crate) fn new(state: &Arc<CacheState>, shutdown: &Arc<Shutdown>) -> Self {
        Self { state: Arc::clone(state), shutdown: Arc::clone(shutdown), newest: Mutex::default() }
    }
}

/// The key of notices, if they are configured.
///
/// # Errors
/// When its file cannot be used.
pub(crate) fn key(config: &Config) -> anyhow::Result<Option<NoticeKey>> {
    let file = config.notify.key_file.as_deref().filter(|_| !config.notify.address.is_empty());
    file.map(NoticeKey::read).transpose().context("`notify.key_file`")
}

impl NoticeReceiver for CacheNotices {
    fn config(&self) -> NotifyConfig {
        (*self.state.notify.load_full()).clone()
    }

    fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    fn note_connected(&self) {
        self.state.is_notified_now.store(true, Ordering::Relaxed);
    }

    fn note_failure(&self, _error: &str) {
        self.state.is_notified_now.store(false, Ordering::Relaxed);
        self.state.counters.notify_failures.add();
    }

    fn wants_names(&self) -> bool {
        true
    }

    fn take(&self, notice: PublicationNotice, changed: Option<&ChangedHandles>) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        // After the start, entries of an earlier process may be older than the set.
        if newest.replace(notice) != Some(notice) {
            self.state.counters.notices.add();
            self.state.take_notice(changed, now_unix_s());
        }
    }
}
