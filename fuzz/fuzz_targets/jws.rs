//! Nobody signs with a key that is made up.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(jws);
