//! What the data process and the write process have in common as processes; nothing of the protocol.
//!
//! - [`listen`]: why an address cannot be had, and how many files may be open.
//! - [`log`]: what is logged, and the way to change it.
//! - [`privileges`]: from root to somebody else.
//! - [`reload`]: what of a new configuration can be taken over while serving, and how a configuration is printed.
//! - [`server_key`]: the key that signs answers, from a file that nobody else can read.
//! - [`identity`]: administrators as they are configured.
//! - [`site`]: the site record, and the place of a server in it.
//! - [`text`]: files that an operator writes.
//! - [`http`]: the few words of HTTP that a scraper needs.
#![forbid(unsafe_code)]

pub mod http;
pub mod identity;
pub mod listen;
pub mod log;
pub mod privileges;
pub mod reload;
pub mod server_key;
pub mod site;
pub mod text;
