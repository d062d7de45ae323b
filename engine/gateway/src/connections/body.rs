//! The body of a response on its connection.

use super::activity::RunningRequest;
use crate::answers::AnswerPart;
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
}

impl ConnectionBody {
    /// A body without a running request.
    #[must_use]
    pub const fn whole(body: ResponseBody) -> Self {
        Self { body, _running: None }
    }

    /// The body of the response to `running`.
    #[must_use]
    pub fn new(body: ResponseBody, running: RunningRequest) -> Self {
        let running = matches!(body, ResponseBody::Streamed(_)).then_some(running);
        Self { body, _running: running }
    }
}

impl Body for ConnectionBody {
    type Data = AnswerPart;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerPart>, io::Error>>> {
        self.body.poll_part(context).map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
