//! An order: the account, the proofs of all names, and the certificate. RFC 8555 section 7.4.

use super::challenges::ChallengeError;
use super::config::AcmeChallenge;
use super::state::AcmeState;
use super::store::{StoreError, StoredCertificate};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder, Order, OrderStatus,
    Problem, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use std::fmt;
use std::time::Duration;
use zeroize::Zeroizing;

/// Types of problems. RFC 8555 section 6.7.
const RATE_LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";
const ACCOUNT_DOES_NOT_EXIST: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Why there is no certificate.
#[derive(Debug)]
pub enum AcmeError {
    /// The authority does not answer, refuses, or answers something else.
    Authority(Error),
    /// The authority offers no challenge of the type that is set.
    NoChallenge(String, ChallengeType),
    /// A name could not be proven.
    NotProven(String),
    /// The order is in this state instead of the next one.
    State(OrderStatus),
    /// A challenge could not be set up.
    Challenge(ChallengeError),
    /// The request for the certificate could not be made.
    Request(rcgen::Error),
    /// The state directory failed.
    Store(StoreError),
    /// The order took longer than this.
    Late(Duration),
    /// The certificate is malformed, or not for the key.
    Unusable,
    /// The certificate does not have all names.
    OtherNames,
}

impl fmt::Display for AcmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority(error) => error.fmt(f),
            Self::NoChallenge(name, kind) => write!(f, "the authority offers no {kind:?} for {name}"),
            Self::NotProven(why) => f.write_str(why),
            Self::State(state) => write!(f, "the order is {state:?}"),
            Self::Challenge(error) => error.fmt(f),
            Self::Request(error) => write!(f, "cannot make the request for the certificate: {error}"),
            Self::Store(error) => error.fmt(f),
            Self::Late(limit) => write!(f, "the order has taken more than {} s", limit.as_secs()),
            Self::Unusable => f.write_str("the certificate of the authority cannot be used with its key"),
            Self::OtherNames => f.write_str("the certificate of the authority does not have all names"),
        }
    }
}

impl std::error::Error for AcmeError {}

impl From<Error> for AcmeError {
    fn from(error: Error) -> Self {
        Self::Authority(error)
    }
}

impl From<StoreError> for AcmeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl AcmeError {
    /// Whether the authority refuses further orders for some time.
    #[must_use]
    pub fn is_rate_limit(&self) -> bool {
        self.is_problem(RATE_LIMITED)
    }

    fn is_problem(&self, kind: &str) -> bool {
        matches!(self, Self::Authority(Error::Api(Problem { r#type: Some(of), .. })) if of == kind)
    }
}

/// Orders a certificate. `failures` is the number of orders before it that failed.
///
/// # Errors
/// Why there is none.
pub async fn order_certificate(acme: &AcmeState, failures: u32) -> Result<StoredCertificate, AcmeError> {
    let identifiers: Vec<Identifier> = acme.config.domains.iter().cloned().map(Identifier::Dns).collect();
    let new_order = NewOrder::new(&identifiers);
    let is_account_unknown = |error: &Error| match error {
        Error::Api(problem) => problem.r#type.as_deref() == Some(ACCOUNT_DOES_NOT_EXIST),
        _ => false,
    };
    let mut order = match stored_or_new_account(acme).await?.new_order(&new_order).await {
        Err(error) if is_account_unknown(&error) => {
            // The authority has lost the account, or has been set up again.
            acme.store.remove_account()?;
            stored_or_new_account(acme).await?.new_order(&new_order).await?
        }
        order => order?,
    };
    let kind = match acme.config.challenge {
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::Any if failures.is_multiple_of(2) => ChallengeType::TlsAlpn01,
        AcmeChallenge::Any => ChallengeType::Http01,
    };
    let retries = RetryPolicy::new().timeout(Duration::from_secs(acme.config.order_s.into()));
    prove(acme, &mut order, kind).await?;
    let state = order.poll_ready(&retries).await?;
    if state != OrderStatus::Ready {
        return Err(refusal(&mut order).await.unwrap_or(AcmeError::State(state)));
    }
    let key = KeyPair::generate().map(Zeroizing::new).map_err(AcmeError::Request)?;
    let mut params = CertificateParams::new(acme.config.domains.clone()).map_err(AcmeError::Request)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&*key).map_err(AcmeError::Request)?;
    order.finalize_csr(request.der()).await?;
    let chain = order.poll_certificate(&retries).await?;
    let key = Zeroizing::new(key.serialize_pem());
    Ok(StoredCertificate::new(&acme.config.directory, &key, &chain))
}

async fn stored_or_new_account(acme: &AcmeState) -> Result<Account, AcmeError> {
    let builder = || Account::builder_with_http(Box::new(acme.http.clone()));
    let directory = &acme.config.directory;
    if let Some(credentials) = acme.store.account(directory)? {
        return Ok(builder().from_credentials(credentials).await?);
    }
    let contact: Vec<&str> = acme.config.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: acme.config.terms_agreed,
        only_return_existing: false,
    };
    let created = builder().create(&new, directory.clone(), acme.external_account.as_ref()).await;
    let (account, credentials) = created?;
    acme.store.keep_account(directory, &credentials)?;
    Ok(account)
}

/// Sets up the challenge of each name that is not proven yet, and has the authority check it.
async fn prove(acme: &AcmeState, order: &mut Order, kind: ChallengeType) -> Result<(), AcmeError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            _ => {
                let name = authorization.identifier();
                return Err(AcmeError::NotProven(format!("the authorization of {name} is not pending")));
            }
        }
        let name = authorization.identifier().to_string();
        let challenge = authorization.challenge(kind.clone());
        let mut challenge = challenge.ok_or_else(|| AcmeError::NoChallenge(name.clone(), kind.clone()))?;
        let key_authorization = challenge.key_authorization();
        match kind {
            ChallengeType::Http01 => acme.challenges.add_http(&challenge.token, key_authorization.as_str()),
            _ => {
                let digest = key_authorization.digest();
                let digest = digest.as_ref().try_into().map_err(|_| Error::Crypto)?;
                acme.challenges.add_tls(&name, digest).map_err(AcmeError::Challenge)?;
            }
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Why the authority did not accept the proofs; `None` if it does not say.
async fn refusal(order: &mut Order) -> Option<AcmeError> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(AcmeError::NotProven(format!("{name} is not proven: {problem}")));
        }
    }
    None
}
