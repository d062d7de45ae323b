//! Values computed for handles that are not stored, by the templates of their namespaces.
//!
//! - [`Namespace`] is parsed once from the XML of HS_NAMESPACE or of the configuration; patterns
//!   are compiled.
//! - [`Notice`] has the parts of the same XML for people. They have no effect here.
//! - [`Chain`] has the namespaces of a handle: the innermost one with an answer decides.
//! - [`Chain::build`] is a function from the handle, the stored values of its base and the
//!   templates to a list of values. It reads nothing but what [`Templates`] returns for a
//!   reference.
//! - Everything is bounded ([`limit`]): the text, its depth, the steps, the built bytes, the bytes
//!   that patterns match. Patterns take linear time. Exceeding a limit is an error, not a wait.
//!
//! Templates are not in the RFCs. The language is that of deployed servers, as
//! `conversations.jsonl`, `template`, shows.
#![forbid(unsafe_code)]

mod build;
mod chain;
mod language;
pub mod limit;
mod namespace;
mod notice;
mod pattern;
#[cfg(test)]
mod tests;
mod text;

pub use build::{BuildError, BuildOutcome, Templates};
pub use chain::{Chain, Parts};
pub use namespace::{Namespace, NamespaceError, ReferencedTemplates};
pub use notice::Notice;
pub use pattern::InvalidPattern;
