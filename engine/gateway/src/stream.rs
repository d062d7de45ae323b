//! The body of a response: complete, or streamed in parts while it is made.

use crate::server::GatewayState;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Length of text that is sent as one part.
pub const PART_LEN: usize = 16 << 10;

/// The body of a response.
#[derive(Debug)]
pub enum ResponseBody {
    /// A body of known length.
    Whole(Full<Bytes>),
    /// A body of which parts are still being made.
    Streamed(StreamedBody),
}

/// Receives the parts of a body.
#[derive(Debug)]
pub struct StreamedBody {
    parts: Receiver<BodyPart>,
    has_ended: bool,
}

#[derive(Debug)]
enum BodyPart {
    Text(Bytes),
    /// Distinguishes a complete body from one whose sender has failed.
    End,
}

/// Sends the parts of a body. If it is dropped before [`finish`](Self::finish), the client sees
/// that the body is incomplete.
#[derive(Debug)]
pub struct BodySender {
    parts: Sender<BodyPart>,
    text: Vec<u8>,
}

/// The client has stopped reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientGone;

impl ResponseBody {
    /// A body in parts, of which at most `parts_max` wait to be sent, and its sender.
    #[must_use]
    pub fn streamed(parts_max: usize) -> (BodySender, Self) {
        let (sender, parts) = channel(parts_max);
        let sender = BodySender { parts: sender, text: Vec::new() };
        (sender, Self::Streamed(StreamedBody { parts, has_ended: false }))
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }
}

impl BodySender {
    /// Adds text. Waits while the client has not read what was sent before.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn write(&mut self, text: &str) -> Result<(), ClientGone> {
        self.text.extend_from_slice(text.as_bytes());
        match self.text.len() >= PART_LEN {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Adds bytes, and sends them. Waits while the client has not read what was sent before.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ClientGone> {
        self.text.extend_from_slice(bytes);
        self.flush().await
    }

    /// Sends the text so far.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn flush(&mut self) -> Result<(), ClientGone> {
        if self.text.is_empty() {
            return Ok(());
        }
        let text = Bytes::from(std::mem::take(&mut self.text));
        self.parts.send(BodyPart::Text(text)).await.map_err(|_| ClientGone)
    }

    /// Ends the body.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn finish(mut self) -> Result<(), ClientGone> {
        self.flush().await?;
        self.parts.send(BodyPart::End).await.map_err(|_| ClientGone)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(context).map_err(|never| match never {}),
            Self::Streamed(StreamedBody { has_ended: true, .. }) => Poll::Ready(None),
            Self::Streamed(body) => body.parts.poll_recv(context).map(|part| match part {
                Some(BodyPart::Text(text)) => Some(Ok(Frame::data(text))),
                Some(BodyPart::End) => {
                    body.has_ended = true;
                    None
                }
                None => {
                    body.has_ended = true;
                    Some(Err(ErrorKind::UnexpectedEof.into()))
                }
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Streamed(body) => body.has_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Streamed(_) => SizeHint::default(),
        }
    }
}

/// Runs `work`, which makes the body of a response, beside the connection. A panic in it is counted
/// as a bug.
pub fn spawn(state: &Arc<GatewayState>, work: impl Future<Output = ()> + Send + 'static) {
    let guard = TaskGuard(Arc::clone(state));
    tokio::spawn(async move {
        let _guard = guard;
        work.await;
    });
}

struct TaskGuard(Arc<GatewayState>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.counters.bugs.add();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn parts_arrive_in_order_and_an_end_without_finish_is_an_error() {
        block_on(async {
            let (mut sender, body) = ResponseBody::streamed(4);
            sender.write("a").await.unwrap();
            sender.flush().await.unwrap();
            sender.write("b").await.unwrap();
            sender.finish().await.unwrap();
            assert_eq!(body.collect().await.unwrap().to_bytes(), "ab");
            let (mut sender, body) = ResponseBody::streamed(4);
            sender.write("a").await.unwrap();
            sender.flush().await.unwrap();
            drop(sender);
            assert_eq!(body.collect().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        });
    }

    #[test]
    fn a_client_that_is_gone_stops_the_sender() {
        block_on(async {
            let (mut sender, body) = ResponseBody::streamed(1);
            drop(body);
            assert_eq!(sender.write(&"x".repeat(PART_LEN)).await, Err(ClientGone));
        });
    }
}
