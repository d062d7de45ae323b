//! The administration service, which checks permissions and makes changes.
//!
//! The gateway has no rights of its own. It speaks the handle protocol to `handle-admin`, as every
//! administrator does, and answers its challenges with the credentials of the HTTP client.

pub mod config;

use crate::callers::CallerService;
use crate::failure_series::FailureSeries;
use anyhow::ensure;
use config::AdminConfig;
use handle_auth::PublicKey;
use handle_client::Allowances;
use handle_client::administration::{Administrator, AskError, ClientIdentity};
use handle_daemon::permits::{PermitLimits, SourcePermit, SourcePermits};
use handle_daemon::site::SiteRecord;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl AdminConfig {
    /// Requests that wait for the service, of all sources and of one.
    #[must_use]
    pub const fn request_limits(&self) -> PermitLimits {
        PermitLimits { all: self.requests, per_holder: self.requests.div_ceil(4) }
    }

    /// Limits on the answers that wait until their change is visible. They wait for longer than
    /// requests do, and take nothing from the service.
    #[must_use]
    pub const fn visible_waits(&self) -> PermitLimits {
        PermitLimits { all: 16 * self.requests, per_holder: 4 * self.requests }
    }

    /// Whether the service is on another host.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.address.is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }
}

/// Whether the service cannot be reached, or takes too long. Other errors may be due to a request.
pub(crate) const fn is_unreachable(kind: ErrorKind) -> bool {
    use ErrorKind as Kind;
    matches!(kind, Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable)
        || matches!(kind, Kind::NotFound | Kind::PermissionDenied)
        // A blocking socket fails with `WouldBlock` when its time is over.
        || matches!(kind, Kind::TimedOut | Kind::WouldBlock)
}

/// The message for callers if no socket is configured.
pub(crate) const NO_BULK: &str = "This gateway does not take changes of many records";

/// Time after which a request that waits for a permit asks for one again.
const PERMIT_PAUSE: Duration = Duration::from_millis(20);

/// Why the service did not answer.
#[derive(Debug)]
pub enum ServiceError {
    /// As many requests as allowed wait for it.
    Busy,
    /// The request failed.
    Ask(AskError),
    /// The request met a bug.
    Bug,
}

/// The administration service of this site.
#[derive(Debug)]
pub struct AdministrationService {
    address: SocketAddr,
    socket: Option<PathBuf>,
    timeout: Duration,
    /// The key of the service, if it is on another host.
    key: Option<PublicKey>,
    permits: SourcePermits,
    limits: PermitLimits,
    /// Answers that go on for as long as their clients read them.
    streams: SourcePermits,
    /// Answers that wait until their change is visible.
    visible_waits: SourcePermits,
    answer_len_max: usize,
    callers: Option<Arc<CallerService>>,
    failures: FailureSeries,
    bulk_failures: FailureSeries,
}

impl AdministrationService {
    /// The service that `config` names, if it names one.
    ///
    /// # Errors
    /// When the site record has no usable key for a service on another host.
    pub fn open(config: &AdminConfig, site: Option<&SiteRecord>) -> anyhow::Result<Option<Self>> {
        let Some(address) = config.address else { return Ok(None) };
        let key = match config.is_remote() {
            false => None,
            true => {
                let key = site.and_then(SiteRecord::server);
                let key = key.and_then(|server| PublicKey::from_record(server.public_key).ok());
                ensure!(
                    key.is_some(),
                    "`admin.address` is on another host, and the site record has no usable key"
                );
                key
            }
        };
        let timeout = Duration::from_millis(config.answer_ms.into());
        let limits = config.request_limits();
        let permits = SourcePermits::default();
        let callers = config.socket.as_deref().map(|socket| Arc::new(CallerService::new(socket, timeout)));
        let answer_len_max = config.answer_bytes;
        let socket = config.socket.clone();
        let path = socket.as_deref().unwrap_or(Path::new("-"));
        let (failures, bulk_failures) = (FailureSeries::new(address), FailureSeries::new(path.display()));
        Ok(Some(Self {
            address,
            socket,
            timeout,
            key,
            permits,
            limits,
            streams: SourcePermits::default(),
            visible_waits: SourcePermits::default(),
            answer_len_max,
            callers,
            failures,
            bulk_failures,
        }))
    }

    /// The service that verifies callers, if its socket is configured.
    #[must_use]
    pub const fn callers(&self) -> Option<&Arc<CallerService>> {
        self.callers.as_ref()
    }

    /// Runs `work` for a client at `source` on a blocking thread, within the limits on requests.
    ///
    /// # Errors
    /// When too many requests are waiting.
    pub async fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let Ok(permit) = self.permits.take(source, self.limits) else { return Err(ServiceError::Busy) };
        // The permit belongs to the work, which goes on when the client has gone away.
        let work = move || {
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| ServiceError::Bug)
    }

    /// Does `work`, which waits for the service without a thread, for a client at `source`, within
    /// the limits on requests. It goes on, with its permit, when the client has gone
    /// away.
    ///
    /// # Errors
    /// When too many requests are waiting.
    pub async fn perform<T: Send + 'static>(
        &self,
        source: IpAddr,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let Ok(permit) = self.permits.take(source, self.limits) else { return Err(ServiceError::Busy) };
        let work = async move {
            let _permit = permit;
            work.await
        };
        tokio::spawn(work).await.map_err(|_| ServiceError::Bug)
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its local socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Timeout for each answer.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A permit among the requests to the service, for a client at `source`; `None` if all are
    /// taken.
    #[must_use]
    pub fn permit(&self, source: IpAddr) -> Option<SourcePermit> {
        self.permits.take(source, self.limits).ok()
    }

    /// A permit among the answers that go on for as long as their clients read them, for a client
    /// at `source`. There are as many as for requests, which do not wait for clients.
    #[must_use]
    pub fn stream_permit(&self, source: IpAddr) -> Option<SourcePermit> {
        self.streams.take(source, self.limits).ok()
    }

    /// Waits for a permit among the requests to the service, for a client at `source`. `None` if
    /// there is none for as long as an answer may take.
    pub async fn wait_for_permit(&self, source: IpAddr) -> Option<SourcePermit> {
        let since = Instant::now();
        loop {
            match self.permit(source) {
                None if since.elapsed() < self.timeout => tokio::time::sleep(PERMIT_PAUSE).await,
                permit => return permit,
            }
        }
    }

    /// The answers that wait until their change is visible.
    #[must_use]
    pub const fn visible_waits(&self) -> &SourcePermits {
        &self.visible_waits
    }

    /// Maximum length of the answer to a forwarded message.
    #[must_use]
    pub const fn answer_len_max(&self) -> usize {
        self.answer_len_max
    }

    /// A client of the service with this identity.
    fn client(&self, identity: Option<Arc<ClientIdentity>>) -> Administrator {
        let mut client = Administrator::new(self.address, self.timeout);
        match &self.key {
            Some(key) => {
                client.require_signatures(key.clone());
                client.use_sessions(Some(0));
            }
            // Messages stay on this host.
            None => client.allow(Allowances { cleartext_secrets: true, ..Allowances::NONE }),
        }
        client.identify(identity);
        client
    }

    /// Runs `work` with a client of the service that has this identity, for a client at `source`,
    /// on a blocking thread.
    ///
    /// # Errors
    /// When too many requests wait, or the service does not answer.
    pub async fn ask<T: Send + 'static>(
        &self,
        source: IpAddr,
        identity: Option<Arc<ClientIdentity>>,
        work: impl FnOnce(&mut Administrator) -> Result<T, AskError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let mut client = self.client(identity);
        client.pass_on_for(source);
        let worked = self.run(source, move || {
            let worked = work(&mut client);
            Administrator::end_sessions([&mut client]);
            worked
        });
        let worked = worked.await?;
        match &worked {
            Err(error @ (AskError::Connect(_) | AskError::Late)) => self.note_failure(error),
            Err(error) => tracing::debug!(%error, "a request to the administration service failed"),
            Ok(_) => self.note_answer(),
        }
        worked.map_err(ServiceError::Ask)
    }

    /// Logs that the service does not answer, once for a series of failures.
    fn note_failure(&self, error: &impl Display) {
        self.failures.note(Some(error), Instant::now());
    }

    /// Logs that the service answers again.
    fn note_answer(&self) {
        self.failures.note(None::<&str>, Instant::now());
    }

    /// The failures of changes of many records.
    pub(crate) const fn bulk_failures(&self) -> &FailureSeries {
        &self.bulk_failures
    }

    /// Runs `exchange`, which opens its own connection, for a client at `source`, within the limits
    /// on requests and time.
    ///
    /// # Errors
    /// When too many requests wait, or the exchange fails or takes too long.
    pub async fn exchange<T>(
        &self,
        source: IpAddr,
        exchange: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let Ok(_permit) = self.permits.take(source, self.limits) else {
            return Err(ErrorKind::ResourceBusy.into());
        };
        let exchanged = tokio::time::timeout(self.timeout, exchange).await;
        let exchanged = exchanged.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        match &exchanged {
            Err(error) if is_unreachable(error.kind()) => self.note_failure(error),
            // The message may be the cause.
            Err(error) => tracing::debug!(%error, "handle-admin did not answer a message"),
            Ok(_) => self.note_answer(),
        }
        exchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver};

    fn service() -> AdministrationService {
        let address = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        let config = AdminConfig { address, requests: 1, ..AdminConfig::default() };
        AdministrationService::open(&config, None).unwrap().unwrap()
    }

    /// Starts a request, which the client gives up while its work goes on.
    async fn give_up<T>(request: impl Future<Output = Result<T, ServiceError>>) {
        let given_up = tokio::time::timeout(Duration::from_millis(20), request).await;
        assert!(given_up.is_err(), "the work has not ended");
    }

    async fn until_free(service: &AdministrationService, source: IpAddr) {
        let started = std::time::Instant::now();
        while !matches!(service.run(source, || ()).await, Ok(())) {
            assert!(started.elapsed() < Duration::from_secs(10), "the place is not given back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn a_request_that_is_given_up_keeps_its_permit_until_its_work_has_ended() {
        let (service, source) = (service(), IpAddr::from([192, 0, 2, 1]));
        let waits = |release: Receiver<()>| assert!(release.recv().is_err());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (release, released) = mpsc::channel();
            give_up(service.run(source, move || waits(released))).await;
            assert!(matches!(service.run(source, || ()).await, Err(ServiceError::Busy)));
            drop(release);
            until_free(&service, source).await;
            let (release, released) = mpsc::channel();
            give_up(service.ask(source, None, move |_| {
                waits(released);
                Ok(())
            }))
            .await;
            assert!(matches!(service.ask(source, None, |_| Ok(())).await, Err(ServiceError::Busy)));
            drop(release);
            until_free(&service, source).await;
        });
    }

    /// Whether a further failure would be logged.
    fn would_log(service: &AdministrationService) -> bool {
        service.failures.note(Some("refused"), Instant::now())
    }

    #[test]
    fn a_service_that_cannot_be_reached_is_logged_once_and_a_full_table_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let source = IpAddr::from([127, 0, 0, 1]);
            let fail = |kind: ErrorKind| async move { Err::<(), _>(io::Error::from(kind)) };
            let unreachable = service();
            unreachable.exchange(source, fail(ErrorKind::ConnectionRefused)).await.unwrap_err();
            assert!(!would_log(&unreachable), "it is logged already");
            unreachable.exchange(source, async { Ok(()) }).await.unwrap();
            assert!(!unreachable.failures.note(None::<&str>, Instant::now()), "its end is logged already");
            let late = service();
            late.ask(source, None, |_| Err::<(), _>(AskError::Late)).await.unwrap_err();
            assert!(!would_log(&late), "it is logged already");
            let full = service();
            let permit = full.permit(source).unwrap();
            let busy = full.exchange(source, fail(ErrorKind::ConnectionRefused)).await.unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
            drop(permit);
            full.exchange(source, fail(ErrorKind::FileTooLarge)).await.unwrap_err();
            assert!(would_log(&full), "neither a full table nor a request that fails is logged");
        });
    }
}
