//! What decodes as a referral or a failure encodes to the same bytes.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(referral);
