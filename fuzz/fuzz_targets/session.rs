//! What decodes as a body of sessions encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(session);
