//! What decodes as a challenge, its answer or a digest encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(auth);
