//! Periodic tasks: sessions expire, disks are checked, and the transaction log is pruned.

use crate::state::AdminState;
use handle_daemon::clock::now_unix_ms;
use handle_session::SessionEndpoint;
use handle_store::{LogBounds, StoreConfig, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;

/// Interval at which expired sessions are removed; expired sessions cannot be used before their
/// removal either.
const SESSIONS_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which free disk space is checked.
const DISKS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the transaction log is searched for old entries.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of transactions that one commit drops from the log.
const PRUNE_COUNT: usize = 10_000;

/// Counts a turn of a periodic task that has met a bug. The task goes on with its next turn.
pub(crate) fn count_bug<T>(state: &AdminState, turn: &Result<T, JoinError>) {
    if turn.is_err() {
        state.service.counters.bugs.add();
    }
}

/// Removes expired sessions.
pub async fn expire_sessions(state: Arc<AdminState>) {
    let mut stopping = state.stopping();
    while tokio::time::timeout(SESSIONS_INTERVAL, stopping.wait_for(|&stops| stops)).await.is_err() {
        let expiring = Arc::clone(&state);
        let expire = move || expiring.service.proof.sessions().into_iter().for_each(SessionEndpoint::expire);
        count_bug(&state, &tokio::task::spawn_blocking(expire).await);
    }
}

/// Periodically checks free disk space, and reports the lines that the audit log left out.
pub async fn check_disks(state: Arc<AdminState>) {
    let mut stopping = state.stopping();
    loop {
        let checked = Arc::clone(&state);
        let check = tokio::task::spawn_blocking(move || {
            let audit = &checked.service.audit;
            let spaces = checked.disks.look(&checked.config());
            audit.set_disk_low(spaces.iter().any(|space| space.of == "audit" && space.is_low));
            audit.summarise_if_due();
        });
        count_bug(&state, &check.await);
        if tokio::time::timeout(DISKS_INTERVAL, stopping.wait_for(|&stops| stops)).await.is_ok() {
            return;
        }
    }
}

/// Periodically drops old transactions from the log, and the oldest removals.
pub async fn prune_log(state: Arc<AdminState>) {
    let mut stopping = state.stopping();
    loop {
        let pruning = Arc::clone(&state);
        let pruned = tokio::task::spawn_blocking(move || prune(&pruning)).await;
        count_bug(&state, &pruned);
        let has_more = match pruned {
            Ok(Ok(count)) => count >= PRUNE_COUNT,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot remove old transactions from the log");
                false
            }
            Err(_) => false,
        };
        let pause = if has_more { Duration::from_millis(100) } else { PRUNE_INTERVAL };
        if tokio::time::timeout(pause, stopping.wait_for(|&stops| stops)).await.is_ok() {
            return;
        }
    }
}

/// Drops transactions and removals beyond the configured bounds, in one commit each; returns the
/// larger count.
fn prune(state: &AdminState) -> Result<usize, StoreError> {
    let (store, config) = (&state.service.store, state.config());
    let StoreConfig { log_days, log_transactions, gone_names, .. } = config.store;
    let days_ms = |days: u32| now_unix_ms().saturating_sub(u64::from(days) * 86_400_000);
    let bounds = LogBounds {
        before_unix_ms: if log_days > 0 { days_ms(log_days) } else { 0 },
        transactions_max: (log_transactions > 0).then_some(log_transactions as u64),
    };
    let transactions = store.prune_log(bounds, PRUNE_COUNT)?;
    Ok(transactions.max(store.prune_removals(gone_names as u64, PRUNE_COUNT)?))
}
