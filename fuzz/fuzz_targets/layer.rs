//! No layer makes a lookup read past it or endlessly; what is verified can be read.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(layer);
