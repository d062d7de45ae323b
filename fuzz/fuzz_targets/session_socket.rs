//! Requests between processes about sessions encode to the same bytes, and have an answer.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(session_socket);
