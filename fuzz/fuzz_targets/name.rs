//! The parts of a handle make it up, and what counts as the same name has the same key and server.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(name);
