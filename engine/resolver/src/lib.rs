//! Request bytes in, reply parts out: answers handle requests from a published set of records.
//!
//! The resolver is a pure function. It has no I/O, no clock and no allocation: time comes in as an
//! argument, the parts of a reply borrow from the request and from the snapshot, and only computed
//! parts are copied.
//!
//! - [`answer()`]: answers one request; the definition.
//! - [`batch`]: answers many requests, in stages that hide the latency of memory.
//! - [`reply`]: the parts of a reply, and how they are written as datagrams.
//! - [`slow`]: requests for the slow path: signatures, challenges and their answers.
//! - [`authority`]: checks administrators, named directly or through groups.
//!
//! The answers are those of a server without recursion: RFC 3652 section 3.2 and
//! `docs/conformance.md`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod answer;
pub mod authority;
pub mod batch;
mod digest;
mod fast_path;
mod referral;
pub mod refusal;
pub mod reply;
mod request;
mod select;
mod service;
pub mod slow;

pub use answer::{AnswerOutcome, NotLocal, answer, answer_message, refuse_listing, refuse_stream};
pub use batch::{InBatch, answer_batch, answer_messages};
pub use fast_path::FastAnswer;
pub use refusal::RefusalReason;
pub use reply::{ReplyParts, too_long};
pub use request::DropReason;
pub use select::SortingRoom;
pub use service::{AnswerContext, MayCompute, ServiceFacts};
pub use slow::SlowPathRequest;
