//! A lookup ends within its limits for any answers, and accepts nothing unsigned.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(lookup);
