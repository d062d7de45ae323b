//! A path names a handle whose URL names the same one.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(proxy_path);
