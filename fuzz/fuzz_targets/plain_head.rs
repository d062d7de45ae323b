//! A head that the reader of plain requests accepts is read alike by httparse, and has no body.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(plain_head);
