//! Well-formed questions are answered as by a plain search.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(question);
