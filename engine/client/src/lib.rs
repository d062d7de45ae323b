//! Finds the service that is responsible for a handle, and asks it.
#![forbid(unsafe_code)]

pub mod administration;
