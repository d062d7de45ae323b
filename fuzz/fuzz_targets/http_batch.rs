//! A line of a batch is one change, as a message about its handle.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(http_batch);
