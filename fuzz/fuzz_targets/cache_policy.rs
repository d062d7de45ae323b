//! Rules by prefix of a caching server are checked and found as by a plain search.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(cache_policy);
