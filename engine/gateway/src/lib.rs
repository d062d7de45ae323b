//! The HTTP front of the Handle System: what a browser asks for, and what it gets.
//!
//! - [`input`]: the handle in the path of a request, or in the field of a form.
//! - [`redirect`]: what a proxy does with a resolved record.
//! - [`location`]: 10320/loc, the locations among which it chooses.
//! - [`accept`]: the media types that a client prefers.
//! - [`pages`]: forms, records and errors as HTML.
//!
//! These modules have no I/O, no clock and no randomness: the caller resolves handles, and passes
//! time, random numbers and the country of the client.
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
pub mod input;
pub mod location;
pub mod pages;
pub mod redirect;
