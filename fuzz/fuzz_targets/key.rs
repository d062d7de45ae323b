//! Keys keep their numbers in their encoding and in JSON, key files keep their bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(key);
