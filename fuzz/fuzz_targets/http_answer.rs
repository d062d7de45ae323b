//! An answer over HTTP ends in one place, however it arrives.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(http_answer);
