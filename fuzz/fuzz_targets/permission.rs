//! Who may do what is what a plain search says.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(permission);
