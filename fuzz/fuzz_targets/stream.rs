//! However a stream arrives, the same messages come out of it.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(stream);
