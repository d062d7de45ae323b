//! What decodes as a query or its answer encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(query);
