//! Signed messages of a TLS handshake are read whole or not at all.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(handshake);
