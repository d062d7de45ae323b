//! Pages of lines over HTTP: `GET {url}/list` and `GET {url}/changes`.

use super::{HttpClient, SEGMENT, reason};
use crate::config::SourceConfig;
use crate::error::SourceError;
use crate::lines::{LineSplitter, SplitLine};
use crate::listing::{ListedLine, ListedSource, PageItem, SingleItem, SourcePage};
use crate::stop::PullStop;
use percent_encoding::percent_encode;
use reqwest::{Response, StatusCode};
use std::time::{Duration, Instant};
use tokio::runtime::Handle as RuntimeHandle;

/// A back end over HTTP that lists its records.
#[derive(Debug)]
pub(crate) struct HttpPages {
    client: HttpClient,
    /// Time for the next line.
    step: Duration,
    bytes_max: usize,
    stop: PullStop,
    runtime: RuntimeHandle,
}

impl HttpPages {
    /// The back end of `config`. No request is made.
    ///
    /// # Errors
    /// When a file cannot be used, with its setting.
    pub(crate) fn open(
        config: &SourceConfig,
        stop: PullStop,
        runtime: RuntimeHandle,
    ) -> Result<Self, String> {
        let client = HttpClient::open(config)?;
        Ok(Self { client, step: config.step(), bytes_max: config.answer_bytes, stop, runtime })
    }

    fn page(&mut self, question: &str, since: Option<(&str, &str)>) -> Result<HttpPage<'_>, HttpRefusal> {
        let mut url = format!("{}/{question}", self.client.url);
        if let Some((name, since)) = since {
            url += &format!("?{name}={}", percent_encode(since.as_bytes(), SEGMENT));
        }
        let asked = self.client.client.get(url).send();
        let answer = self.runtime.block_on(self.stop.wait(self.step, asked))?;
        let answer = answer.map_err(|error| SourceError::Unreachable(reason(&error)))?;
        match answer.status() {
            StatusCode::OK => {
                let lines = LineSplitter::new(self.bytes_max);
                Ok(HttpPage { source: self, answer, lines, is_received: false })
            }
            status => Err(HttpRefusal::Status(status)),
        }
    }
}

/// Why there is no page.
enum HttpRefusal {
    Status(StatusCode),
    Error(SourceError),
}

impl From<SourceError> for HttpRefusal {
    fn from(error: SourceError) -> Self {
        Self::Error(error)
    }
}

impl From<HttpRefusal> for SourceError {
    fn from(refusal: HttpRefusal) -> Self {
        match refusal {
            HttpRefusal::Status(status) => Self::Refused(format!("status {status}")),
            HttpRefusal::Error(error) => error,
        }
    }
}

impl ListedSource for HttpPages {
    fn list<'s>(&'s mut self, after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        Ok(Box::new(self.page("list", after.map(|after| ("after", after)))?))
    }

    fn changes<'s>(&'s mut self, since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        match self.page("changes", since.map(|since| ("since", since))) {
            Ok(page) => Ok(Box::new(page)),
            Err(HttpRefusal::Status(StatusCode::GONE)) => Ok(Box::new(SingleItem(PageItem::Expired))),
            Err(HttpRefusal::Status(StatusCode::NOT_FOUND)) => Ok(Box::new(SingleItem(PageItem::NoChanges))),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// An answer whose body is being received.
#[derive(Debug)]
struct HttpPage<'s> {
    source: &'s HttpPages,
    answer: Response,
    lines: LineSplitter,
    is_received: bool,
}

impl HttpPage<'_> {
    /// Receives more of the body, before `until`; at its end, the end of a line.
    fn receive(&mut self, until: Instant) -> Result<(), SourceError> {
        if self.is_received {
            return Err(SourceError::Unreachable("the page broke off before its end".to_owned()));
        }
        let HttpPages { stop, runtime, .. } = self.source;
        let left = until.saturating_duration_since(Instant::now());
        let chunk = runtime.block_on(stop.wait(left, self.answer.chunk()))?;
        match chunk.map_err(|error| SourceError::Unreachable(reason(&error)))? {
            Some(chunk) => self.lines.push(&chunk),
            None => {
                self.is_received = true;
                self.lines.push(b"\n");
            }
        }
        Ok(())
    }
}

impl SourcePage for HttpPage<'_> {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        // A line without an end does not take longer, however much of it comes.
        let until = Instant::now() + self.source.step;
        loop {
            match self.lines.next_line() {
                Some(SplitLine::Whole(b"")) => {}
                Some(SplitLine::Whole(line)) => return ListedLine::parse(line).map(|line| line.item),
                Some(SplitLine::TooLong(start)) => {
                    return Ok(PageItem::Unfit(ListedLine::too_long(&start)));
                }
                None => self.receive(until)?,
            }
        }
    }
}

#[cfg(test)]
mod tests;
