//! Helpers of the tests of several crates: servers, clients, golden vectors, messages as JSON.
#![forbid(unsafe_code)]

pub mod acme_authority;
pub mod admin_server;
pub mod batches;
pub mod client;
pub mod country_file;
pub mod daemon;
pub mod fields;
pub mod fleet;
pub mod forged;
pub mod forwarding;
pub mod gateway_server;
pub mod http;
pub mod initialised;
pub mod interceptor;
pub mod json_schema;
pub mod killed;
pub mod lab;
pub mod liar;
pub mod openapi;
pub mod process;
pub mod records;
pub mod records_server;
pub mod registrar;
pub mod replication;
pub mod services;
pub mod session;
pub mod site;
pub mod test_server;
pub mod transcripts;
pub mod upstream_server;
pub mod vectors;
