//! Templates come to an end within their bounds, always the same, with values that decode.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(template);
