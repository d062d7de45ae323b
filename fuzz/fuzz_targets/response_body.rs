//! What decodes as the body of a response encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(response_body);
