//! What parses as a reference prints in two forms that parse as the same handle.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(reference);
