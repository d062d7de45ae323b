//! Pages: the form, records and errors as HTML.
//!
//! - Pages work without scripts and load nothing from elsewhere; [`CONTENT_SECURITY_POLICY`] has
//!   the browser enforce that.
//! - Everything in a record is untrusted. Templates escape it, names show control characters and
//!   direction marks as escapes, and only URLs of allowed schemes become links.
//! - Frame, style and texts are those of all pages, and come from [`handle_console::pages`]. The
//!   templates that are links are those of that crate.

mod error;
mod record;
#[cfg(test)]
mod tests;
mod value;

pub use error::{ErrorPage, PageError};
pub use handle_console::pages::{
    ADMIN_SCRIPT, ICON, ICON_PATH, LANGUAGES, Language, Messages, PageFrame, STYLE, STYLE_PATH,
};
pub use record::{AnswerDetails, AnswerSource, RecordPage};

use crate::accept::by_quality;
use askama::Template;
use handle_console::pages::{fill, html, shell_quoted};

/// The header `Content-Security-Policy` of every page: no scripts, nothing from other servers, and
/// no frames.
///
/// The form leads to other servers by redirects, which Chromium refuses with `form-action 'self'`
/// alone.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; \
     form-action 'self' http: https:; base-uri 'none'; frame-ancestors 'none'";

/// Rules for crawlers: everything but the JSON API is allowed.
pub const ROBOTS: &str = "User-agent: *\nDisallow: /api/\n";

/// The page with the form.
#[derive(Clone, Debug, Template)]
#[template(path = "form.html")]
pub struct FormPage<'a> {
    /// What all pages have.
    pub frame: PageFrame<'a>,
    /// The text in the field of the form.
    pub handle: &'a str,
}

/// The body of a redirect, for clients that do not follow it.
#[derive(Clone, Debug, Template)]
#[template(path = "redirect.html")]
pub struct RedirectPage<'a> {
    /// What all pages have.
    pub frame: PageFrame<'a>,
    /// The target of the redirect.
    pub location: &'a str,
}

impl FormPage<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }

    fn query(&self) -> &str {
        self.handle
    }
}

impl RedirectPage<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }
}

/// The language that a header `Accept-Language` prefers.
#[must_use]
pub fn language_of(header: &str) -> &'static Language {
    Language::preferred(by_quality(header))
}
