//! An answer of the JSON API becomes the equivalent message.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(json_answer);
