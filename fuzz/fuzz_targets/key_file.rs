//! What opens as a key file can be read back from every form it can be written in.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(key_file);
