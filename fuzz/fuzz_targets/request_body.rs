//! What decodes as the body of a request encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(request_body);
