//! Names, values and messages of the Handle System, as views over bytes.
//!
//! This crate implements the protocol as deployed (versions 2.1 to 2.11): RFC 3650 to 3652, with
//! the differences that deployed servers show. It has no I/O, no clock and no unsafe code, and it
//! is `no_std`.
//!
//! - [`name`]: handles, their parts, folding, and which server of a site is responsible.
//! - [`value`] and [`data`]: handle values, and the predefined types inside them.
//! - [`wire`]: messages, from the envelope to every body.
//! - [`code`]: operation codes, response codes and flags, as open newtypes.
//! - [`printable`]: text from other parties, escaped so that it is safe to print.
//! - [`sql`]: references as the tables of deployed servers have them.
//! - `json`: records and sites as JSON, in both directions (feature `json`).
//!
//! Decoding borrows: a view holds slices of the caller's bytes. A view exists only once every
//! length in it has been checked, so its getters cannot fail. Unknown codes and types are kept
//! unchanged; the caller decides about them.
//!
//! ```
//! use handle_proto::wire::list::{Indexes, Strings};
//! use handle_proto::wire::query::Query;
//! use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request};
//! use handle_proto::{Handle, OpCode, OpFlags};
//!
//! // Encode a request for all public values of one handle.
//! let handle = b"10.1045/july95-arms";
//! let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
//! let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 1_700_000_000);
//! let request = Request::Resolution(query);
//! let datagram = MessageBuf::request(&Envelope::request(4711), &header, &request).unsigned()?;
//!
//! // Decode it as a server does. Nothing is copied.
//! let (envelope, rest) = Envelope::split(&datagram)?;
//! let message = Message::decode(rest)?;
//! assert_eq!(message.decode_body(envelope.version)?, Body::Request(request));
//! assert_eq!(Handle(query.handle).naming_authority(), b"10.1045");
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod code;
pub mod data;
pub mod error;
pub mod fold;
#[cfg(feature = "json")]
pub mod json;
pub mod limit;
pub mod name;
pub mod printable;
pub mod sql;
pub mod value;
pub mod wire;

pub use code::{HashOption, OpCode, OpFlags, ResponseCode, Version};
pub use error::{DecodeError, Field};
pub use name::Handle;
pub use value::{Permissions, Value, ValueBuf, Values};
