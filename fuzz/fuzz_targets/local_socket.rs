//! Frames at the local socket of `handle-admin` encode to the same bytes, and so do their contents.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(local_socket);
