//! Fuzz targets for every boundary: one function each, which takes any bytes and asserts a
//! property.
//!
//! - [`TARGETS`] lists them. `fuzz_targets/` passes each to libFuzzer, `bin/all.rs` the one that
//!   [`SELECTION`] names, and `tests.rs` runs all of them over the committed corpora in ordinary
//!   tests.
//! - A function returns on every input. A broken property is a panic.
//! - Most targets compare the engine with a plain model of it, which is part of the target.
//!
//! `docs/fuzzing.md` describes the properties, and how to use the corpora and the dictionary for
//! other software.
#![forbid(unsafe_code)]

mod administration;
mod auth;
mod body;
mod challenges;
mod client;
mod connections;
mod container;
mod data;
mod fixture;
mod formats;
mod frame;
mod gateway;
mod generator;
mod json;
mod limiter;
mod loadgen;
mod name;
mod permission;
mod plain;
mod policy;
mod proofs;
mod replication;
mod resolver;
mod saved;
mod sessions;
mod snapshot;
mod sockets;
mod source;
mod template;
#[cfg(test)]
mod tests;
mod train;
mod transport;

pub use administration::administration;
pub use auth::{challenge_answer, handshake, key_agreement, key_file};
pub use body::{admin, auth, credential, query, referral, replication, request_body, response_body, session};
pub use challenges::challenges;
pub use client::{bootstrap, jws, lookup, reference};
pub use connections::connections;
pub use container::{datagrams, put_datagram};
pub use data::{admin_vlist, key, site, value};
pub use formats::{batch_file, json_export, settings, site_bundle, sql_dump};
pub use frame::{envelope, message};
pub use gateway::{http_batch, http_credentials, http_request, location, proxy_path};
pub use json::{record_line, site_json, values_json};
pub use limiter::rate_limit;
pub use loadgen::{access_log, capture, http_answer, json_answer, schedule_file};
pub use name::name;
pub use permission::permission;
pub use plain::plain_head;
pub use policy::cache_policy;
pub use proofs::{proof, proof_examples};
pub use replication::replication_stream;
pub use resolver::{batch, question, resolver};
pub use saved::saved_cache;
pub use sessions::{session_socket, session_table};
pub use snapshot::{layer, layer_examples, manifest, steps, steps_examples};
pub use sockets::local_socket;
pub use source::source_answer;
pub use template::template;
pub use train::train;
pub use transport::{fragments, reassembly, stream};

use std::path::Path;

/// A boundary: its name, and the function that asserts its property.
pub type Target = (&'static str, fn(&[u8]));

macro_rules! targets {
    ($($name:ident)*) => {
        /// Every target, by the name of its file in `fuzz_targets/` and of its corpus.
        pub const TARGETS: &[Target] = &[$((stringify!($name), $name),)*];
    };
}

targets! {
    name envelope message stream fragments reassembly
    request_body response_body query admin auth session referral replication replication_stream credential
    value values_json record_line site site_json admin_vlist key
    key_file challenge_answer key_agreement handshake
    layer manifest proof steps saved_cache cache_policy resolver question batch train
    challenges connections administration permission
    session_table session_socket local_socket
    rate_limit template
    batch_file json_export sql_dump settings site_bundle source_answer
    reference bootstrap lookup jws
    location proxy_path plain_head http_request http_credentials http_batch
    capture access_log http_answer json_answer schedule_file
}

/// Defines the program of one target: for libFuzzer under `cargo fuzz`, and in ordinary builds a
/// program that replays files and directories.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::$name(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay_arguments($crate::$name)
        }
    };
}

/// The environment variable with the name of the target that the program `all` runs.
pub const SELECTION: &str = "FUZZ_TARGET";

/// The target called `name`.
///
/// # Errors
/// If there is none; the text says which names there are.
pub fn select(name: &str) -> std::io::Result<fn(&[u8])> {
    if let Some((_, target)) = TARGETS.iter().find(|(known, _)| *known == name) {
        return Ok(*target);
    }
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    let text = format!("no target {name:?}: set {SELECTION} to one of: {}", names.join(" "));
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text))
}

/// Runs `target` on `path`, or on every file below it; returns the number of files.
///
/// # Errors
/// If a file cannot be read.
///
/// # Panics
/// If the property does not hold, after printing the name of the file.
pub fn replay(target: fn(&[u8]), path: &Path) -> std::io::Result<usize> {
    if path.is_dir() {
        let mut entries: Vec<_> =
            std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        entries.sort();
        return entries.iter().try_fold(0, |count, entry| Ok(count + replay(target, entry)?));
    }
    let bytes = std::fs::read(path)?;
    if let Err(panic) = std::panic::catch_unwind(|| target(&bytes)) {
        eprintln!("{} breaks the property", path.display());
        std::panic::resume_unwind(panic);
    }
    Ok(1)
}

/// Runs `target` on the files and directories in the arguments of the program.
///
/// # Errors
/// If there are none, or one cannot be read.
pub fn replay_arguments(target: fn(&[u8])) -> std::io::Result<()> {
    let mut count = 0;
    for argument in std::env::args_os().skip(1) {
        count += replay(target, Path::new(&argument))?;
    }
    if count == 0 {
        let text = "nothing to replay: name files or directories, or run `cargo fuzz run` to look for more";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
    }
    println!("{count} inputs keep the property");
    Ok(())
}
