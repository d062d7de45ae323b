//! Accounts of requests, expected answers, and verdicts on runs.

pub mod assertion;
pub mod comparison;
pub mod counts;
pub mod expect;
pub mod expected_records;
pub mod followed_set;
mod redirect;
pub mod replay;
pub mod verify;
