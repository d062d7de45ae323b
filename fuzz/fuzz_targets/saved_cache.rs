//! Entries of a saved cache are public and decode, and are the same after another writing.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(saved_cache);
