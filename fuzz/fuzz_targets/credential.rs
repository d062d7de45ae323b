//! A credential encodes to the same fields, and covers the bytes that its version defines.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(credential);
