//! The body of a response on its connection.

use super::activity::RunningRequest;
use super::progress::{AnswerBytes, AnswerProgress};
use crate::stream::ResponseBody;
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a response. Until a streamed body is complete, its request counts as running.
#[derive(Debug)]
pub struct ConnectionBody {
    body: ResponseBody,
    _running: Option<RunningRequest>,
    /// Set on connections whose answers wait for their client one by one.
    progress: Option<AnswerProgress>,
}

impl ConnectionBody {
    /// A body without a running request.
    #[must_use]
    pub const fn whole(body: ResponseBody, progress: Option<AnswerProgress>) -> Self {
        Self { body, _running: None, progress }
    }

    /// The body of the response to `running`.
    #[must_use]
    pub fn new(body: ResponseBody, running: RunningRequest, progress: Option<AnswerProgress>) -> Self {
        let running = matches!(body, ResponseBody::Streamed(_)).then_some(running);
        Self { body, _running: running, progress }
    }
}

impl Body for ConnectionBody {
    type Data = AnswerBytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, io::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let progress = self.progress.as_ref();
        polled.map_ok(|frame| frame.map_data(|bytes| AnswerBytes::new(bytes, progress)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
