//! For any order of events on TCP connections, each message is answered as if alone, and all is
//! accounted for.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(connections);
