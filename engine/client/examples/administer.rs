//! Creates a handle at a server, adds a value, and deletes the handle.
//!
//! The administrator authenticates with a private key file that is not encrypted, as `hdl init`
//! writes one:
//!
//! ```sh
//! hdl init service --prefix 20.500.1 --address 127.0.0.1 --plain
//! handle-admin --config service/handle-admin.toml &
//! cargo run -p handle-client --example administer -- \
//!     127.0.0.1:2642 300:20.500.1/ADMIN service/admin-private.bin 20.500.1/example
//! ```

use handle_auth::{PrivateKey, keyfile};
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::list::Values;
use handle_proto::{OpFlags, ResponseCode, Value};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, identity, key_file, handle] = &args[..] else {
        return Err("usage: administer ADDRESS:PORT INDEX:HANDLE KEY_FILE NEW_HANDLE".into());
    };
    let mut client = Administrator::new(server.parse()?, Duration::from_secs(10));
    client.identify(Some(Arc::new(read_identity(identity, key_file)?)));

    let handle = handle.as_bytes();
    // Without an HS_ADMIN value, the administrators of the prefix administer the handle.
    let url = [Value::new(1, b"URL", b"https://example.org/")];
    let email = [Value::new(2, b"EMAIL", b"arms@example.org")];
    let (mut url_bytes, mut email_bytes) = (Vec::new(), Vec::new());
    let created = HandleValues { handle, values: Values::build(url, &mut url_bytes) };
    let added = HandleValues { handle, values: Values::build(email, &mut email_bytes) };
    let requests = [
        Request::CreateHandle(created),
        Request::AddValue(added),
        Request::DeleteHandle(HandleBody { handle }),
    ];
    for request in requests {
        // The client answers the challenge of the server for each request; see `use_sessions` for
        // one challenge for all of them.
        let answer = client.ask(&request, OpFlags::PLAIN_REQUEST)?;
        println!("{}: {} {}", request.op_code(), answer.code(), answer.text());
        if answer.code() != ResponseCode::SUCCESS {
            return Err("the server refused the request".into());
        }
    }
    Ok(())
}

/// Reads an identity: `index:handle` of the value with the public key, and the private key.
fn read_identity(reference: &str, key_file: &str) -> Result<ClientIdentity, Box<dyn Error>> {
    let (index, handle) = reference.split_once(':').ok_or("the identity is written INDEX:HANDLE")?;
    let key = keyfile::decode(&std::fs::read(key_file)?, None)?;
    let key = PrivateKey::new(&key.view())?;
    Ok(ClientIdentity {
        handle: handle.into(),
        index: index.parse()?,
        key: IdentityKey::Private(Box::new(key)),
    })
}
