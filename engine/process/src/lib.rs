//! What the data process and the write process have in common as processes; nothing of the protocol.
//!
//! - [`administrators`]: who may do what, as configured for both.
//! - [`connections`]: who is connected, how long each may wait, and whose place a new connection takes.
//! - [`listen`]: why an address cannot be had, and how many files may be open.
//! - [`log`]: what is logged, and the way to change it.
//! - [`priority`]: threads that let others go first.
//! - [`privileges`]: from root to somebody else.
//! - [`reload`]: what of a new configuration can be taken over while serving, and how a configuration is printed.
//! - [`server_key`]: the key that signs answers, from a file that nobody else can read.
//! - [`identity`]: administrators as they are configured.
//! - [`site`]: the site record, and the place of a server in it.
//! - [`socket`]: local sockets that only their owner can connect to.
//! - [`source_counts`]: how many of something each source has.
//! - [`text`]: files that an operator writes.
//! - [`http`]: the few words of HTTP that a scraper needs.
#![forbid(unsafe_code)]

pub mod administrators;
pub mod connections;
pub mod http;
pub mod identity;
pub mod listen;
pub mod log;
pub mod priority;
pub mod privileges;
pub mod reload;
pub mod server_key;
pub mod site;
pub mod socket;
pub mod source_counts;
pub mod text;
