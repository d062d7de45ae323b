//! What parses as a file of services names few sites, which have servers.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(bootstrap);
