//! Phases of a schedule parse the same line by line, and requests are due in order.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(schedule_file);
