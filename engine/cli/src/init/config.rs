//! The configuration of both processes. What is not said there has its default, which `--help` and the documents name.

use serde_json::json;
use std::net::{IpAddr, SocketAddr};

/// What both processes have to know.
pub(super) struct Settings {
    pub(super) bind: IpAddr,
    pub(super) port: u16,
    pub(super) admin_port: u16,
    /// The administrator of everything, as `index:handle`.
    pub(super) administrator: String,
}

impl Settings {
    pub(super) fn handled(&self) -> String {
        let (listen, administrator) =
            (quoted(&SocketAddr::new(self.bind, self.port).to_string()), quoted(&self.administrator));
        format!(
            "# handled: answers queries from the set that handle-admin publishes. Paths are relative to this file.\n\
             snapshot = \"snapshot\"\n\
             site = \"siteinfo.json\"\n\
             listen = [{listen}]\n\
             control = \"run/handled.sock\"\n\
             \n\
             [server_key]\n\
             file = \"server-private.bin\"\n\
             \n\
             # Clients set their sessions up here, and administer in them with handle-admin.\n\
             [sessions]\n\
             socket = {SESSIONS}\n\
             \n\
             [administrators]\n\
             server = [{administrator}]\n"
        )
    }

    pub(super) fn handle_admin(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.admin_port).to_string());
        let administrator = quoted(&self.administrator);
        format!(
            "# handle-admin: keeps the records, and publishes them to handled. Paths are relative to this file.\n\
             site = \"siteinfo.json\"\n\
             listen = [{listen}]\n\
             control = \"run/handle-admin.sock\"\n\
             \n\
             [store]\n\
             file = \"store.redb\"\n\
             \n\
             [publish]\n\
             directory = \"snapshot\"\n\
             \n\
             [server_key]\n\
             file = \"server-private.bin\"\n\
             \n\
             # Where handled has the sessions of both.\n\
             [sessions]\n\
             socket = {SESSIONS}\n\
             \n\
             [administrators]\n\
             server = [{administrator}]\n"
        )
    }
}

/// The socket at which both processes have the same sessions, in TOML.
const SESSIONS: &str = "\"run/sessions\"";

/// A TOML string: of what may stand in one, JSON writes the same.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
