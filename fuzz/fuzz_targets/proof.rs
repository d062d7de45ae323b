//! A proof verifies for one root and says what a lookup finds; only the output of the encoder is
//! accepted as one.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(proof);
