//! The HTTP process: answers people and programs that do not speak the handle protocol.
//!
//! - [`config`]: the configuration, checked before anything starts.
//! - [`set`]: the published set that is mapped in this process, and how a new one goes live.
//! - [`upstream`]: the Handle System, for handles that the set does not have.
//! - [`administration`]: the service that makes changes and shows restricted values; [`bulk`]: many
//!   changes at its local socket.
//! - [`callers`]: callers of the API, whose identity that service verifies; [`sessions`]: their
//!   sessions.
//! - [`record`]: the answer to a question, from the set or from upstream.
//! - [`fast_path`]: plain requests for records of the set.
//! - [`target`]: what a request asks for in its path.
//! - [`conditions`]: the states of a record on which a change is conditional.
//! - [`compression`]: the content coding of a body.
//! - [`reply`]: an HTTP response and the headers that all responses share; [`stream`]: its body.
//! - [`api`]: the JSON API.
//! - [`console`]: the pages of [`handle_console`], for administrators and applicants for a prefix.
//! - [`native`]: messages of the handle protocol in bodies of POST.
//! - [`proxy`]: every other path: redirects and pages, made of the five modules that follow.
//! - [`input`]: the handle in the path of a request, or in the field of a form.
//! - [`redirect`]: what a proxy does with a resolved record.
//! - [`location`]: 10320/loc, the locations among which it chooses.
//! - [`country`]: the country of a client. [`agency`]: the agency of a prefix. [`identifiers`]:
//!   identifiers that are not handles.
//! - [`accept`]: the media types and languages that a client prefers.
//! - [`pages`]: forms, records and errors as HTML.
//! - [`route`]: all paths and methods, and the OpenAPI document of them. [`dispatch`]: which of
//!   these answers a request.
//! - [`tls`]: the certificate of this process; [`acme`]: how it is ordered and renewed.
//! - [`outbound`]: requests of this process to HTTP servers.
//! - [`worker`], [`connections`]: a thread for each core, and the connections that it serves.
//! - [`admission`], [`refusal`]: the checks of a request before it is routed, and the answers to
//!   refused ones.
//! - [`proxies`], [`rate_limit`], [`secret_guesses`]: the client of a request, and its limits on
//!   requests per second and on wrong secret keys.
//! - [`request_log`]: a line for each request.
//! - [`selection`]: the values that a request names.
//! - [`answers`]: limits by source on bytes of answers that wait for their clients.
//! - [`visibility`]: when a change is answered.
//! - [`settings`]: the settings in force, and their reload.
//! - [`server`], [`program`]: starts and stops all parts; the arguments. [`phase`]: the phases
//!   between.
//! - [`control`], [`observe`], [`counters`]: what operators see.
//!
//! # Design
//!
//! - **A thread for each core, with its own listener and its own runtime.** A connection stays on
//!   the thread that accepted it, so nothing on the way of a request is shared but the pointer to
//!   the live set and counters.
//! - **Answers from the set are made without waiting.** Only a handle that the set does not have, a
//!   body and a forwarded message make a request wait.
//! - **A record found in the set is answered directly; everything else that the set says is decided
//!   by `handle-resolver`,** which knows referrals, other servers of the site and prefixes that are
//!   not here. Its answer to the same request over the handle protocol is the definition.
//! - **The entity tag of a record is a hash of its public values,** which `handle-admin` computes
//!   alike when a change is conditional on it. That of any other body is a hash of the body.
//!
//! # Example
//!
//! The decision about a redirect has no I/O, no clock and no randomness: the caller resolves
//! handles, and passes time, random numbers and the country of the client.
//!
//! ```
//! use handle_gateway::redirect::{
//!     AliasChain, ProxyDecision, ProxyParameters, ProxyRequest, ProxyStep, RedirectRules, choose, next_step,
//! };
//! use handle_proto::Value;
//!
//! let rules = RedirectRules::default();
//! let parameters = ProxyParameters::parse("urlappend=%2Fpart");
//! let request = ProxyRequest::new("https://hdl.example.org/", &parameters, &rules);
//! let values = [Value::new(1, b"URL", b"https://example.org/one")];
//!
//! let mut chain = AliasChain::new(b"20.500.1/x");
//! let ProxyStep::Locate(locations) = next_step(&request, &values, &mut chain) else { panic!("no alias") };
//! // A proxy adds the locations of the records that `further_records` names.
//! let ProxyDecision::Redirect(redirect) = choose(&request, &locations, chain.handle()) else { panic!() };
//! assert_eq!((redirect.status, redirect.location.as_str()), (302, "https://example.org/one/part"));
//! assert_eq!(redirect.cache_s, 86_400);
//! ```
#![forbid(unsafe_code)]

pub mod accept;
pub mod acme;
pub mod administration;
pub mod admission;
pub mod agency;
pub mod answers;
pub mod api;
pub mod body_collection;
pub mod body_streams;
pub mod bulk;
pub mod caller_sessions;
pub mod callers;
pub mod compression;
pub mod conditions;
pub mod config;
pub mod connections;
pub mod console;
pub mod control;
pub mod counters;
pub mod country;
pub mod dispatch;
pub mod failure_series;
pub mod fast_path;
pub mod identifiers;
pub mod input;
pub mod inputs;
pub mod listeners;
pub mod location;
pub mod native;
pub mod observe;
pub mod outbound;
pub mod pages;
pub mod peer;
pub mod phase;
pub mod program;
pub mod proxies;
pub mod proxy;
pub mod rate_limit;
pub mod record;
pub mod redirect;
pub mod refusal;
pub mod reload;
pub mod reply;
pub mod request_head;
pub mod request_log;
pub mod route;
pub mod secret_guesses;
pub mod selection;
pub mod server;
pub mod sessions;
pub mod set;
pub mod settings;
pub mod state;
pub mod stream;
pub mod target;
pub mod tls;
pub mod uncounted_refusal;
pub mod upstream;
pub mod visibility;
pub mod worker;

pub use config::Config;
pub use server::Gateway;
