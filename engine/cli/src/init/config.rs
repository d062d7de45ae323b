//! The configuration of both processes. What is not said there has its default, which `--help` and the documents name.

use serde_json::json;
use std::net::{IpAddr, SocketAddr};

/// What both processes have to know.
pub(super) struct InitSettings {
    pub(super) bind: IpAddr,
    pub(super) port: u16,
    pub(super) admin_port: u16,
    /// The administrator of everything, as `index:handle`.
    pub(super) administrator: String,
}

impl InitSettings {
    /// Whether connections for queries and for administration come to one port, that of `handle-admin`.
    fn has_one_port(&self) -> bool {
        self.port == self.admin_port
    }

    /// What both processes read.
    pub(super) fn service(&self) -> String {
        let administrator = quoted(&self.administrator);
        format!(
            "# What handled and handle-admin share. Paths are relative to their configuration.\n\
             site = \"siteinfo.json\"\n\
             \n\
             [server_key]\n\
             file = \"server-private.bin\"\n\
             \n\
             # Clients set their sessions up with handled, and administer in them with handle-admin.\n\
             [sessions]\n\
             socket = \"run/sessions\"\n\
             \n\
             [administrators]\n\
             server = [{administrator}]\n"
        )
    }

    pub(super) fn handled(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.port).to_string());
        let tcp = match self.has_one_port() {
            true => {
                "\n# Connections to the port are for handle-admin, which answers queries too.\n[tcp]\nenabled = false\n"
            }
            false => "",
        };
        format!(
            "# handled: answers queries from the set that handle-admin publishes. Paths are relative to this file.\n\
             shared = \"service.toml\"\n\
             snapshot = \"snapshot\"\n\
             listen = [{listen}]\n\
             control = \"run/handled.sock\"\n\
             {tcp}\
             \n\
             # What handle-admin answers instead: listings, and what takes a question to other services.\n\
             [forward]\n\
             socket = \"run/forward\"\n"
        )
    }

    pub(super) fn handle_admin(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.admin_port).to_string());
        format!(
            "# handle-admin: keeps the records, and publishes them to handled. Paths are relative to this file.\n\
             shared = \"service.toml\"\n\
             listen = [{listen}]\n\
             control = \"run/handle-admin.sock\"\n\
             \n\
             [store]\n\
             file = \"store.redb\"\n\
             \n\
             [publish]\n\
             directory = \"snapshot\"\n\
             \n\
             # Where handled hands over requests that it does not answer itself.\n\
             [forward]\n\
             socket = \"run/forward\"\n"
        )
    }
}

/// A TOML string: of what may stand in one, JSON writes the same.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
