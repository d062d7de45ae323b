//! Nothing changes but by whoever may, once for each challenge.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(administration);
