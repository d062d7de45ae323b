//! The limiter of answers is its definition where nothing is shared, and never lets more out.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(rate_limit);
