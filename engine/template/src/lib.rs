//! Values computed for handles that are not stored, by the templates of their namespace.
//!
//! - [`Namespace`] is read from the XML of HS_NAMESPACE or of the configuration, once; patterns are compiled.
//! - [`Notice`] is what the same XML says to people, which changes nothing here.
//! - [`Chain`] is what applies to a handle: the innermost namespace with an answer has it.
//! - [`Chain::build`] is a function from the handle, the stored values of its base and the templates
//!   to a list of values. It reads nothing but what [`Templates`] gives for a reference.
//! - Everything is bounded ([`limit`]): the text, its depth, the steps, the bytes that are built, the
//!   bytes that patterns see. Patterns take linear time. What goes beyond is an error, not a wait.
//!
//! Templates are not in the RFCs. The language is that of deployed servers, as `conversations.jsonl`,
//! `template`, shows.
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
