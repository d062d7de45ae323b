//! The HTML of these pages, and what all pages of the gateway have in common.
//!
//! - The style sheet is [`STYLE`], served at [`STYLE_PATH`]; only administration pages have a
//!   script, [`ADMIN_SCRIPT`].
//! - Texts come from a table for each language, chosen by [`Language::preferred`]. It has the texts
//!   of the public pages as well, so that a language is added in one place.
//! - Whatever others have written is untrusted. Templates escape it.

pub mod admin;
mod admin_messages;
pub mod dates;
pub mod facts;
mod language;
mod messages;
pub mod registration;
mod registration_messages;

pub use admin_messages::AdminMessages;
pub use language::{LANGUAGES, Language};
pub use messages::Messages;
pub use registration_messages::RegistrationMessages;

use askama::Template;

/// The path of the style sheet, below that of the proxy.
pub const STYLE_PATH: &str = "static/gateway.css";
/// The style sheet, as `text/css`.
pub const STYLE: &str = include_str!("pages/gateway.css");
/// The path of the icon, below that of the proxy.
pub const ICON_PATH: &str = "static/gateway.svg";
/// The icon, as `image/svg+xml`.
pub const ICON: &str = include_str!("pages/gateway.svg");

/// The header `Content-Security-Policy` of administration pages, which have a script: nothing from
/// other servers, and no frames.
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

/// A page as HTML.
pub fn html(page: &impl Template) -> String {
    page.render().expect("writing to a string does not fail")
}

/// Whether `text` is an e-mail address that pages show as a link.
pub(crate) fn is_mail_address(text: &str) -> bool {
    facts::mail_url(text).is_some()
}

/// `text` with `argument` in the place of `{}`.
pub fn fill(text: &str, argument: impl std::fmt::Display) -> String {
    text.replacen("{}", &argument.to_string(), 1)
}

/// A word for a POSIX shell.
#[must_use]
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:@%+,=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
