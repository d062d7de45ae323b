//! Only what is written as a MANIFEST is read as one.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(manifest);
