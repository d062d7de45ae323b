//! An envelope encodes to the same bytes, and its datagrams carry each byte of the message once.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(envelope);
