//! JSON of records and values prints as JSON that parses as the same.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(values_json);
