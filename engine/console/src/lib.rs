//! The pages of `handle-gateway` for people who sign in, and for those who apply for a prefix.
//!
//! - [`admin_pages`]: the administration pages, below `/admin/`.
//! - [`registration`]: registration of prefixes over the web, below `/register`.
//! - [`pages`]: the HTML of these pages, and what all pages of the gateway have in common: frame,
//!   style, languages.
//! - [`parameters`]: the fields of forms and queries.
//! - [`request`]: a request for a page; [`reply`]: its answer.
//! - [`host`]: what the process that serves the pages does for them.
//!
//! The crate has no state of a process. The gateway finds the page of a path in its table of
//! routes, and implements [`host::ConsoleHost`]: it reads bodies, signs callers in, and sends
//! requests to `handle-admin`, within its limits.
//!
//! # Example
//!
//! ```
//! use handle_console::pages::{AdminMessages, LANGUAGES, Language, PageFrame};
//! use handle_console::parameters::Parameters;
//!
//! let form = Parameters::parse("prefix=20.500.1%2F&page=2");
//! assert_eq!((form.first("prefix"), form.first("page")), (Some("20.500.1/"), Some("2")));
//!
//! let language = Language::preferred(["ja", "de"]);
//! let frame = PageFrame { language, service: "Handles", base: "https://hdl.example.org/proxy/" };
//! assert_eq!((frame.language.tag, frame.root()), ("de", "/proxy/"));
//! let texts: &AdminMessages = frame.admin_texts();
//! assert_ne!(texts.sign_in, LANGUAGES[0].admin.sign_in);
//! ```
#![forbid(unsafe_code)]

pub mod admin_pages;
pub mod host;
pub mod pages;
pub mod parameters;
pub mod registration;
pub mod reply;
pub mod request;

pub use host::ConsoleHost;
pub use request::ConsoleRequest;
