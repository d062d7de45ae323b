//! Requests of a capture are complete, and occur in it unchanged.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(capture);
