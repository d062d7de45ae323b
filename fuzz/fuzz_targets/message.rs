//! What decodes as a message is written to a message that says the same.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(message);
