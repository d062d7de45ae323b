//! The certificate that the client of a connection has shown, and the session of its identity.
//!
//! The client has signed one handshake, which `handle-admin` accepts once. So the proof is made
//! with the first request that needs it, and its session belongs to the connection: it counts among
//! the sessions of the identity, and ends with the connection.

use crate::caller_sessions;
use crate::callers::CallerError;
use crate::sessions::{AuthenticateError, HttpSession, SessionId};
use crate::state::GatewayState;
use crate::tls::client_certificate::{CertificateProblem, ShownCertificate};
use handle_auth::random;
use handle_client::administration::ClientIdentity;
use handle_local::callers::{CallerRefusal, CertificateProof};
use hyper::http::request::Parts;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// Why a connection has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// The client has shown no certificate.
    Absent,
    /// The client is behind a proxy, which has made the handshake.
    OfProxy,
    /// The certificate cannot prove an identity.
    Unusable(CertificateProblem),
    /// The identity does not have the key of the certificate.
    NotVerified,
    /// The connection is too old for its proof, or its session has ended. Another connection may
    /// prove the identity.
    Over,
    /// There are too many sessions or requests.
    Busy,
    /// `handle-admin`, or the service of the identity, did not answer.
    Unreachable,
}

impl fmt::Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("The client has sent no certificate in this connection"),
            Self::OfProxy => f.write_str("This connection is that of a proxy, not of the client"),
            Self::Unusable(problem) => problem.fmt(f),
            Self::NotVerified => {
                f.write_str("The identity in the client certificate does not have the key of the certificate")
            }
            Self::Over => f.write_str("The identity of this connection has expired: connect again"),
            Self::Busy => f.write_str("Too many callers: try again later"),
            Self::Unreachable => f.write_str("The client certificate could not be checked: try again later"),
        }
    }
}

impl From<CallerError> for CertificateRefusal {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::Refused(CallerRefusal::Stale) => Self::Over,
            CallerError::Refused(CallerRefusal::Busy) => Self::Busy,
            CallerError::Refused(CallerRefusal::Unanswered) | CallerError::Unreachable => Self::Unreachable,
            CallerError::Refused(CallerRefusal::Wrong | CallerRefusal::Unsupported) => Self::NotVerified,
        }
    }
}

/// How far the proof of a connection is.
#[derive(Debug)]
enum CertificateState {
    /// No request has needed it yet, or it was refused.
    Shown(Arc<ShownCertificate>),
    /// It was accepted for this session, which may have ended.
    InSession(SessionId),
}

/// The certificate of a connection.
pub struct ConnectionCertificate {
    gateway: Arc<GatewayState>,
    state: Mutex<CertificateState>,
}

impl fmt::Debug for ConnectionCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl ConnectionCertificate {
    /// The certificate that a handshake has shown.
    #[must_use]
    pub fn new(gateway: Arc<GatewayState>, shown: ShownCertificate) -> Self {
        if matches!(shown, ShownCertificate::Signed(_) | ShownCertificate::Unusable(_)) {
            gateway.counters.client_certificates.add();
        }
        Self { gateway, state: Mutex::new(CertificateState::Shown(Arc::new(shown))) }
    }

    /// Adds the certificate to a request of its connection.
    pub fn add_to(self: Arc<Self>, parts: &mut Parts) {
        parts.extensions.insert(self);
    }

    /// The certificate of the connection of a request.
    #[must_use]
    pub fn of_request(parts: &Parts) -> Option<&Self> {
        parts.extensions.get::<Arc<Self>>().map(|certificate| &**certificate)
    }

    /// The identity, which is proven now if it has not been before.
    ///
    /// # Errors
    /// When there is none, or it cannot be proven.
    pub async fn identity(&self, source: IpAddr) -> Result<Arc<ClientIdentity>, CertificateRefusal> {
        let mut state = self.state.lock().await;
        let shown = match &*state {
            CertificateState::InSession(id) => {
                let session = caller_sessions::find(&self.gateway, *id);
                return session.and_then(|session| session.identity).ok_or(CertificateRefusal::Over);
            }
            CertificateState::Shown(shown) => Arc::clone(shown),
        };
        let nonce = match &*shown {
            ShownCertificate::Absent => return Err(CertificateRefusal::Absent),
            ShownCertificate::OfProxy => return Err(CertificateRefusal::OfProxy),
            ShownCertificate::Unusable(problem) => return Err(CertificateRefusal::Unusable(*problem)),
            ShownCertificate::Signed(signed) => signed.nonce,
        };
        let identity = self.prove(shown, source).await?;
        let session = HttpSession { id: SessionId::new(random()), nonce, identity: None };
        let id = session.id;
        let settings = self.gateway.settings.current_shared();
        let added = self.gateway.writing.sessions.add(
            session,
            Arc::clone(&identity),
            &settings.sessions,
            Instant::now(),
        );
        // The handshake is of no more use in either case.
        *state = CertificateState::InSession(id);
        match added {
            Ok(displaced) => {
                displaced
                    .into_iter()
                    .for_each(|identity| caller_sessions::end(&self.gateway, Some(identity)));
                self.gateway.counters.certificate_proofs.add();
                Ok(identity)
            }
            Err(AuthenticateError::Full | AuthenticateError::Changed) => {
                caller_sessions::end(&self.gateway, Some(identity));
                Err(CertificateRefusal::Busy)
            }
        }
    }

    /// Has `handle-admin` verify what the client has signed.
    async fn prove(
        &self,
        shown: Arc<ShownCertificate>,
        source: IpAddr,
    ) -> Result<Arc<ClientIdentity>, CertificateRefusal> {
        let admin = self.gateway.writing.admin.as_ref();
        let (Some(admin), Some(service)) = (admin, admin.and_then(|admin| admin.callers())) else {
            return Err(CertificateRefusal::Unreachable);
        };
        let service = Arc::clone(service);
        let verified = admin.perform(source, async move {
            match &*shown {
                ShownCertificate::Signed(signed) => {
                    let proof = CertificateProof { handshake: signed.proof(), source };
                    service.verify_certificate(&proof, &signed.handle).await
                }
                _ => Err(CallerError::Refused(CallerRefusal::Wrong)),
            }
        });
        match verified.await {
            Ok(verified) => Ok(Arc::new(verified?)),
            Err(_) => Err(CertificateRefusal::Busy),
        }
    }

    /// Ends the session of the identity, which `handle-admin` has refused.
    pub async fn end(&self) {
        if let CertificateState::InSession(id) = &*self.state.lock().await {
            self.end_session(*id);
        }
    }

    fn end_session(&self, id: SessionId) {
        caller_sessions::end(&self.gateway, self.gateway.writing.sessions.end(id));
    }
}

impl Drop for ConnectionCertificate {
    fn drop(&mut self) {
        // Without a runtime the process ends, and the session expires by itself.
        if let CertificateState::InSession(id) = *self.state.get_mut()
            && Handle::try_current().is_ok()
        {
            self.end_session(id);
        }
    }
}
