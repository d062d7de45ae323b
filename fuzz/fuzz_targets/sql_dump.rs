//! Records of an SQL dump are the same however the bytes come, and their values decode.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(sql_dump);
