//! Credentials of callers over HTTP name one session, and proofs have the form that is verified.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(http_credentials);
