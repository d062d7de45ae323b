//! Frames about callers between the gateway and `handle-admin` encode to the same values.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(caller_socket);
