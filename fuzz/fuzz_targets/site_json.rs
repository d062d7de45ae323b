//! JSON of a site prints as JSON that parses as the same.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(site_json);
