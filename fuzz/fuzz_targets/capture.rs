//! Requests of a capture are whole, and stand in it as they are.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(capture);
