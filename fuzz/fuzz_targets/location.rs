//! A redirect to a location is a URL of an allowed scheme.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(location);
