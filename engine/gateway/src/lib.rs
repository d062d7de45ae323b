//! The HTTP process: answers people and programs that do not speak the handle protocol.
//!
//! - [`config`]: the configuration, checked before anything starts.
//! - [`set`]: the published set that is mapped in this process, and how a new one goes live.
//! - [`upstream`]: the Handle System, for handles that the set does not have.
//! - [`administration`]: the service that makes changes and shows what is not public.
//! - [`record`]: the answer to a question, from the set or from upstream.
//! - [`target`], [`parameters`]: what a request asks for, in its path and its query.
//! - [`reply`]: an HTTP response and the headers that all responses share.
//! - [`api`]: the JSON API.
//! - [`native`]: messages of the handle protocol in bodies of POST.
//! - [`proxy`]: every other path: redirects and pages.
//! - [`route`]: which of these three answers a request.
//! - [`tls`]: the certificate of this process.
//! - [`worker`], [`connections`]: a thread for each core, and the connections that it serves.
//! - [`settings`]: the settings in force, and their reload.
//! - [`server`], [`program`]: starts and stops all parts; the arguments.
//! - [`control`], [`observe`], [`counters`]: what operators see.
//!
//! # Design
//!
//! - **A thread for each core, with its own listener and its own runtime.** A connection stays on the
//!   thread that accepted it, so nothing on the way of a request is shared but the pointer to the
//!   live set and counters.
//! - **Answers from the set are made without waiting.** Only a handle that the set does not have, a
//!   body and a forwarded message make a request wait.
//! - **A record found in the set is answered directly; everything else that the set says is decided
//!   by `handle-resolver`,** which knows referrals, other servers of the site and prefixes that are
//!   not here. Its answer to the same request over the handle protocol is the definition.
//! - **The entity tag is a hash of the body,** so it cannot name another representation.
#![forbid(unsafe_code)]

pub mod administration;
pub mod api;
pub mod config;
pub mod connections;
pub mod control;
pub mod counters;
pub mod native;
pub mod observe;
pub mod parameters;
pub mod program;
pub mod proxy;
pub mod record;
pub mod reply;
pub mod route;
pub mod server;
pub mod set;
pub mod settings;
pub mod target;
pub mod tls;
pub mod upstream;
pub mod worker;

pub use config::Config;
pub use server::Gateway;
