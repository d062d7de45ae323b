//! A batch is answered as each of its datagrams alone.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(batch);
