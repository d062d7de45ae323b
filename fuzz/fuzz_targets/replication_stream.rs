//! A stream for a mirror has the same items however it is cut, and they encode to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(replication_stream);
