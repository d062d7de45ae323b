//! Blocks of batch files do not depend on how the input is split, and have valid line numbers.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(batch_file);
