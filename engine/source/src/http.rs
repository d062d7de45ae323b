//! A back end over HTTP: `GET {url}/{handle}` answers 200 with the record as JSON, or 404. In
//! `pages`, the same for all records and for changes.
//!
//! A DSpace is asked in a form of its own ([`dspace`]).
//!
//! `docs/source-openapi.json` describes the contract. Connections are kept for the next request.
//! Redirects are not followed, and a body is received up to the limit only.

mod dspace;
mod pages;

pub(crate) use dspace::DspacePages;
pub(crate) use pages::HttpPages;

use crate::RecordSource;
use crate::config::{SourceConfig, SourceKind};
use crate::contract::read_record;
use crate::error::SourceError;
use crate::guarded::SourceAnswer;
use handle_auth::file::open_secret_file;
use handle_store::{client_trusting, trusted_roots};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use std::time::Duration;
use tokio::runtime::Handle as RuntimeHandle;

/// A whole handle is one segment of the path, so that no part of it can change the path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A client of a back end, which keeps connections.
#[derive(Debug)]
struct HttpClient {
    client: Client,
    /// The URL of all records, without a slash at its end.
    url: String,
}

/// A back end over HTTP.
#[derive(Debug)]
pub(crate) struct HttpSource {
    client: HttpClient,
    timeout: Duration,
    bytes_max: usize,
    folds: bool,
    is_dspace: bool,
    runtime: RuntimeHandle,
}

impl HttpClient {
    /// The client of the back end of `config`.
    ///
    /// # Errors
    /// When a file cannot be used, with its setting.
    fn open(config: &SourceConfig) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(path) = &config.token_file {
            let token = open_secret_file(path).map_err(|error| format!("`token_file`: {error}"))?;
            let bearer = zeroize::Zeroizing::new([b"Bearer ", token.trim_ascii()].concat());
            let mut bearer = HeaderValue::from_bytes(&bearer)
                .map_err(|_| "`token_file` has a token with control characters".to_owned())?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let client = Client::builder()
            .default_headers(headers)
            .redirect(Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(config.timeout())
            .pool_max_idle_per_host(config.outstanding)
            .tls_backend_preconfigured(tls(config)?);
        Ok(Self {
            client: client.build().map_err(|error| reason(&error))?,
            url: config.url.trim_end_matches('/').to_owned(),
        })
    }
}

impl HttpSource {
    /// The back end of `config`. No request is made.
    ///
    /// # Errors
    /// When a file cannot be used, with its setting.
    pub(crate) fn open(config: &SourceConfig, folds: bool, runtime: RuntimeHandle) -> Result<Self, String> {
        Ok(Self {
            client: HttpClient::open(config)?,
            timeout: config.timeout(),
            bytes_max: config.answer_bytes,
            folds,
            is_dspace: config.kind == SourceKind::Dspace,
            runtime,
        })
    }

    async fn ask(&self, key: &[u8]) -> SourceAnswer {
        if self.is_dspace {
            return dspace::ask(&self.client, key, self.bytes_max).await;
        }
        let url = format!("{}/{}", self.client.url, percent_encode(key, SEGMENT));
        let answer = self.client.client.get(url).send().await;
        let answer = answer.map_err(|error| SourceError::Unreachable(reason(&error)))?;
        match answer.status() {
            StatusCode::OK => {
                let body = body_of(answer, self.bytes_max).await?;
                read_record(&body, key, self.folds).map(Some)
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(None),
            status => Err(SourceError::Refused(format!("status {status}"))),
        }
    }
}

impl RecordSource for HttpSource {
    fn record(&self, key: &[u8]) -> SourceAnswer {
        let asked = async { tokio::time::timeout(self.timeout, self.ask(key)).await };
        self.runtime.block_on(asked).unwrap_or(Err(SourceError::Late))
    }
}

/// The body of an answer, which is dropped as soon as it is longer than `bytes_max`.
async fn body_of(mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, SourceError> {
    if answer.content_length().is_some_and(|announced| announced > bytes_max as u64) {
        return Err(SourceError::TooLong);
    }
    let mut body = Vec::new();
    loop {
        let chunk = answer.chunk().await.map_err(|error| SourceError::Unreachable(reason(&error)))?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > bytes_max {
            return Err(SourceError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
}

/// The client of TLS for the URL of `config`.
fn tls(config: &SourceConfig) -> Result<ClientConfig, String> {
    let roots = match config.url.starts_with("https://") {
        true => trusted_roots(config.ca_file.as_deref()).map_err(|why| format!("`ca_file`: {why}"))?,
        false => RootCertStore::empty(),
    };
    client_trusting(roots)
}

/// The innermost cause of an error, without the URL, which has the handle in it.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().chars().take(200).collect()
}

#[cfg(test)]
mod tests;
