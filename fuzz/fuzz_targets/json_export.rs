//! Records of a JSON export do not depend on how the input is split, and all JSON of that shape is
//! accepted.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(json_export);
