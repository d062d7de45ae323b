//! Each line of an access log is a request or counted.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(access_log);
