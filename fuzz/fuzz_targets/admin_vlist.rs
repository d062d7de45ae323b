//! What decodes as HS_ADMIN or HS_VLIST encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(admin_vlist);
