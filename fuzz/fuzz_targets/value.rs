//! What decodes as a value encodes to the same bytes, and can be read back from its JSON.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(value);
