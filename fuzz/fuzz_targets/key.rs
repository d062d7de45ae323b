//! Keys keep their numbers through encoding and JSON, key files their bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(key);
