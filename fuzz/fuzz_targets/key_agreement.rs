//! Both sides of an agreement reach the same secret, or refuse.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(key_agreement);
