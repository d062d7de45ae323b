//! Well-formed questions are answered like a plain search answers them.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(question);
