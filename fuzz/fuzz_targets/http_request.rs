//! What a client sends over HTTP leads to no other host and to no value that does not decode.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(http_request);
