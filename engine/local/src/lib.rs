//! The one local socket of `handle-admin`, at which the other processes of its host hand over work:
//! frames, kinds, limits by kind, and both ends.
//!
//! - Everything on the socket is a frame: its [header](frame::FrameHeader) has a version, a kind
//!   and a length, the same for requests and replies.
//! - A connection has the [kind](kind::LocalKind) of its first frame. Each kind has its own limits,
//!   and names the users that may use it; the kernel names the user of each connection.
//! - The [listener](socket) checks version, user and kind before it reads the content of a frame,
//!   and bounds connections by kind and by user. It tells those that it [refuses](refusal) why.
//! - Frames may have secrets, so their buffers are cleared when they are dropped.
//!
//! | kind | who connects | exchange |
//! |---|---|---|
//! | [`forward`] | `handled` | a request and its answer; a listing goes on part by part as it is requested |
//! | [`bulk`] | `handle-gateway` | a caller proves itself, then frames of changes or searches, each with a reply |
//! | [`callers`] | `handle-gateway` | a request about a caller and its reply |
//! | [`relay`] | `handle-gateway` | one request; the answer is a stream of frames that an empty one ends |
//! | `changes` | programs that follow changes | a line of JSON; the answer is a stream of frames with lines |
//!
//! # Example
//!
//! ```
//! use handle_local::frame::{self, FrameHeader};
//! use handle_local::kind::LocalKind;
//!
//! let sent = frame::encode(LocalKind::Relay, 9, |content| content.extend_from_slice(b"a message"));
//! let received = frame::read(&mut &sent[..], LocalKind::Relay, 100).unwrap();
//! assert_eq!(&received[..], b"a message");
//! assert_eq!(sent.len(), FrameHeader::LEN + received.len());
//! assert!(frame::read(&mut &sent[..], LocalKind::Forward, 100).is_err(), "another kind");
//! assert!(frame::read(&mut &sent[..], LocalKind::Relay, 8).is_err(), "too long");
//! ```
#![forbid(unsafe_code)]

pub mod bulk;
pub mod callers;
pub mod client;
pub mod config;
#[cfg(feature = "tokio")]
pub mod connection;
mod fields;
pub mod forward;
pub mod frame;
pub mod kind;
pub mod refusal;
pub mod relay;
#[cfg(feature = "tokio")]
pub mod socket;
