//! A back end that answers requests for identifiers over HTTP, plain or over TLS.

use crate::failure_series::{FailureSeries, SeriesTexts};
use crate::outbound::{HttpOrigin, OutboundError};
use anyhow::{Context as _, ensure};
use handle_daemon::permits::{PermitLimits, SourcePermits};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use rustls::ClientConfig;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The address of a back end, and the limits of its answers.
#[derive(Debug)]
pub struct Backend {
    origin: HttpOrigin,
    path_template: String,
    timeout: Duration,
    bytes_max: usize,
    permits: SourcePermits,
    limits: PermitLimits,
    failures: FailureSeries,
}

/// Texts of the log about back ends that do not answer.
const TEXTS: SeriesTexts = SeriesTexts {
    failed: "the back end of a `[[target]]` does not answer",
    recovered: "the back end of a `[[target]]` answers again",
};

/// An answer of a back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAnswer {
    /// The status.
    pub status: StatusCode,
    /// The target of a redirect.
    pub location: Option<String>,
    /// The media type of the body.
    pub content_type: Option<HeaderValue>,
    /// The body.
    pub body: Bytes,
}

/// Why a back end did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendError {
    /// Too many requests are in progress.
    Busy,
    /// The timeout has expired.
    Late,
    /// The back end is not reachable, or its answer is not HTTP.
    Failed,
    /// There is no connection over TLS, for example because its certificate is not trusted.
    Handshake,
    /// The answer is too long.
    TooLong,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "too many requests to the service of these identifiers are under way",
            Self::Late => "the service of these identifiers did not answer in time",
            Self::Failed => "the service of these identifiers did not give a valid answer",
            Self::Handshake => "no trusted connection to the service of these identifiers can be made",
            Self::TooLong => "the answer of the service of these identifiers is too long",
        })
    }
}

impl std::error::Error for BackendError {}

impl BackendError {
    const fn of(error: &OutboundError) -> Self {
        match error {
            OutboundError::Handshake(..) => Self::Handshake,
            OutboundError::TooLong(_) => Self::TooLong,
            OutboundError::Host(_) | OutboundError::Connect(..) | OutboundError::Http(_) => Self::Failed,
        }
    }
}

impl Backend {
    /// The back end at a URL `http[s]://host[:port]/path`, whose path may have placeholders. One
    /// with `https` is asked as the client `tls`.
    ///
    /// # Errors
    /// When the URL has another form, or a limit is out of range.
    pub(super) fn new(
        url: &str,
        tls: Option<Arc<ClientConfig>>,
        timeout_ms: u32,
        bytes_max: usize,
        requests: usize,
    ) -> anyhow::Result<Self> {
        let (scheme, default_port) = if tls.is_some() { ("https://", 443) } else { ("http://", 80) };
        let rest = url.strip_prefix(scheme).with_context(|| format!("`backend` must begin with {scheme}"))?;
        let (authority, path) = rest.split_once('/').context("`backend` has no path")?;
        ensure!((1..=120_000).contains(&timeout_ms), "`timeout_ms` must be from 1 to 120000");
        ensure!((1..=64 << 20).contains(&bytes_max), "`bytes_max` must be from 1 to 67108864");
        ensure!((1..=1 << 16).contains(&requests), "`requests` must be from 1 to 65536");
        let with_port = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = with_port.unwrap_or((authority, default_port));
        Ok(Self {
            origin: HttpOrigin::new(host, port, tls)?,
            path_template: format!("/{path}"),
            timeout: Duration::from_millis(timeout_ms.into()),
            bytes_max,
            permits: SourcePermits::default(),
            limits: PermitLimits { all: requests, per_holder: requests.div_ceil(4) },
            failures: FailureSeries::with_texts(format_args!("{scheme}{authority}"), TEXTS),
        })
    }

    /// The path and query, with placeholders.
    pub(super) fn path_template(&self) -> &str {
        &self.path_template
    }

    /// Requests `path` for a client at `source`.
    ///
    /// # Errors
    /// When there is no valid answer within the limits.
    pub async fn ask(
        &self,
        source: IpAddr,
        path: &str,
        accept: Option<&HeaderValue>,
    ) -> Result<BackendAnswer, BackendError> {
        let Ok(_permit) = self.permits.take(source, self.limits) else { return Err(BackendError::Busy) };
        let exchanged = tokio::time::timeout(self.timeout, self.exchange(path, accept)).await;
        let (answer, reason) = match exchanged {
            Ok(Ok(answer)) => (Ok(answer), None),
            Ok(Err(error)) => (Err(BackendError::of(&error)), Some(error.to_string())),
            Err(_) => {
                let reason = format!("no answer within {} ms", self.timeout.as_millis());
                (Err(BackendError::Late), Some(reason))
            }
        };
        self.failures.note(reason, Instant::now());
        answer
    }

    async fn exchange(
        &self,
        path: &str,
        accept: Option<&HeaderValue>,
    ) -> Result<BackendAnswer, OutboundError> {
        let request = Request::get(path).body(Empty::<Bytes>::new());
        let mut request = request.map_err(|error| OutboundError::Http(error.into()))?;
        if let Some(accept) = accept {
            request.headers_mut().insert(header::ACCEPT, accept.clone());
        }
        let (head, body) = self.origin.exchange(request, self.bytes_max).await?.into_parts();
        let location = head.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
        Ok(BackendAnswer {
            status: head.status,
            location: location.map(str::to_owned),
            content_type: head.headers.get(header::CONTENT_TYPE).cloned(),
            body,
        })
    }
}
