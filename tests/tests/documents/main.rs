//! Documents agree with the programs, and the source files with the rules of `CONTRIBUTING.md`.

mod commands;
mod configuration;
mod settings;
mod tidy;
