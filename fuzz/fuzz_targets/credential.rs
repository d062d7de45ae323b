//! A credential encodes to the same fields, and covers what its version says.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(credential);
