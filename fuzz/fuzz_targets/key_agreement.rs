//! Both sides of a key agreement get the same secret, or reject it.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(key_agreement);
