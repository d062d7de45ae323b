//! Whatever TCP connections do and whenever, each message is answered as it is alone, and all is accounted for.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(connections);
