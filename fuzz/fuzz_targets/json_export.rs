//! Records of a JSON export are the same however the bytes come, and JSON of that shape is read.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(json_export);
