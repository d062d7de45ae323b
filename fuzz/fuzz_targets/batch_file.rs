//! Blocks of batch files are the same however the bytes come, on lines that are there.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(batch_file);
