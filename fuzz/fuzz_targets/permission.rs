//! Permission decisions agree with a plain search.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(permission);
