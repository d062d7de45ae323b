//! Only the output of the encoder is accepted as a MANIFEST.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(manifest);
