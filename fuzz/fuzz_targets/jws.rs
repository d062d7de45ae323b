//! An invented key has signed nothing.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(jws);
