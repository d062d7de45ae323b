//! The write process: keeps the authoritative records and changes them for their administrators.
//!
//! - [`store`]: the records, durable before a change is acknowledged, with a log of what happened.
//! - [`permission`]: who may do what: the deployed table, and whether an identity has what it takes.
//! - [`operation`]: what a request comes to, as a function of records, rules, request and who asks.
//! - [`remote`]: what other services say about identities whose handles are not here.
//! - [`forward`]: requests that `handled` hands over; [`referral`]: resolution for clients that know no referrals.
//! - [`service`]: messages in, messages out: opened, decided, authenticated, carried out, sealed.
//! - [`publish`]: from changes in the store to sets that resolvers serve.
//! - [`audit`], [`counters`]: who did what, and how often what happened.
//! - [`disk`]: room on the disks, seen before it is gone.
//! - [`config`], [`settings`], [`server`], [`connections`], [`control`], [`observe`], [`health`], [`program`]: the process around it.
#![forbid(unsafe_code)]

pub mod audit;
pub mod config;
pub mod connections;
pub mod control;
pub mod costly;
pub mod counters;
pub mod disk;
pub mod forward;
pub mod health;
pub mod observe;
pub mod operation;
pub mod permission;
pub mod program;
pub mod publish;
pub mod referral;
pub mod remote;
pub mod server;
pub mod service;
pub mod settings;
pub mod store;
