//! Phases of a schedule read the same line by line, and requests are due in order.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(schedule_file);
