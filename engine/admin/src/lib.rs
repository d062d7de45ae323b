//! The write process: keeps the authoritative records and changes them for their administrators.
//!
//! - [`store`]: the records, durable before a change is acknowledged, with a log of what happened.
//! - [`publish`]: from changes in the store to sets that resolvers serve.
#![forbid(unsafe_code)]

pub mod publish;
pub mod store;
