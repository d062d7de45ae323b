//! Sessions: set-up, protection of messages, and sharing between processes. RFC 3652 section 3.8,
//! with the deployed forms.
//!
//! - [`setup`]: two sides agree on a key.
//! - [`table`]: the sessions of a server, bounded in number, by source and in time. Lookups take no
//!   lock, and neither does the replay check ([`window`]).
//! - [`traffic`]: messages in a session: incoming ones are decrypted and checked, outgoing ones get
//!   a MAC and are encrypted.
//! - [`protocol`], [`holder`], [`link`]: one table for two processes, over a local socket.
//!   `handled` holds the table; `handle-admin` sends requests to it, and has sessions of its own
//!   while `handled` does not answer.
//! - [`row`], [`shared`]: sessions of several `handle-admin` over one database.
//! - [`numbers`]: which process has created a challenge or session, by its number.
//! - [`endpoint`]: opens and seals messages, for a process that shares the table of another.
//!
//! Time and random numbers come in as arguments. Keys are cleared in memory when a session ends.
//!
//! # Example
//!
//! A message gets its MAC on one side, and is accepted once on the other.
//!
//! ```
//! use handle_auth::session::SessionKey;
//! use handle_auth::source::RequestOrigin;
//! use handle_proto::code::Cipher;
//! use handle_proto::wire::{Envelope, Header, Message, MessageBuf};
//! use handle_proto::{OpCode, OpFlags, Version};
//! use handle_session::traffic::{check, seal};
//! use handle_session::{MessageRejection, NewSession, SessionTable, SessionsConfig};
//!
//! let side = || {
//!     let table = SessionTable::new(SessionsConfig::default().limits());
//!     let key = SessionKey::new(Cipher::AES, vec![7; 32]).unwrap();
//!     let origin = RequestOrigin::connection([192, 0, 2, 1].into());
//!     let new = NewSession { key, version: Version::CURRENT, claim: None, timeout_s: 60, origin };
//!     table.open(new, || 5, |_| false, 0).unwrap()
//! };
//! let (client, server) = (side(), side());
//!
//! let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
//! let envelope = Envelope { session_id: 5, ..Envelope::request(9) };
//! let message = MessageBuf::new(&envelope, &header, |body| body.extend_from_slice(b"body"));
//! let mut message = message.unsigned().unwrap();
//! seal(&*client, &mut message).unwrap();
//!
//! let (envelope, rest) = Envelope::split(&message).unwrap();
//! let received = Message::decode(rest).unwrap();
//! assert_eq!(check(&*server, &envelope, &received, 1), Ok(true));
//! assert_eq!(check(&*server, &envelope, &received, 2), Err(MessageRejection::Replayed(1)));
//! ```
#![forbid(unsafe_code)]

pub mod config;
pub mod endpoint;
pub mod facts;
mod fields;
pub mod holder;
pub mod link;
pub mod numbers;
pub mod protocol;
pub mod row;
pub mod session;
pub mod setup;
pub mod shared;
pub mod table;
pub mod traffic;
pub mod window;

pub use config::SessionsConfig;
pub use endpoint::{AnswerSealer, EndpointCounts, IncomingMessage, SessionEndpoint};
pub use facts::{NewSession, SessionIdentity, SessionKeys, SessionRefusal};
pub use holder::TakenChallenge;
pub use link::{JointSessions, LinkedSession};
pub use row::{RowChange, RowsUnavailable, SessionRow, SessionRows};
pub use session::Session;
pub use setup::{SetupError, SetupTerms, agree};
pub use table::{SessionCounts, SessionLimits, SessionTable};
pub use traffic::{LiveSession, MessageRejection};
