//! The write process: keeps the authoritative records and changes them for their administrators.
//!
//! - [`store`]: the records, durable before a change is acknowledged, with a log of what happened.
#![forbid(unsafe_code)]

pub mod store;
