//! Fragments in any order, repeated and mixed with noise, give the original messages.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(fragments);
