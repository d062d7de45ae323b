//! Certificates by ACME: ordered from an authority, kept in a directory, and renewed. RFC 8555.
//!
//! - [`config`]: the settings.
//! - [`challenges`]: how this process proves that it answers under a name.
//! - [`order`]: from an order to a certificate. [`client`]: its requests over HTTPS.
//! - [`store`]: the account and the certificate on disk.
//! - [`renewal`]: when the next order is made.
//! - [`state`]: what orders share with workers and operators.
//!
//! One thread makes the orders. It uses a stored certificate as long as possible, so an authority
//! that does not answer delays a renewal and nothing else.

pub mod challenges;
pub mod client;
pub mod config;
pub mod order;
pub mod renewal;
pub mod state;
pub mod store;

pub use config::{AcmeChallenge, AcmeConfig};

use crate::phase::{self, GatewayPhase};
use crate::state::GatewayState;
use crate::tls::TlsIdentity;
use crate::tls::certificate::TlsCertificate;
use handle_daemon::clock::now_unix_s;
use handle_daemon::text::listed;
use order::AcmeError;
use state::AcmeState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep, after which the time of day is read again: it may have been changed.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

impl AcmeState {
    /// A new certificate: from the authority, or one that another process has stored meanwhile.
    async fn attempt(
        &self,
        tls: &TlsIdentity,
        failures: u32,
        is_requested: bool,
    ) -> Result<TlsCertificate, AcmeError> {
        let _lock = self.store.lock()?;
        if !is_requested
            && let Ok(Some(stored)) = self.store.certificate()
            && let Some(certificate) = stored.open(tls.has_http2())
            && renewal::order_due_unix_s(Some((&stored, &certificate)), &self.config) > now_unix_s().into()
        {
            // Another process, which shares the directory, has renewed it.
            return Ok(certificate);
        }
        let limit = Duration::from_secs(self.config.order_s.into());
        let ordered = tokio::time::timeout(limit, order::order_certificate(self, failures)).await;
        self.challenges.clear();
        let stored = ordered.map_err(|_| AcmeError::Late(limit))??;
        let certificate = stored.open(tls.has_http2()).ok_or(AcmeError::Unusable)?;
        if !certificate.facts().is_some_and(|facts| facts.covers(&self.config.domains)) {
            return Err(AcmeError::OtherNames);
        }
        self.store.keep_certificate(&stored)?;
        Ok(certificate)
    }
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
    let mut next_unix_s = match acme.store.certificate() {
        Ok(Some(stored)) => match stored.open(tls.has_http2()) {
            Some(certificate) => renewal::order_due_unix_s(Some((&stored, &certificate)), &acme.config),
            None => 0,
        },
        Ok(None) | Err(_) => 0,
    };
    // An order that an operator has asked for is repeated until it succeeds, also where the
    // certificate in use is not due.
    let mut is_requested = false;
    loop {
        sleep_until(acme, next_unix_s).await;
        let failures = {
            let mut progress = acme.progress();
            is_requested |= std::mem::take(&mut progress.is_requested);
            progress.failures
        };
        state.counters.certificate_orders.add();
        next_unix_s = match acme.attempt(tls, failures, is_requested).await {
            Ok(certificate) => {
                is_requested = false;
                acme.failures.note::<AcmeError>(None, Instant::now());
                let expires_unix_s = certificate.facts().map(|facts| facts.expires_unix_s);
                tracing::info!(names = %listed(&acme.config.domains), expires_unix_s, "a certificate by ACME is in use");
                let next_unix_s = renewal::renewal_due_unix_s(certificate.facts(), &acme.config);
                tls.replace(certificate);
                let mut progress = acme.progress();
                (progress.failures, progress.last_error) = (0, None);
                next_unix_s
            }
            Err(error) => {
                let text = error.to_string();
                acme.failures.note(Some(&text), Instant::now());
                let random = u32::from_be_bytes(handle_auth::random());
                let failures = failures.saturating_add(1);
                let pause = renewal::pause(failures, error.is_rate_limit(), &acme.config, random);
                let mut progress = acme.progress();
                (progress.failures, progress.last_error) = (failures, Some(text));
                // Counted last: a reader that sees the count then also sees the error.
                state.counters.certificate_order_failures.add();
                u64::from(now_unix_s()) + pause.as_secs().max(1)
            }
        };
    }
}

/// Sleeps until that time, or until an operator asks for an order.
async fn sleep_until(acme: &AcmeState, next_unix_s: u64) {
    acme.progress().next_unix_s = next_unix_s;
    loop {
        let left = Duration::from_secs(next_unix_s.saturating_sub(now_unix_s().into()));
        if left.is_zero() || acme.progress().is_requested {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(left.min(SLEEP_MAX)) => {}
            () = acme.wake.notified() => {}
        }
    }
}
