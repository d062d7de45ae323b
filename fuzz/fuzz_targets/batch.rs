//! A batch is answered like each of its datagrams alone.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(batch);
