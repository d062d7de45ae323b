//! Settings of deployed software are parsed, or rejected with a valid line number.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(settings);
