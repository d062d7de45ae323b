//! Values computed for handles that are not stored, by the templates of their namespaces.
//!
//! - [`Namespace`] is parsed once from the XML of HS_NAMESPACE or of the configuration; its
//!   patterns are compiled then.
//! - [`Notice`] is the information for people in the same XML. It does not affect computed values.
//! - [`Chain`] is the list of namespaces that apply to a handle. The innermost one with an answer
//!   wins.
//! - [`Chain::build`] computes a list of values from the handle, the stored values of its base and
//!   the templates. It reads nothing but what [`Templates`] returns for a reference.
//! - Everything is bounded ([`limit`]): the length of the text, its depth, the steps, the bytes
//!   that are built and the bytes that are matched. Patterns take linear time. Exceeding a bound is
//!   an error.
//!
//! Templates are not in the RFCs. The language is that of deployed servers; the vectors
//! `conversations.jsonl`, category `template`, show it.
//!
//! ```
//! use handle_proto::Value;
//! use handle_template::limit::CompileBudget;
//! use handle_template::{BuildOutcome, Chain, Namespace, Parts, ReferencedTemplates, Templates};
//!
//! /// The templates of this example refer to no others.
//! struct NoReferences;
//!
//! impl Templates for NoReferences {
//!     fn at(&self, _: &[u8], _: i32, _: &mut CompileBudget) -> Option<ReferencedTemplates> {
//!         None
//!     }
//! }
//!
//! let xml = br#"<namespace><template delimiter="@">
//!     <foreach><value data="${data}?part=${extension}"/></foreach>
//! </template></namespace>"#;
//! let namespace = Namespace::parse(xml, true)?;
//! let mut chain = Chain::new();
//! chain.push(&namespace);
//!
//! // `10.1045/july95@7` is not stored, but its base `10.1045/july95` is.
//! let parts = Parts::of(b"10.1045/july95@7", b"@").expect("the handle has a delimiter");
//! let stored = [Value::new(1, b"URL", b"https://example.org/arms")];
//! let outcome = chain.build(&parts, &stored, &NoReferences, &mut CompileBudget::default())?;
//! let BuildOutcome::Values { bytes, count: 1 } = outcome else { panic!("one value is computed") };
//! assert_eq!(Value::split(&bytes)?.0.data, b"https://example.org/arms?part=7");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
