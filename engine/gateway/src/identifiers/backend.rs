//! A back end that answers requests for identifiers over HTTP.

use crate::places::{PlaceLimits, SourcePlaces};
use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The address of a back end, and the limits of its answers.
#[derive(Debug)]
pub struct Backend {
    /// Host and port, as in `Host`.
    authority: String,
    path_template: String,
    timeout: Duration,
    bytes_max: usize,
    places: Arc<SourcePlaces>,
    limits: PlaceLimits,
}

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
    /// The answer is too long.
    TooLong,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "too many requests to the service of these identifiers are under way",
            Self::Late => "the service of these identifiers did not answer in time",
            Self::Failed => "the service of these identifiers did not give a valid answer",
            Self::TooLong => "the answer of the service of these identifiers is too long",
        })
    }
}

impl std::error::Error for BackendError {}

impl Backend {
    /// The back end at a URL `http://host[:port]/path`, whose path may have placeholders.
    ///
    /// # Errors
    /// When the URL has another form, or a limit is out of range.
    pub(super) fn new(url: &str, timeout_ms: u32, bytes_max: usize, requests: usize) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("`backend` must begin with http://")?;
        let (authority, path) = rest.split_once('/').context("`backend` has no path")?;
        ensure!((1..=120_000).contains(&timeout_ms), "`timeout_ms` must be from 1 to 120000");
        ensure!((1..=64 << 20).contains(&bytes_max), "`bytes_max` must be from 1 to 67108864");
        ensure!((1..=1 << 16).contains(&requests), "`requests` must be from 1 to 65536");
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Self {
            authority: if has_port { authority.to_owned() } else { format!("{authority}:80") },
            path_template: format!("/{path}"),
            timeout: Duration::from_millis(timeout_ms.into()),
            bytes_max,
            places: Arc::new(SourcePlaces::default()),
            limits: PlaceLimits { places: requests, per_source: requests.div_ceil(4) },
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
        let Some(_place) = self.places.take(source, self.limits) else { return Err(BackendError::Busy) };
        let exchanged = tokio::time::timeout(self.timeout, self.exchange(path, accept)).await;
        exchanged.unwrap_or(Err(BackendError::Late))
    }

    async fn exchange(
        &self,
        path: &str,
        accept: Option<&HeaderValue>,
    ) -> Result<BackendAnswer, BackendError> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|_| BackendError::Failed)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| BackendError::Failed)?;
        let mut request = Request::get(path)
            .header(header::HOST, &self.authority)
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|_| BackendError::Failed)?;
        if let Some(accept) = accept {
            request.headers_mut().insert(header::ACCEPT, accept.clone());
        }
        let answered = async {
            let response = sender.send_request(request).await.map_err(|_| BackendError::Failed)?;
            let (head, body) = response.into_parts();
            let body =
                Limited::new(body, self.bytes_max).collect().await.map_err(|error| match error
                    .is::<LengthLimitError>(
                ) {
                    true => BackendError::TooLong,
                    false => BackendError::Failed,
                })?;
            let location = head.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            Ok(BackendAnswer {
                status: head.status,
                location: location.map(str::to_owned),
                content_type: head.headers.get(header::CONTENT_TYPE).cloned(),
                body: body.to_bytes(),
            })
        };
        // The connection moves the bytes; it ends after the answer, or is dropped with it.
        tokio::pin!(connection);
        tokio::pin!(answered);
        let mut is_open = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer,
                _ = &mut connection, if is_open => is_open = false,
            }
        }
    }
}
