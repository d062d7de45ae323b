//! Every target in one program, which is built and linked once. `FUZZ_TARGET` in the environment
//! names the one that runs.
#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

/// The selected target. Without one, the program ends before the first input.
static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var(handle_fuzz::SELECTION).unwrap_or_default();
    handle_fuzz::select(&name).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2)
    })
});

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(init: { LazyLock::force(&TARGET); }, |bytes: &[u8]| -> () { TARGET(bytes) });

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    handle_fuzz::replay_arguments(*TARGET)
}
