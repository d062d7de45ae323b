//! For every request the answer is a message with its id and without private values.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(resolver);
