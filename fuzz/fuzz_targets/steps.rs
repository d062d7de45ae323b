//! Steps build the layer that the MANIFEST names, or none.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(steps);
