//! Fragments in any order, repeated and among noise, give the messages that were cut.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(fragments);
