//! Pages: the form, records and errors as HTML.
//!
//! - Pages work without scripts and load nothing from elsewhere; [`CONTENT_SECURITY_POLICY`] has
//!   the browser enforce that. The style sheet is [`STYLE`], served at [`STYLE_PATH`].
//! - Everything in a record is untrusted. Templates escape it, names show control characters and
//!   direction marks as escapes, and only URLs of allowed schemes become links.
//! - Texts come from a table for each language, chosen by [`Language::of_header`].

pub mod admin;
mod admin_messages;
mod dates;
mod error;
mod language;
mod messages;
mod record;
pub mod registration;
mod registration_messages;
#[cfg(test)]
mod tests;
mod value;

pub use admin_messages::AdminMessages;
pub use error::{ErrorPage, PageError};
pub use language::{LANGUAGES, Language};
pub use messages::Messages;
pub(crate) use record::shell_quoted;
pub use record::{AnswerDetails, AnswerSource, RecordPage};
pub use registration_messages::RegistrationMessages;

use askama::Template;

/// The header `Content-Security-Policy` of every page: no scripts, nothing from other servers, and
/// no frames.
///
/// The form leads to other servers by redirects, which Chromium refuses with `form-action 'self'`
/// alone.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; \
     form-action 'self' http: https:; base-uri 'none'; frame-ancestors 'none'";

/// The path of the style sheet, below that of the proxy.
pub const STYLE_PATH: &str = "static/gateway.css";
/// The style sheet, as `text/css`.
pub const STYLE: &str = include_str!("pages/gateway.css");
/// The path of the icon, below that of the proxy.
pub const ICON_PATH: &str = "static/gateway.svg";
/// The icon, as `image/svg+xml`.
pub const ICON: &str = include_str!("pages/gateway.svg");

/// Rules for crawlers: everything but the JSON API is allowed.
pub const ROBOTS: &str = "User-agent: *\nDisallow: /api/\n";

/// The same header for administration pages, which have a script.
pub const ADMIN_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; \
     script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The same header for pages about registrations, which have forms for this gateway only.
pub const REGISTRATION_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The path of the script of administration pages, below that of the proxy.
pub const ADMIN_SCRIPT_PATH: &str = "static/admin.js";
/// The script, as `text/javascript`.
pub const ADMIN_SCRIPT: &str = include_str!("pages/admin.js");

/// What all pages of a request have in common.
#[derive(Clone, Copy, Debug)]
pub struct PageFrame<'a> {
    /// The language of the texts.
    pub language: &'static Language,
    /// The name of the service, as its operator calls it.
    pub service: &'a str,
    /// The URL of the proxy, as the client sees it; it ends with a slash.
    pub base: &'a str,
}

impl PageFrame<'_> {
    /// The texts.
    #[must_use]
    pub const fn texts(&self) -> &'static Messages {
        &self.language.messages
    }

    /// The texts of administration pages.
    #[must_use]
    pub const fn admin_texts(&self) -> &'static AdminMessages {
        &self.language.admin
    }

    /// The texts of pages about registrations.
    #[must_use]
    pub const fn registration_texts(&self) -> &'static RegistrationMessages {
        &self.language.registration
    }

    /// The path of the proxy, with which links of pages begin.
    #[must_use]
    pub fn root(&self) -> &str {
        let host_at = self.base.find("://").map_or(0, |at| at + 3);
        self.base[host_at..].find('/').map_or("/", |at| &self.base[host_at + at..])
    }
}

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

fn html(page: &impl Template) -> String {
    page.render().expect("writing to a string does not fail")
}

/// Whether `text` is an e-mail address that pages show as a link.
pub(crate) fn is_mail_address(text: &str) -> bool {
    value::mail_url(text).is_some()
}

/// `text` with `argument` in the place of `{}`.
pub(crate) fn fill(text: &str, argument: impl std::fmt::Display) -> String {
    text.replacen("{}", &argument.to_string(), 1)
}
