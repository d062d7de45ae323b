//! Frames about many changes between the gateway and `handle-admin` encode to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(bulk_socket);
