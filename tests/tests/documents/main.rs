//! The documents against the programs, and the tree against the rules that it promises to follow.

mod admin_settings;
mod commands;
mod configuration;
mod tidy;
