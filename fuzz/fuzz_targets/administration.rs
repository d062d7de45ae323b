//! Only identities with the right change anything, once for each challenge.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(administration);
