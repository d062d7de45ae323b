//! Answers handle requests from a published set of records: request bytes in, reply parts out.
//!
//! [`answer()`] is a pure function. It does no I/O, reads no clock and allocates nothing. Time is
//! an argument, the parts of a reply borrow from the request and from the snapshot, and only
//! computed parts are copied.
//!
//! - [`answer()`]: one request; the definition.
//! - [`batch`]: the same for many requests, in stages that hide the latency of memory.
//! - [`reply`]: the reply, and how it is written as datagrams.
//! - [`slow`]: requests for another thread: signatures, challenges and their answers.
//! - [`authority`]: the identities that an administrator value entitles, directly or through
//!   groups.
//!
//! RFC 3652 section 3.2 and `docs/conformance.md` say what a server without recursion answers.
//!
//! ```
//! use handle_proto::wire::list::{Indexes, Strings};
//! use handle_proto::wire::query::Query;
//! use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
//! use handle_proto::{OpCode, OpFlags, ResponseCode, Value};
//! use handle_resolver::{AnswerContext, AnswerOutcome, ServiceFacts, WireReply as _, answer};
//! use handle_snapshot::{Builder, HomedPrefixes, Layer, LayerOptions, RecordSet};
//! use std::io::Cursor;
//!
//! let mut homed = HomedPrefixes::default();
//! homed.add(b"10.1045");
//! let options = LayerOptions { seed: 42, folds: true, created_unix_ms: 0 };
//! let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
//! builder.add(0, b"10.1045/july95-arms", [Value::new(1, b"URL", b"https://example.org/")])?;
//! let layers = [Layer::open(builder.finish(Cursor::new(Vec::new()))?.0.into_inner())?];
//!
//! let now_unix_s = 1_700_000_000;
//! let handle = b"10.1045/july95-arms";
//! let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
//! let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, now_unix_s);
//! let request = Request::Resolution(query);
//! let datagram = MessageBuf::request(&Envelope::request(4711), &header, &request).unsigned()?;
//!
//! let context = AnswerContext::new(RecordSet::new(&layers)?, ServiceFacts::ALONE, now_unix_s);
//! let AnswerOutcome::Reply(reply) = answer(&context, &datagram) else { panic!("a reply") };
//! assert_eq!((reply.response_code(), reply.datagrams_count()), (ResponseCode::SUCCESS, 1));
//! let mut out = vec![0; reply.datagrams_len()];
//! reply.write_datagrams(&mut out);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design
//!
//! - **Answers are copied, not gathered.** Copying an answer of 200 bytes into the outbox costs
//!   less than its `iovec`s cost the kernel, and a retired map can be released when the batch is
//!   done.
//! - **One comparison recognises a plain request**, which asks for public values without a
//!   signature. Nearly all requests are plain. They go through the stages; every other request is
//!   answered in one step or left to the slow path, so plain requests pay for no other feature.
//! - **The fast path** (`fast_path.rs`) takes a plain request inside the stages: one whole message
//!   with exact lengths, without session, lists or digest, whose answer fits into one datagram. Its
//!   answer is written from request and record without the general form of a reply: 863
//!   instructions instead of 1,267, and two thirds of the time. The general path remains the
//!   definition; a test changes each bit of such a request and compares both.
//! - **Selecting by index or type passes over the values twice**, once to count and once to copy,
//!   so that no list of parts needs memory.
//! - **A worker makes at most 8,192 comparisons for one request** (`QUERY_COMPARISONS_MAX`). The
//!   slow path sorts longer lists ([`SortingBuffer`]).
//! - **Replies to unreadable requests** have version 2.3 and request id -1, byte for byte as
//!   deployed. A message with that id is never answered, so that two servers cannot keep each other
//!   busy.
//! - **Peers below version 2.5 get no referral**, because they read its code as another one.
//! - **A cache of other services' records is one more source** ([`RecordCache`]). It is asked after
//!   the set, and only where the prefix is not homed, so a server without one pays a comparison for
//!   each pass through the stages.
//! - **On a case-sensitive service, handles of `0.` prefixes do not fold either**, as the reference
//!   shows.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod answer;
pub mod authority;
pub mod batch;
mod digest;
mod fast_path;
mod local_record;
mod question;
mod record_key;
mod referral;
pub mod refusal;
pub mod reply;
mod request;
mod select;
mod service;
pub mod slow;
mod sorting;

pub use answer::{AnswerOutcome, answer, answer_message, refuse_listing, refuse_stream};
pub use batch::{InBatch, answer_batch, answer_messages};
pub use fast_path::FastAnswer;
pub use local_record::NotLocal;
pub use refusal::RefusalReason;
pub use reply::{ReplyParts, WireReply, too_long};
pub use request::DropReason;
pub use service::{AnswerContext, CachedLookup, MayCompute, RecordCache, ServiceFacts, StagedCacheLookup};
pub use slow::SlowPathRequest;
pub use sorting::SortingBuffer;
