//! What decodes as a message is written to an equivalent message.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(message);
