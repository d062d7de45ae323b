//! Any datagrams are reassembled as by the plain definition, within the limits.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(reassembly);
