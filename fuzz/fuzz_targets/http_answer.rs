//! The end of an answer over HTTP does not depend on how it is split.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(http_answer);
