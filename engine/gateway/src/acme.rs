//! Certificates by ACME: ordered from an authority, kept in a directory, and renewed. RFC 8555.
//!
//! - [`config`]: the settings.
//! - `challenges`: how this process proves that it answers under a name.
//! - `order`: from an order to a certificate, with requests over HTTPS.
//! - `files`: the account and the certificate on disk.
//!
//! One thread makes the orders. It uses a stored certificate as long as possible, so an authority
//! that does not answer delays a renewal and nothing else.

mod challenges;
pub mod config;
mod files;
mod order;

pub use challenges::PendingChallenges;
pub use config::{AcmeChallenge, AcmeConfig};

use crate::failure_series::{FailureSeries, SeriesTexts};
use crate::phase::{self, GatewayPhase};
use crate::state::GatewayState;
use crate::tls::TlsIdentity;
use crate::tls::certificate::{CertificateFacts, TlsCertificate};
use crate::tls::trust::client_config;
use anyhow::{Context as _, ensure};
use files::{AcmeFiles, StoredCertificate};
use handle_daemon::clock::now_unix_s;
use handle_daemon::text::listed;
use instant_acme::ExternalAccountKey;
use order::AcmeHttp;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time before the expiry of a certificate at which it is renewed, but at most half of its
/// validity: a third of the usual 90 days, in which an operator can mend what fails.
const RENEWAL_BEFORE_S: u64 = 30 * 24 * 3600;
/// Pause after a failed order, which doubles with each further failure: authorities allow few
/// failures in an hour.
const PAUSE_MS_MIN: u64 = 120_000;
/// Longest pause between two orders that fail: four attempts in a day.
const PAUSE_MS_MAX: u64 = 21_600_000;
/// Time for a whole order, with the checks of all names.
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest sleep, after which the time of day is read again: it may have been changed.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Texts of the log about failed orders.
const TEXTS: SeriesTexts = SeriesTexts {
    failed: "no certificate by ACME; the order is repeated later",
    recovered: "certificates are issued by ACME again",
};

/// State of the certificate by ACME: what orders share with workers and operators.
pub struct AcmeState {
    config: AcmeConfig,
    http: AcmeHttp,
    external_account: Option<ExternalAccountKey>,
    challenges: PendingChallenges,
    files: AcmeFiles,
    failures: FailureSeries,
    progress: Mutex<OrderProgress>,
    /// An operator has asked for an order.
    requested: Notify,
}

/// The orders so far, for operators.
#[derive(Clone, Debug, Default)]
struct OrderProgress {
    /// Failures in a row.
    failures: u32,
    last_error: Option<String>,
    next_unix_s: u64,
}

impl fmt::Debug for AcmeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcmeState").field("config", &self.config).finish_non_exhaustive()
    }
}

impl AcmeState {
    /// Opens the files that `config` names, and the state directory, which is created if needed.
    ///
    /// # Errors
    /// One sentence with the file.
    pub fn open(config: &AcmeConfig) -> anyhow::Result<Self> {
        let tls = client_config(config.ca_file.as_deref()).context("`tls.acme.ca_file`")?;
        let external_account = config.external_account().context("cannot read the external account")?;
        let directory = config.state_directory.as_deref().unwrap_or_else(|| ".".as_ref());
        Ok(Self {
            http: AcmeHttp::new(tls),
            external_account,
            challenges: PendingChallenges::default(),
            files: AcmeFiles::open(directory).context("cannot use `tls.acme.state_directory`")?,
            failures: FailureSeries::with_texts(&config.directory, TEXTS),
            progress: Mutex::default(),
            requested: Notify::new(),
            config: config.clone(),
        })
    }

    /// The challenges that wait for the authority.
    #[must_use]
    pub const fn challenges(&self) -> &PendingChallenges {
        &self.challenges
    }

    /// The certificate of an earlier order, if it has not expired.
    ///
    /// # Errors
    /// When the file is there and cannot be read, as when other users may read it. A file with
    /// other content than a certificate is ignored with a warning: it is ordered again.
    pub fn stored_certificate(&self, has_http2: bool) -> anyhow::Result<Option<TlsCertificate>> {
        let stored = self.files.certificate(has_http2).context("cannot read the certificate by ACME")?;
        let certificate = stored.map(|stored| stored.certificate).filter(|certificate| {
            certificate.facts().is_some_and(|facts| u64::from(now_unix_s()) < facts.expires_unix_s)
        });
        if certificate.is_none() {
            tracing::warn!(
                directory = self.config.directory,
                "no certificate is stored; TLS handshakes are refused until it is issued by ACME"
            );
        }
        Ok(certificate)
    }

    /// Orders a certificate now, whether or not it is time for it.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    fn progress(&self) -> MutexGuard<'_, OrderProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The orders so far, for the control socket.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let OrderProgress { failures, last_error, next_unix_s } = self.progress().clone();
        json!({
            "directory": self.config.directory,
            "failures": failures,
            "last_error": last_error,
            "next_order_unix_s": next_unix_s,
        })
    }

    /// The time of the next order, in seconds since 1970: 0 without a certificate of this authority
    /// for these names.
    fn order_due_unix_s(&self, stored: Option<&StoredCertificate>) -> u64 {
        let stored = stored.filter(|stored| stored.directory == self.config.directory);
        let facts = stored.and_then(|stored| stored.certificate.facts());
        facts.filter(|facts| facts.covers(&self.config.domains)).map_or(0, renewal_due_unix_s)
    }

    /// A new certificate: from the authority, or one that another process has stored meanwhile.
    async fn attempt(
        &self,
        has_http2: bool,
        failures: u32,
        is_requested: bool,
    ) -> anyhow::Result<StoredCertificate> {
        let _lock = self.files.lock()?;
        if !is_requested
            && let Ok(Some(stored)) = self.files.certificate(has_http2)
            && self.order_due_unix_s(Some(&stored)) > now_unix_s().into()
        {
            // Another process, which shares the directory, has renewed it.
            return Ok(stored);
        }
        let ordered = tokio::time::timeout(ORDER_TIMEOUT, order::order_certificate(self, failures)).await;
        self.challenges.clear();
        let late = || format!("the order has taken more than {} s", ORDER_TIMEOUT.as_secs());
        let bytes = ordered.with_context(late)??;
        let ordered = StoredCertificate::decode(&bytes, has_http2)
            .context("the certificate of the authority cannot be used with its key")?;
        let facts = ordered.certificate.facts();
        let has_all = facts.is_some_and(|facts| facts.covers(&self.config.domains));
        ensure!(has_all, "the certificate of the authority does not have all names");
        self.files.keep_certificate(&bytes)?;
        Ok(ordered)
    }

    /// Sleeps until that time, or until an operator asks for an order. Returns whether that was the
    /// reason.
    async fn sleep_until(&self, next_unix_s: u64) -> bool {
        loop {
            let left = Duration::from_secs(next_unix_s.saturating_sub(now_unix_s().into()));
            tokio::select! {
                biased;
                () = self.requested.notified() => return true,
                () = tokio::time::sleep(left.min(SLEEP_MAX)) => {}
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}

/// The time of the renewal of a certificate, in seconds since 1970.
fn renewal_due_unix_s(facts: &CertificateFacts) -> u64 {
    let validity_s = facts.expires_unix_s.saturating_sub(facts.begins_unix_s);
    facts.expires_unix_s - RENEWAL_BEFORE_S.min(validity_s / 2)
}

/// The pause after so many failures in a row: it doubles with each, and `random` makes it up to a
/// quarter shorter or longer, so that many processes do not come back at the same time.
fn pause(failures: u32, is_rate_limit: bool, random: u32) -> Duration {
    let factor = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    let doubled_ms = PAUSE_MS_MIN.saturating_mul(factor).min(PAUSE_MS_MAX);
    let whole_ms = if is_rate_limit { PAUSE_MS_MAX } else { doubled_ms };
    let part_ms = whole_ms / 2 * u64::from(random) / u64::from(u32::MAX);
    Duration::from_millis(whole_ms - whole_ms / 4 + part_ms)
}

/// Keeps the certificate by ACME of a gateway current until it stops.
pub fn run(state: &Arc<GatewayState>) {
    let Some((tls, acme)) = state.tls.as_ref().and_then(|tls| Some((tls, tls.acme()?))) else { return };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "cannot start the runtime for ACME"),
    };
    runtime.block_on(async {
        tokio::select! {
            () = keep_certificate(state, tls, acme) => {}
            () = phase::reached(state.phase(), GatewayPhase::HandedOver) => {}
        }
    });
    // A lookup of a name may still run on a thread of its own.
    runtime.shutdown_background();
}

async fn keep_certificate(state: &GatewayState, tls: &TlsIdentity, acme: &AcmeState) {
    let stored = acme.files.certificate(tls.has_http2()).ok().flatten();
    let mut next_unix_s = acme.order_due_unix_s(stored.as_ref());
    let (mut failures, mut is_requested) = (0_u32, false);
    loop {
        acme.progress().next_unix_s = next_unix_s;
        // An order that an operator has asked for is repeated until it succeeds, also where the
        // certificate in use is not due.
        is_requested |= acme.sleep_until(next_unix_s).await;
        state.counters.certificate_orders.add();
        match acme.attempt(tls.has_http2(), failures, is_requested).await {
            Ok(issued) => {
                next_unix_s = acme.order_due_unix_s(Some(&issued));
                (failures, is_requested) = (0, false);
                acme.failures.note::<&str>(None, Instant::now());
                let expires_unix_s = issued.certificate.facts().map(|facts| facts.expires_unix_s);
                tracing::info!(names = %listed(&acme.config.domains), expires_unix_s, "a certificate by ACME is in use");
                tls.replace(issued.certificate);
                *acme.progress() = OrderProgress { next_unix_s, ..OrderProgress::default() };
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                let random = u32::from_be_bytes(handle_auth::random());
                let pause = pause(failures, order::is_rate_limit(&error), random);
                next_unix_s = u64::from(now_unix_s()) + pause.as_secs();
                let text = format!("{error:#}");
                acme.failures.note(Some(&text), Instant::now());
                *acme.progress() = OrderProgress { failures, last_error: Some(text), next_unix_s };
                // Counted last: a reader that sees the count then also sees the error.
                state.counters.certificate_order_failures.add();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 24 * 3600;

    #[test]
    fn a_certificate_is_renewed_before_it_expires() {
        let due_day = |days: u64| {
            let facts = CertificateFacts {
                names: Vec::new(),
                begins_unix_s: 1000 * DAY_S,
                expires_unix_s: (1000 + days) * DAY_S,
            };
            (renewal_due_unix_s(&facts) - facts.begins_unix_s) / DAY_S
        };
        assert_eq!((due_day(90), due_day(60), due_day(6)), (60, 30, 3));
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_vary_by_a_quarter() {
        let middle_s = |failures, is_rate_limit| pause(failures, is_rate_limit, u32::MAX / 2).as_secs_f64();
        for (failures, expected_s) in [(1, 120.0), (2, 240.0), (4, 960.0), (9, 21_600.0), (90, 21_600.0)] {
            assert!((middle_s(failures, false) - expected_s).abs() < 0.1, "{failures}");
        }
        assert!((middle_s(1, true) - 21_600.0).abs() < 0.1);
        assert_eq!(pause(1, false, 0), Duration::from_secs(90));
        assert_eq!(pause(1, false, u32::MAX), Duration::from_secs(150));
    }
}
