//! A train is split into the datagrams that it was made of.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(train);
