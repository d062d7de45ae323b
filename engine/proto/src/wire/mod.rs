//! Handle protocol messages, as views over the bytes that carry them.
//!
//! - Decoding borrows. A view holds a slice of the caller's bytes, no more.
//! - A view exists only once every length in it has been checked, so its getters cannot fail.
//! - Unknown codes and bits are kept; the resolver decides what to answer.
//!
//! RFC 3652 section 2.2 for the frame, section 3 for the bodies.

pub mod admin;
pub mod auth;
pub mod bulk;
pub mod counter;
pub mod credential;
pub mod cursor;
pub mod digest;
pub mod envelope;
pub mod failure;
pub mod fragment;
pub mod guard;
pub mod header;
pub mod list;
pub mod message;
pub mod put;
pub mod query;
pub mod reassembly;
pub mod referral;
pub mod replication;
pub mod replication_stream;
pub mod request;
pub mod response;
pub mod session;
pub mod stream;
#[cfg(test)]
mod testing;

pub use credential::Credential;
pub use envelope::Envelope;
pub use header::Header;
pub use message::{Body, Message, MessageBuf};
pub use request::Request;
pub use response::{Reply, Response};
