//! The pages of [`handle_console`] in this process: which of them are served, and what the process
//! does for them.

mod handover;
mod sign_in;

use crate::administration::ServiceError;
use crate::api::listing;
use crate::body_collection::read_body;
use crate::caller_sessions;
use crate::connections::request_body::RequestBody;
use crate::pages::{LANGUAGES, PageFrame, language_of};
use crate::peer::HttpPeer;
use crate::proxy::{base, redirect_base};
use crate::refusal::refuse_method;
use crate::reply::GatewayResponse;
use crate::route::{Route, RouteGroup};
use crate::sessions::SessionId;
use crate::state::GatewayState;
use crate::stream::ResponseBody;
use handle_client::administration::{Administrator, AskError, ClientIdentity};
use handle_console::admin_pages;
use handle_console::host::{
    ServiceFailure, SignInProof, SignInRefusal, SignInSession, UploadMode, UploadOutcome, UploadRecord,
};
use handle_console::registration::{Registrations, applicant_pages};
use handle_console::reply::MethodRefusal;
use handle_console::request::RateNetworks;
use handle_console::{ConsoleHost, ConsoleRequest};
use handle_daemon::metrics::EventCounter;
use handle_daemon::permits::SourcePermit;
use handle_proto::ResponseCode;
use handle_proto::wire::admin::StorePosition;
use hyper::StatusCode;
use hyper::header;
use hyper::http::request::Parts;
use std::net::IpAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Whether administration pages are served.
#[must_use]
pub fn has_admin_pages(state: &GatewayState) -> bool {
    let has_callers = || caller_sessions::service(state).is_some();
    let settings = state.settings.current();
    let has_tls = state.tls.is_some() || settings.proxies.credentials;
    settings.admin_pages.enabled && has_tls && has_callers()
}

/// Whether pages for applicants are served.
#[must_use]
pub fn has_applicant_pages(state: &GatewayState) -> bool {
    state.writing.registrations.is_some() && state.settings.current().admin_pages.enabled
}

/// Answers a request for a page of the console.
pub async fn answer(
    state: &GatewayState,
    peer: HttpPeer,
    parts: &Parts,
    route: Route,
    body: RequestBody,
) -> GatewayResponse {
    let settings = state.settings.current_shared();
    // Pages for applicants need TLS of this process itself.
    let is_applicant = matches!(route.group(), RouteGroup::Applicant(_));
    let is_https = if is_applicant { peer.is_tls } else { peer.is_https };
    let base = base(parts, is_https, &settings.proxy);
    let accepted = parts.headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let language = accepted.map_or(&LANGUAGES[0], language_of);
    let rates = &settings.request_rate;
    let networks = RateNetworks { ipv4_bits: rates.ipv4_bits, ipv6_bits: rates.ipv6_bits };
    let is_exempt = state.settings.networks().exempt.contains(peer.address);
    let head = ConsoleRequest {
        parts,
        address: peer.address,
        is_confidential: if is_applicant { peer.is_tls } else { peer.is_confidential },
        frame: PageFrame { language, service: &settings.pages.service_name, base: &base },
        redirect_base: redirect_base(&base, &settings.proxy),
        admin_pages: &settings.admin_pages,
        registration: &settings.registration,
        rate_networks: (!is_exempt).then_some(networks),
    };
    let answered = match route.group() {
        RouteGroup::Admin(page) => admin_pages::answer(state, &head, page, body).await,
        RouteGroup::Applicant(page) => applicant_pages::answer(state, &head, page, body).await,
        RouteGroup::Api | RouteGroup::Search | RouteGroup::Proxy => Err(MethodRefusal),
    };
    match answered {
        Ok(response) => response.map(ResponseBody::from),
        Err(MethodRefusal) => refuse_method(route, &parts.method),
    }
}

impl From<ServiceError> for ServiceFailure {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Busy => Self::Busy,
            ServiceError::Ask(_) | ServiceError::Bug => Self::Failed,
        }
    }
}

impl ConsoleHost for GatewayState {
    type Body = RequestBody;
    type Reservation = SourcePermit;

    async fn read_body(
        &self,
        source: IpAddr,
        body: RequestBody,
        len_max: usize,
    ) -> Result<(Zeroizing<Vec<u8>>, SourcePermit), StatusCode> {
        read_body(self, source, body, len_max).await
    }

    async fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ServiceFailure> {
        let Some(admin) = &self.writing.admin else { return Err(ServiceFailure::Busy) };
        Ok(admin.run(source, work).await?)
    }

    async fn ask<T: Send + 'static>(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        work: impl FnOnce(&mut Administrator) -> Result<T, AskError> + Send + 'static,
    ) -> Result<T, ServiceFailure> {
        let Some(admin) = &self.writing.admin else { return Err(ServiceFailure::Busy) };
        Ok(admin.ask(source, Some(Arc::clone(identity)), work).await?)
    }

    async fn list(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        record: Vec<u8>,
    ) -> Result<(ResponseCode, Vec<String>), ServiceFailure> {
        self.ask(source, identity, move |client| listing::of_prefix(client, &record)).await
    }

    async fn put_records(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        records: Vec<UploadRecord>,
        mode: UploadMode,
    ) -> UploadOutcome {
        handover::put_records(self, source, identity, records, mode).await
    }

    async fn until_visible(&self, source: IpAddr, handle: &[u8], position: Option<StorePosition>) {
        self.until_visible(source, [handle], position).await;
    }

    async fn open_session(&self, source: IpAddr) -> Option<SignInSession> {
        let session = caller_sessions::open(self, source).await?;
        Some(SignInSession { id: session.id.secret_text(), nonce: session.nonce.to_vec() })
    }

    fn find_session(&self, id: &str) -> Option<Arc<ClientIdentity>> {
        SessionId::parse(id).and_then(|id| caller_sessions::find(self, id)?.identity)
    }

    async fn sign_in(&self, source: IpAddr, proof: SignInProof<'_>) -> Result<String, SignInRefusal> {
        sign_in::sign_in(self, source, proof).await
    }

    fn sign_out(&self, id: &str) {
        if let Some(id) = SessionId::parse(id) {
            caller_sessions::end(self, self.writing.sessions.end(id));
        }
    }

    fn registrations(&self) -> Option<&Registrations> {
        self.writing.registrations.as_ref()
    }

    fn refused_forms(&self) -> &EventCounter {
        &self.counters.registration_forms_refused
    }
}
