//! The whole system in one command.
