//! Documents agree with the programs, and the source files with the rules of `CONTRIBUTING.md`.

mod alerts;
mod commands;
mod configuration;
mod manuals;
mod metrics;
mod packages;
mod pages;
mod processes;
mod settings;
mod tidy;
mod types;
