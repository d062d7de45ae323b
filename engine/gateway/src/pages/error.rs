//! Pages about errors.

use super::value::{HandleLink, field_text, link};
use super::{PageFrame, fill, html};
use crate::redirect::{MissingReason, RefusalReason};
use askama::Template;
use handle_console::pages::dates;
use handle_console::pages::facts::mail_url;
use handle_proto::Handle;
use handle_proto::printable::Printable;

/// Why there is nothing else to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// The request has no valid handle.
    Invalid,
    /// No service is known for the prefix.
    UnknownPrefix,
    /// The handle does not exist.
    NotFound,
    /// Its record has no public values.
    NoPublicValues,
    /// Its record has none of the requested values.
    NoSuchValues,
    /// Its aliases lead nowhere.
    AliasChain,
    /// Its alias names no handle.
    AliasInvalid,
    /// What was at this path is no longer available.
    Gone,
    /// The method is not one of this path.
    Method,
    /// The request breaks a rule of HTTP.
    Malformed,
    /// The request did not arrive in time.
    RequestLate,
    /// The body of the request is too long.
    BodyTooLong,
    /// The client, or its network, asks too often.
    TooMany,
    /// The head of the request is too long.
    HeadTooLong,
    /// This process failed.
    Internal,
    /// The responsible service failed.
    Upstream,
    /// This process is overloaded.
    Busy,
    /// The responsible service did not answer.
    Timeout,
}

impl PageError {
    /// Every error.
    pub const ALL: [Self; 18] = [
        Self::Invalid,
        Self::UnknownPrefix,
        Self::NotFound,
        Self::NoPublicValues,
        Self::NoSuchValues,
        Self::AliasChain,
        Self::AliasInvalid,
        Self::Gone,
        Self::Method,
        Self::Malformed,
        Self::RequestLate,
        Self::BodyTooLong,
        Self::TooMany,
        Self::HeadTooLong,
        Self::Internal,
        Self::Upstream,
        Self::Busy,
        Self::Timeout,
    ];

    /// The HTTP status of the page.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid | Self::UnknownPrefix | Self::AliasInvalid | Self::Malformed => 400,
            Self::NotFound | Self::NoPublicValues | Self::NoSuchValues | Self::AliasChain => 404,
            Self::Method => 405,
            Self::RequestLate => 408,
            Self::Gone => 410,
            Self::BodyTooLong => 413,
            Self::TooMany => 429,
            Self::HeadTooLong => 431,
            Self::Internal => 500,
            Self::Upstream => 502,
            Self::Busy => 503,
            Self::Timeout => 504,
        }
    }

    /// The title and the text.
    const fn texts(self, frame: &PageFrame<'_>) -> [&'static str; 2] {
        let texts = frame.texts();
        match self {
            Self::Invalid => texts.invalid,
            Self::UnknownPrefix => texts.unknown_prefix,
            Self::NotFound => texts.not_found,
            Self::NoPublicValues => texts.no_public_values,
            Self::NoSuchValues => texts.no_such_values,
            Self::AliasChain => texts.alias_chain,
            Self::AliasInvalid => texts.alias_invalid,
            Self::Gone => texts.gone,
            Self::Method => texts.method,
            Self::Malformed => texts.malformed,
            Self::RequestLate => texts.request_late,
            Self::BodyTooLong => texts.body_too_long,
            Self::TooMany => texts.too_many,
            Self::HeadTooLong => texts.head_too_long,
            Self::Internal => texts.internal,
            Self::Upstream => texts.upstream,
            Self::Busy => texts.busy,
            Self::Timeout => texts.timeout,
        }
    }
}

impl From<MissingReason> for PageError {
    fn from(reason: MissingReason) -> Self {
        match reason {
            MissingReason::NoPublicValues => Self::NoPublicValues,
            MissingReason::NoSuchValues => Self::NoSuchValues,
            MissingReason::AliasChainTooLong | MissingReason::AliasLoop => Self::AliasChain,
        }
    }
}

impl From<RefusalReason> for PageError {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::AliasWithoutHandle => Self::AliasInvalid,
        }
    }
}

/// The page about an error.
#[derive(Template)]
#[template(path = "error.html")]
pub struct ErrorPage<'a> {
    frame: PageFrame<'a>,
    error: PageError,
    title: &'static str,
    explanation: &'static str,
    name: Option<String>,
    field: String,
    /// The handle without the slash at its end.
    neighbour: Option<HandleLink>,
    reason: Option<&'a str>,
    notice: Option<&'a str>,
    contact: Option<&'a str>,
    contact_url: Option<String>,
    retry_after: Option<String>,
}

impl<'a> ErrorPage<'a> {
    /// The page about an error that has nothing to do with a handle.
    #[must_use]
    pub fn new(frame: PageFrame<'a>, error: PageError) -> Self {
        let [title, explanation] = error.texts(&frame);
        Self {
            frame,
            error,
            title,
            explanation,
            name: None,
            field: String::new(),
            neighbour: None,
            reason: None,
            notice: None,
            contact: None,
            contact_url: None,
            retry_after: None,
        }
    }

    /// With the handle of the request.
    #[must_use]
    pub fn about(mut self, handle: Handle<'_>) -> Self {
        self.name = Some(Printable(handle).to_string());
        self.field = field_text(handle);
        let without_slash = handle.0.strip_suffix(b"/").filter(|_| self.error == PageError::NotFound);
        self.neighbour =
            without_slash.filter(|name| name.contains(&b'/')).map(|name| link(name, &self.frame));
        self
    }

    /// With a sentence about what exactly is wrong, such as the text of an error.
    #[must_use]
    pub const fn because(mut self, reason: &'a str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// With the contact and the message that the namespace of the prefix has.
    #[must_use]
    pub fn with_notice(mut self, contact: Option<&'a str>, message: Option<&'a str>) -> Self {
        (self.contact, self.notice) = (contact, message);
        self.contact_url = contact.and_then(mail_url);
        self
    }

    /// With the time after which the client should ask again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        let texts = self.frame.texts();
        self.retry_after = Some(fill(texts.retry_after, dates::duration(seconds, texts)));
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.error.status()
    }

    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }

    fn query(&self) -> &str {
        &self.field
    }

    fn status_text(&self) -> String {
        fill(self.frame.texts().status, self.error.status())
    }
}
