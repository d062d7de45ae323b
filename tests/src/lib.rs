//! What the tests of several crates share: golden vectors, and messages as JSON.
#![forbid(unsafe_code)]

pub mod client;
pub mod daemon;
pub mod fields;
pub mod lab;
pub mod process;
pub mod records;
pub mod served;
pub mod site;
pub mod vectors;
