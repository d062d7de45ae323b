//! What decodes as a site encodes to the same bytes, and has a server for each handle.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(site);
