//! A record that a source answers is that of the handle, and its JSON reads back as the same.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(source_answer);
