//! Settings of deployed software are read, or refused on a line that is there.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(settings);
