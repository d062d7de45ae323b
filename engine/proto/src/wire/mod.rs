//! Handle protocol messages, as views over the bytes that carry them.
//!
//! - Decoding borrows. A view holds a slice of the caller's bytes, no more.
//! - A view exists only once every length in it has been checked, so its getters cannot fail.
//! - What we do not know we keep; the resolver decides what to answer.
//!
//! RFC 3652 section 2.2 for the frame, section 3 for the bodies.

pub mod cursor;
pub mod envelope;
pub mod header;
pub mod list;
pub mod message;
pub mod put;
pub mod query;

pub use envelope::Envelope;
pub use header::Header;
pub use message::Message;
