//! An order: the account, the proofs of all names, and the certificate. RFC 8555 section 7.4.

use super::config::AcmeChallenge;
use super::files::StoredCertificate;
use super::{AcmeState, ORDER_TIMEOUT};
use crate::outbound::{HttpOrigin, origin_form};
use anyhow::{Context as _, anyhow, bail};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use instant_acme::{
    Account, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, Error, HttpClient, Identifier,
    NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rustls::ClientConfig;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Time for one request to the authority.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer of the authority: a chain of certificates has some KiB.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// Whether the authority refuses further orders for some time. RFC 8555 section 6.7.
pub(super) fn is_rate_limit(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error| is_problem(error, "urn:ietf:params:acme:error:rateLimited"))
}

fn is_account_unknown(error: &Error) -> bool {
    is_problem(error, "urn:ietf:params:acme:error:accountDoesNotExist")
}

fn is_problem(error: &Error, kind: &str) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(kind))
}

/// Orders a certificate, which comes as it is stored. `failures` is the number of orders before it
/// that failed.
pub(super) async fn order_certificate(acme: &AcmeState, failures: u32) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let identifiers: Vec<Identifier> = acme.config.domains.iter().cloned().map(Identifier::Dns).collect();
    let new_order = NewOrder::new(&identifiers);
    let mut order = match account(acme, false).await?.new_order(&new_order).await {
        // The authority has lost the account, or has been set up again.
        Err(error) if is_account_unknown(&error) => account(acme, true).await?.new_order(&new_order).await?,
        order => order?,
    };
    let kind = match acme.config.challenge {
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::Any if failures.is_multiple_of(2) => ChallengeType::TlsAlpn01,
        AcmeChallenge::Any => ChallengeType::Http01,
    };
    let retries = RetryPolicy::new().timeout(ORDER_TIMEOUT);
    prove(acme, &mut order, kind).await?;
    let state = order.poll_ready(&retries).await?;
    if state != OrderStatus::Ready {
        return Err(refusal(&mut order).await.unwrap_or_else(|| anyhow!("the order is {state:?}")));
    }
    let key = Zeroizing::new(order.finalize().await?);
    let chain = order.poll_certificate(&retries).await?;
    Ok(StoredCertificate::encode(&acme.config.directory, &key, &chain))
}

/// The stored account, or a new one: without a stored one, or if the authority has lost it.
async fn account(acme: &AcmeState, is_lost: bool) -> anyhow::Result<Account> {
    let builder = || Account::builder_with_http(Box::new(acme.http.clone()));
    let directory = &acme.config.directory;
    if !is_lost && let Some(credentials) = acme.files.account(directory)? {
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
    acme.files.keep_account(directory, &credentials)?;
    Ok(account)
}

/// Sets up the challenge of each name that is not proven yet, and has the authority check it.
async fn prove(acme: &AcmeState, order: &mut Order, kind: ChallengeType) -> anyhow::Result<()> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            _ => bail!("the authorization of {name} is not pending"),
        }
        let challenge = authorization.challenge(kind.clone());
        let mut challenge =
            challenge.with_context(|| format!("the authority offers no {kind:?} for {name}"))?;
        let key_authorization = challenge.key_authorization();
        match kind {
            ChallengeType::Http01 => acme.challenges.add_http(&challenge.token, key_authorization.as_str()),
            _ => acme.challenges.add_tls(&name, key_authorization.digest().as_ref())?,
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Why the authority did not accept the proofs; `None` if it does not say.
async fn refusal(order: &mut Order) -> Option<anyhow::Error> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(anyhow!("{name} is not proven: {problem}"));
        }
    }
    None
}

/// Requests to the authority over HTTPS, with limits of time and bytes.
#[derive(Clone, Debug)]
pub(super) struct AcmeHttp {
    tls: Arc<ClientConfig>,
    timeout: Duration,
}

impl AcmeHttp {
    /// A client with this configuration of TLS.
    pub(super) const fn new(tls: Arc<ClientConfig>) -> Self {
        Self { tls, timeout: ANSWER_TIMEOUT }
    }

    async fn exchange(&self, mut request: Request<BodyWrapper<Bytes>>) -> anyhow::Result<BytesResponse> {
        let url = request.uri().clone();
        let host = url.host().filter(|_| url.scheme_str() == Some("https"));
        let host = host.with_context(|| format!("the authority names {url}, which is not a URL of HTTPS"))?;
        let tls = Some(Arc::clone(&self.tls));
        let origin = HttpOrigin::new(host, url.port_u16().unwrap_or(443), tls)?;
        *request.uri_mut() = origin_form(&url);
        let answered = tokio::time::timeout(self.timeout, origin.exchange(request, ANSWER_LEN_MAX)).await;
        let answer = answered.map_err(|_| anyhow!("no answer within {} ms", self.timeout.as_millis()))?;
        Ok(answer?.map(Full::new).into())
    }
}

impl HttpClient for AcmeHttp {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move { client.exchange(request).await.map_err(|error| Error::Other(error.into())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::trust::client_without_trust;

    #[test]
    fn an_authority_that_says_nothing_is_not_waited_for_longer() {
        // The kernel accepts the connection, but no process reads from it.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = client_without_trust().unwrap();
        let http = AcmeHttp { tls, timeout: Duration::from_millis(50) };
        let url = format!("https://{}/directory", listener.local_addr().unwrap());
        let request = Request::get(url).body(Vec::new().into()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(http.exchange(request)).err().unwrap();
        assert_eq!(error.to_string(), "no answer within 50 ms");
    }
}
