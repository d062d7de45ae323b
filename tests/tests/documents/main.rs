//! The documents against the programs, and the tree against the rules that it promises to follow.

mod commands;
mod configuration;
mod settings;
mod tidy;
