//! Records of an SQL dump do not depend on how the input is split, and their values decode.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(sql_dump);
