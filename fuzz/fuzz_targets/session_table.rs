//! Sessions keep their limits and accept each message once, like a plain list.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(session_table);
