//! What decodes as a challenge, an answer to one or a digest encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(auth);
