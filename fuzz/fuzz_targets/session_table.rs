//! Sessions keep their bounds and count each message once, as a plain list says.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(session_table);
