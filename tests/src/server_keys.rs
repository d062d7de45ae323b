//! The public keys of the servers of the vectors.

use crate::vectors::{VectorSource, hex};
use handle_auth::PublicKey;

/// The public key that verifies the answers of the server `name`.
///
/// # Panics
/// If the server has no key.
#[must_use]
pub fn server_key(name: &str) -> PublicKey {
    server_key_in(VectorSource::Own, name)
}

/// The same for a server of `source`.
///
/// # Panics
/// If the server has no key.
#[must_use]
pub fn server_key_in(source: VectorSource, name: &str) -> PublicKey {
    PublicKey::from_record(&server_key_record(source, name)).expect("a public key")
}

/// The record of the public key of the server `name`.
///
/// # Panics
/// If the server has no key.
#[must_use]
pub fn server_key_record(source: VectorSource, name: &str) -> Vec<u8> {
    let servers = source.document("servers.json");
    let id = servers["servers"][name]["server_key_id"].as_str().expect("the name of a key");
    hex(&servers["keys"][id]["handle_public_hex"])
}
