//! The rate limit equals its definition if no slots are shared, and never permits more.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(rate_limit);
