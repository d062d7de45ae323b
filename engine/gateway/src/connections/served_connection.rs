//! A connection that is ready for requests.

use super::activity::ConnectionActivity;
use super::certificate::ConnectionCertificate;
use crate::config::Config;
use crate::peer::HttpPeer;
use crate::state::GatewayState;
use std::sync::Arc;

/// A connection that is ready for requests.
#[derive(Debug)]
pub struct ServedConnection {
    /// State shared by all parts.
    pub state: Arc<GatewayState>,
    /// The settings at its start.
    pub settings: Arc<Config>,
    /// The peer of the connection, or the client that the PROXY protocol names.
    pub peer: HttpPeer,
    /// Whether the peer is a trusted proxy.
    pub is_trusted: bool,
    /// The certificate of the client, where clients may show one.
    pub certificate: Option<Arc<ConnectionCertificate>>,
    /// The state of its requests.
    pub activity: Arc<ConnectionActivity>,
}
