//! An answer of the JSON API stands for a message.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(json_answer);
