//! Resolves a handle at one server, and prints its values.
//!
//! ```sh
//! cargo run -p handle-client --example resolve -- 127.0.0.1:2641 10.1045/july95-arms
//! ```
//!
//! With a `bootstrap_handles` file in place of the address, the client finds the responsible
//! service itself, as deployed clients do:
//!
//! ```sh
//! cargo run -p handle-client --example resolve -- ~/.handle/bootstrap_handles 10.1045/july95-arms
//! ```

use handle_client::bootstrap::Root;
use handle_client::lookup::{LookupOptions, LookupTarget};
use handle_client::plan::ServerTarget;
use handle_client::reference::{HandleReference, ReferenceRules};
use handle_client::{BlockingDriver, Client, Question};
use handle_proto::data::site::InterfaceProtocol;
use handle_proto::printable::Printable;
use handle_proto::{Handle, ResponseCode};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, reference] = &args[..] else {
        return Err("usage: resolve ADDRESS:PORT|BOOTSTRAP_FILE HANDLE".into());
    };
    // A handle, or a reference such as `hdl:10.1045/july95-arms` or `https://hdl.handle.net/...`.
    let reference = HandleReference::parse(reference, &ReferenceRules::typed())?;
    let question = Question::all(reference.handle);

    let (root, target) = match server.parse::<SocketAddr>() {
        Ok(address) => {
            let server = ServerTarget::at(address, InterfaceProtocol::UDP);
            (Root::default(), LookupTarget::Servers(vec![server]))
        }
        Err(_) => (Root::read(&std::fs::read(server)?)?, LookupTarget::Responsible),
    };
    let mut driver = BlockingDriver::new(Arc::new(Client::new(root)));
    let options = LookupOptions { target, ..LookupOptions::default() };
    let answer = driver.resolve(&question, &options).outcome?;

    if answer.code != ResponseCode::SUCCESS {
        return Err(format!("{}: {}", Handle(&answer.handle), answer.code).into());
    }
    for value in answer.values().iter() {
        // Servers may send any bytes: they are escaped before they reach a terminal.
        let text = |bytes| Printable(String::from_utf8_lossy(bytes)).to_string();
        println!("{:6} {:16} {}", value.index, text(value.kind), text(value.data));
    }
    Ok(())
}
