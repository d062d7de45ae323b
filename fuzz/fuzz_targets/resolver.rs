//! Whatever is asked, the answer is a message, to this request, and shows nothing private.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(resolver);
