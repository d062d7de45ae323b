//! Handles, values and messages of the Handle System.
//!
//! Views over bytes for the Handle System protocol as deployed (versions 2.1 to 2.11): RFC
//! 3650-3652 with the differences that deployed servers show. No I/O, no clock, no unsafe code.
//!
//! - [`name`]: handles, their parts, folding, and which server of a site is responsible.
//! - [`value`] and [`data`]: handle values and the predefined types inside them.
//! - [`wire`]: messages, from the envelope to every body.
//! - [`code`]: operation codes, response codes and flags, as open newtypes.
//! - [`printable`]: untrusted text, made safe to show.
//! - `json`: records and sites as JSON, in both directions (feature `json`).
//!
//! Decoding borrows: a view holds slices of the caller's bytes. A view exists only once every
//! length in it has been checked, so its getters cannot fail. Unknown codes and bits are kept.
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
pub mod value;
pub mod wire;

pub use code::{HashOption, OpCode, OpFlags, ResponseCode, Version};
pub use error::{DecodeError, Field};
pub use name::Handle;
pub use value::{Permissions, Value, ValueBuf, Values};
