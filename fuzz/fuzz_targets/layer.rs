//! Lookups in a layer stay in bounds and end; a verified layer can be read completely.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(layer);
