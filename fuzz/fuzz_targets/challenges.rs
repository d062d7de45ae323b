//! The table of challenges keeps its limits, and agrees with a plain list.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(challenges);
