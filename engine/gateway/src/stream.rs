//! The body of a response: complete, or streamed in parts while it is made.

use crate::answers::{AnswerPart, CountedAnswer, STREAM_LEN};
use hyper::body::{Body, Buf as _, Bytes, Frame, SizeHint};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Length of text that is sent as one part.
pub const PART_LEN: usize = 16 << 10;
/// Bytes of parts that wait for the client, at which no further part is sent.
pub const WAITING_LEN: usize = 64 << 10;
/// Bytes that the maker of a body may keep for later parts without asking whether there is
/// capacity.
pub const KEPT_LEN: usize = 64 << 10;
const _: () = assert!(WAITING_LEN + KEPT_LEN + 2 * PART_LEN < STREAM_LEN, "reserved from the start");

/// The body of a response.
#[derive(Debug)]
pub enum ResponseBody {
    /// A body of known length.
    Whole(AnswerPart),
    /// A body of which parts are still being made.
    Streamed(StreamedBody),
}

/// Receives the parts of a body.
#[derive(Debug)]
pub struct StreamedBody {
    parts: Receiver<BodyPart>,
    has_ended: bool,
    answer: CountedAnswer,
}

#[derive(Debug)]
enum BodyPart {
    Text(AnswerPart),
    /// Distinguishes a complete body from one whose sender has failed.
    End,
}

/// Sends the parts of a body. If it is dropped before [`finish`](Self::finish), the client sees
/// that the body is incomplete.
#[derive(Debug)]
pub struct BodySender {
    parts: Sender<BodyPart>,
    text: Vec<u8>,
    answer: CountedAnswer,
    /// Bytes of parts that wait, at which no further part is sent.
    waiting_len: usize,
}

/// The client has stopped reading a body, or takes too much memory with those that it does not
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientGone;

impl ResponseBody {
    pub(crate) fn streamed_as(answer: CountedAnswer, waiting_len: usize) -> (BodySender, Self) {
        let (sender, parts) = channel((waiting_len / PART_LEN).max(1));
        let sender = BodySender { parts: sender, text: Vec::new(), answer: answer.clone(), waiting_len };
        (sender, Self::Streamed(StreamedBody { parts, has_ended: false, answer }))
    }

    /// A body of bytes that all answers with them share.
    #[must_use]
    pub const fn shared(bytes: Bytes) -> Self {
        Self::Whole(AnswerPart::shared(bytes))
    }

    /// The answer that its bytes count for; `None` if they are not counted.
    #[must_use]
    pub fn counted(&self) -> Option<&CountedAnswer> {
        match self {
            Self::Whole(whole) => whole.counted(),
            Self::Streamed(streamed) => Some(&streamed.answer),
        }
    }

    /// The next part.
    pub fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerPart, io::Error>>> {
        match self {
            Self::Whole(whole) if whole.has_remaining() => Poll::Ready(Some(Ok(std::mem::take(whole)))),
            Self::Whole(_) | Self::Streamed(StreamedBody { has_ended: true, .. }) => Poll::Ready(None),
            Self::Streamed(body) => body.parts.poll_recv(context).map(|part| match part {
                Some(BodyPart::Text(text)) => Some(Ok(text)),
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
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(AnswerPart::new(bytes))
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
        let mut text = AnswerPart::new(Bytes::from(std::mem::take(&mut self.text)));
        // What is waiting makes room when it is taken. An answer of which nothing waits has to be
        // cut: the other answers to this source may wait for long.
        let part = loop {
            match self.answer.count(text) {
                Ok(part) => break part,
                Err(uncounted) if self.answer.is_waiting() => text = uncounted,
                Err(_) => return Err(self.cut()),
            }
            self.until_at_most(0).await?;
        };
        self.until_at_most(self.waiting_len.max(part.remaining())).await?;
        self.parts.send(BodyPart::Text(part)).await.map_err(|_| ClientGone)
    }

    /// Waits until at most `len` bytes of the parts wait for the client.
    async fn until_at_most(&self, len: usize) -> Result<(), ClientGone> {
        tokio::select! {
            biased;
            () = self.parts.closed() => Err(ClientGone),
            () = self.answer.until_at_most(len) => Ok(()),
        }
    }

    /// Counts `len` bytes in all that the maker of the body keeps for later parts. Returns whether
    /// it may keep more.
    ///
    /// # Errors
    /// When there is no capacity for them.
    pub fn keep(&self, len: usize) -> Result<bool, ClientGone> {
        let has_capacity = self.answer.keep(len);
        if has_capacity || len <= KEPT_LEN { Ok(len < KEPT_LEN) } else { Err(self.cut()) }
    }

    /// Notes that there is no capacity for the rest of the body.
    fn cut(&self) -> ClientGone {
        self.answer.note_refusal();
        ClientGone
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.parts.is_closed()
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
        self.get_mut().poll_part(context).map_ok(|part| Frame::data(part.bytes().clone()))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => !whole.has_remaining(),
            Self::Streamed(body) => body.has_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.remaining() as u64),
            Self::Streamed(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::AnswerLimits;
    use handle_daemon::permits::{PermitLimits, SourcePermits};
    use http_body_util::BodyExt as _;
    use std::time::Duration;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), work).await.unwrap() })
    }

    fn streamed(all: &SourcePermits, per_source: usize) -> (BodySender, ResponseBody) {
        let bytes = PermitLimits { all: per_source, per_holder: per_source };
        let limits = AnswerLimits { bytes, stall: Duration::from_secs(1) };
        let answer = CountedAnswer::begin(all, [192, 0, 2, 1].into(), 0, limits).unwrap();
        ResponseBody::streamed_as(answer, WAITING_LEN)
    }

    #[test]
    fn parts_arrive_in_order_and_an_end_without_finish_is_an_error() {
        let all = SourcePermits::default();
        block_on(async {
            let (mut sender, body) = streamed(&all, 1 << 20);
            sender.write("a").await.unwrap();
            sender.flush().await.unwrap();
            sender.write("b").await.unwrap();
            sender.finish().await.unwrap();
            assert_eq!(body.collect().await.unwrap().to_bytes(), "ab");
            let (mut sender, body) = streamed(&all, 1 << 20);
            sender.write("a").await.unwrap();
            sender.flush().await.unwrap();
            drop(sender);
            assert_eq!(body.collect().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        });
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn a_client_that_is_gone_stops_the_sender() {
        block_on(async {
            let (mut sender, body) = streamed(&SourcePermits::default(), 1 << 20);
            assert!(!sender.is_closed());
            drop(body);
            assert!(sender.is_closed());
            assert_eq!(sender.write(&"x".repeat(PART_LEN)).await, Err(ClientGone));
        });
    }

    #[test]
    fn long_parts_wait_for_each_other_and_a_body_without_capacity_ends() {
        let all = SourcePermits::default();
        let long = "x".repeat(300_000);
        block_on(async {
            let (mut sender, body) = streamed(&all, 400_000);
            let sent = async {
                for _ in 0..5 {
                    sender.write(&long).await?;
                    assert!(all.count() <= 400_000, "{}", all.count());
                }
                sender.finish().await
            };
            let (sent, body) = tokio::join!(sent, body.collect());
            assert_eq!((sent, body.unwrap().to_bytes().len()), (Ok(()), 1_500_000));
            let (mut sender, _body) = streamed(&all, 1 << 20);
            sender.write(&long).await.unwrap();
            let (mut other, _other_body) = streamed(&all, 400_000);
            assert_eq!(other.write(&long).await, Err(ClientGone), "the source has too much");
            assert_eq!(sender.keep(KEPT_LEN - 1), Ok(true));
            assert_eq!(sender.keep(KEPT_LEN), Ok(false), "enough is kept");
            assert_eq!(sender.keep(1 << 20), Err(ClientGone));
        });
        assert_eq!(all.count(), 0);
    }
}
