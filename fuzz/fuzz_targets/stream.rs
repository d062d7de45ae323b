//! The messages of a stream do not depend on how it is split.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(stream);
