//! Sessions: how one is set up, what a message in it has to show, and who knows of it. RFC 3652 section 3.8, with
//! the deployed forms.
//!
//! - [`setup`]: two sides agree on a key.
//! - [`table`]: the sessions of a server, bounded in number, by source and in time. Whoever looks one up takes no
//!   lock, and neither does the check against replay ([`window`]).
//! - [`traffic`]: messages in a session: decrypted and checked when they come, with a MAC and encrypted when they go.
//! - [`protocol`], [`holder`], [`link`]: one table for two processes, over a local socket. The process that answers
//!   queries holds it; the one that administers asks, and has sessions of its own while nobody answers.
//! - [`numbers`]: which process has made a challenge, by its number.
//! - [`forward`]: requests that the one process hands to the other, as frames.
//! - [`endpoint`]: messages opened and sealed, for a process that asks.
//!
//! Time and random numbers come in as arguments. Keys are cleared in memory when a session ends.

pub mod config;
pub mod endpoint;
pub mod forward;
pub mod holder;
pub mod link;
pub mod numbers;
pub mod protocol;
pub mod session;
pub mod setup;
pub mod table;
pub mod traffic;
pub mod window;

pub use config::SessionsConfig;
pub use endpoint::{AnswerSealer, EndpointCounts, IncomingMessage, SessionEndpoint};
pub use holder::{Holder, TakenChallenge};
pub use link::{JointSessions, LinkedSession};
pub use session::{NewSession, Session, SessionIdentity, SessionKeys};
pub use setup::{SetupError, SetupTerms, agree};
pub use table::{SessionCounts, SessionLimits, SessionRefusal, SessionTable};
pub use traffic::{LiveSession, MessageRejection};
