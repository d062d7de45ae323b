//! Whatever a lookup is told, it ends within its bounds and believes nothing unsigned.
#![cfg_attr(fuzzing, no_main)]

handle_fuzz::target!(lookup);
