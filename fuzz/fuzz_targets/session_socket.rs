//! What processes say about sessions encodes to the same bytes, and has an answer.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(session_socket);
