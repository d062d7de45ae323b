//! The parts of a handle make it up, and equal names have the same key and server.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(name);
