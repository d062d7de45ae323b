//! The page with a record.

use super::value::{DataView, HandleLink, ValueView, field_text, link, reference_text};
use super::{PageFrame, fill, html, shell_quoted};
use crate::location::handle_url;
use crate::redirect::ShowReason;
use askama::Template;
use handle_console::pages::dates::{self, DateView};
use handle_proto::printable::Printable;
use handle_proto::{Handle, Value};

/// Where a record comes from.
#[derive(Clone, Copy, Debug)]
pub enum AnswerSource<'a> {
    /// A published set that this process has mapped.
    Set {
        /// Its name.
        name: &'a str,
        /// The generation that answered.
        generation: u64,
        /// When it was published, in Unix seconds.
        published_unix_s: Option<u32>,
    },
    /// An answer that was kept.
    Cache,
    /// A server of the responsible service.
    Server {
        /// Its address, and the protocol.
        name: &'a str,
    },
}

/// How a record was found.
#[derive(Clone, Copy, Debug)]
pub struct AnswerDetails<'a> {
    /// Where it comes from.
    pub source: AnswerSource<'a>,
    /// Whether its signature was requested and verified.
    pub certified: bool,
    /// How long it took, in microseconds.
    pub took_us: u32,
    /// The handles whose aliases were followed, that of the request first.
    pub aliases: &'a [Handle<'a>],
    /// The steps of a lookup, one text for each; they may be missing.
    pub steps: &'a [String],
}

/// The page with a record.
#[derive(Template)]
#[template(path = "record.html")]
pub struct RecordPage<'a> {
    frame: PageFrame<'a>,
    name: String,
    values: Vec<ValueView>,
    reason: &'a ShowReason,
    source: String,
    published: Option<DateView>,
    generation: Option<u64>,
    certified: bool,
    took: String,
    aliases: Vec<HandleLink>,
    steps: &'a [String],
    url: String,
    text: String,
    field: String,
    json_path: String,
    command_hdl: String,
    command_curl: String,
}

impl<'a> RecordPage<'a> {
    /// The page with `values` of `handle`; all of them are shown. URLs of `schemes` become links.
    #[must_use]
    pub fn new(
        frame: PageFrame<'a>,
        handle: Handle<'_>,
        values: &[Value<'_>],
        details: &AnswerDetails<'a>,
        reason: &'a ShowReason,
        schemes: &[String],
    ) -> Self {
        let texts = frame.texts();
        let (source, generation, published) = match details.source {
            AnswerSource::Set { name, generation, published_unix_s } => {
                let published = published_unix_s.map(|unix_s| dates::date(unix_s.cast_signed(), texts));
                (fill(texts.from_set, name), Some(generation), published)
            }
            AnswerSource::Cache => (texts.from_cache.to_owned(), None, None),
            AnswerSource::Server { name } => (fill(texts.from_server, name), None, None),
        };
        let api = format!("{}api/handles/", frame.base);
        let text = reference_text(handle);
        Self {
            name: Printable(handle).to_string(),
            values: values.iter().map(|value| ValueView::new(value, &frame, schemes)).collect(),
            reason,
            source,
            published,
            generation,
            certified: details.certified,
            took: milliseconds(details.took_us),
            aliases: details.aliases.iter().map(|alias| link(alias.0, &frame)).collect(),
            steps: details.steps,
            url: handle_url(handle, frame.base),
            command_hdl: format!("hdl resolve {}", shell_quoted(&text)),
            command_curl: format!("curl {}", shell_quoted(&handle_url(handle, &api))),
            json_path: handle_url(handle, &format!("{}api/handles/", frame.root())),
            field: field_text(handle),
            text,
            frame,
        }
    }

    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }

    fn query(&self) -> &str {
        &self.field
    }
}

/// Milliseconds with one decimal.
fn milliseconds(us: u32) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}
