//! A train falls into the datagrams it was made of.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(train);
