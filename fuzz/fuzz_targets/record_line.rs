//! The reader of lines agrees with the reader of trees.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(record_line);
