//! Templates end within their limits, are deterministic, and give values that decode.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(template);
