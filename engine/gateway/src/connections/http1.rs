//! Connections that speak HTTP/1.1: first plain requests, and from the first other one hyper.

use super::error::ConnectionError;
use super::plain;
use super::request_wait::RequestWait;
use super::served_connection::ServedConnection;
use super::stream::RequestStream;
use crate::phase::{self, GatewayPhase};
use crate::refusal::HttpRefusal;
use crate::route::RoutedPath;
use http_body_util::BodyExt as _;
use hyper::header::{self, HeaderMap};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

/// Bytes that hyper may read ahead besides twice the longest head. With less, it would refuse a
/// head before [`RequestStream`] does.
const BUFFER_LEN: usize = 64 << 10;

/// How serving a connection has ended.
enum ServiceEnd {
    Over(hyper::Result<()>),
    /// No complete head of a request arrived within the timeout.
    Late,
    HeadTooLong,
}

/// Serves the requests in `stream`.
///
/// # Errors
/// When the connection ends because of an error, or within the head of a request.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    served: &ServedConnection,
) -> Result<(), ConnectionError> {
    let timer = pin!(sleep(served.header_timeout()));
    let stopped = pin!(phase::reached(served.state.phase(), GatewayPhase::Stopping));
    let mut wait = RequestWait::new(served, timer, stopped);
    let ahead = plain::serve(&mut stream, served, &mut wait).await?;
    let service = service_fn(|request| served.answer(request));
    let stream = TokioIo::new(RequestStream::new(stream, ahead, &served.activity));
    // Bodies are not copied: a copy would not count among the bytes of answers, and hyper would
    // keep a buffer as long as the longest one for the next answer.
    let buffer_len = 2 * served.settings.limits.header_bytes + BUFFER_LEN;
    let mut connection =
        Builder::new().writev(true).max_buf_size(buffer_len).serve_connection(stream, service);
    let mut is_ending = false;
    let end = poll_fn(|context| {
        if let Poll::Ready(result) = Pin::new(&mut connection).poll(context) {
            return Poll::Ready(ServiceEnd::Over(result));
        }
        if served.activity.is_head_too_long() {
            return Poll::Ready(ServiceEnd::HeadTooLong);
        }
        if wait.poll_late(context).is_ready() {
            return Poll::Ready(ServiceEnd::Late);
        }
        // After a takeover, clients learn from their next answer that they have to connect again:
        // one that is closed meanwhile may lose the request that it is sending.
        if is_ending || !served.state.has_reached(GatewayPhase::Stopping) {
            return Poll::Pending;
        }
        is_ending = true;
        Pin::new(&mut connection).graceful_shutdown();
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    let refusal = match end {
        ServiceEnd::Over(result) => return Ok(result?),
        ServiceEnd::Late => HttpRefusal::HeadLate,
        ServiceEnd::HeadTooLong => HttpRefusal::HeadTooLong,
    };
    let parts = connection.into_parts();
    if parts.read_buf.is_empty() {
        // Nothing has arrived since the last answer.
        return Ok(());
    }
    let mut stream = parts.io.into_inner().stream;
    refuse(&mut stream, &parts.read_buf, refusal, served).await?;
    Err(match refusal {
        HttpRefusal::HeadLate => ConnectionError::HeadLate,
        _ => ConnectionError::HeadTooLong,
    })
}

/// Answers an incomplete request, and closes the connection.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    head: &[u8],
    refusal: HttpRefusal,
    served: &ServedConnection,
) -> io::Result<()> {
    let target = head.split(|&byte| byte == b' ' || byte == b'\n').nth(1).unwrap_or_default();
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let route = RoutedPath::parse(&String::from_utf8_lossy(path)).route;
    let response = refusal.respond(route, &HeaderMap::new(), &served.settings);
    served.state.counters.count_answer(response.status().as_u16());
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut bytes = format!("HTTP/1.1 {}\r\n", parts.status).into_bytes();
    for (name, value) in &parts.headers {
        bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    let (length, connection) = (header::CONTENT_LENGTH, header::CONNECTION);
    bytes.extend_from_slice(format!("{length}: {}\r\n{connection}: close\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes).await?;
    stream.shutdown().await
}
