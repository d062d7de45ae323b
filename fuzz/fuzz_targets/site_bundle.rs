//! An archive for a registry is within its limits, or refused; what it contains reads back.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(site_bundle);
