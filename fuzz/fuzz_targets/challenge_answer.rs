//! An answer to a challenge is right exactly if it is the one that the secret gives.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(challenge_answer);
