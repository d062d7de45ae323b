//! Requests to the authority over HTTPS, with limits of time and bytes.

use crate::outbound::{HttpOrigin, OutboundError, origin_form};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A client of the authority.
#[derive(Clone, Debug)]
pub struct AcmeHttp {
    tls: Arc<ClientConfig>,
    timeout: Duration,
    bytes_max: usize,
}

/// Why a request to the authority has no answer.
#[derive(Debug)]
pub enum AcmeHttpError {
    /// The authority names a URL that is not one of HTTPS.
    Url(String),
    /// It did not answer in time.
    Late(Duration),
    /// It did not answer.
    Outbound(OutboundError),
}

impl fmt::Display for AcmeHttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(f, "the authority names {url:?}, which is not a URL of HTTPS"),
            Self::Late(timeout) => write!(f, "no answer within {} ms", timeout.as_millis()),
            Self::Outbound(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcmeHttpError {}

impl AcmeHttp {
    /// A client that waits for `timeout` for each answer, of at most `bytes_max` bytes.
    #[must_use]
    pub const fn new(tls: Arc<ClientConfig>, timeout: Duration, bytes_max: usize) -> Self {
        Self { tls, timeout, bytes_max }
    }

    async fn exchange(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, AcmeHttpError> {
        let url = request.uri().clone();
        let no_url = || AcmeHttpError::Url(url.to_string());
        let host = url.host().filter(|_| url.scheme_str() == Some("https")).ok_or_else(no_url)?;
        let tls = Some(Arc::clone(&self.tls));
        let origin = HttpOrigin::new(host, url.port_u16().unwrap_or(443), tls);
        *request.uri_mut() = origin_form(&url);
        let exchange = async { origin?.exchange(request, self.bytes_max).await };
        let answered = tokio::time::timeout(self.timeout, exchange).await;
        let answer = answered.map_err(|_| AcmeHttpError::Late(self.timeout))?;
        Ok(answer.map_err(AcmeHttpError::Outbound)?.map(Full::new).into())
    }
}

impl HttpClient for AcmeHttp {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move { client.exchange(request).await.map_err(|error| Error::Other(Box::new(error))) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::trust::client_without_trust;

    #[test]
    fn an_authority_that_says_nothing_is_not_waited_for_longer() {
        // The kernel accepts the connection, and nobody reads.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let http = AcmeHttp::new(client_without_trust().unwrap(), Duration::from_millis(50), 1024);
        let url = format!("https://{}/directory", listener.local_addr().unwrap());
        let request = Request::get(url).body(Vec::new().into()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(http.exchange(request)).err().unwrap();
        assert_eq!(error.to_string(), "no answer within 50 ms");
    }
}
