//! Settings of the socket for programs that follow changes.

use handle_daemon::settings;
use std::path::PathBuf;

settings! {
    /// Changes for other programs ([administration.md](../administration.md#following-changes)).
    pub struct ChangesConfig {
        /// Set this when programs follow changes: UNIX socket at which they read the changes of the
        /// store, with public values; none if not set.
        restart socket: Option<PathBuf> = None;
        /// Set this when these programs run as other users: user ids whose programs may connect,
        /// besides the user of `handle-admin`. If there are any, the file of the socket has the
        /// mode 0666, and each connection is checked.
        restart uids: Vec<u32> = Vec::new();
    } constants {
        /// Connections to the socket: the programs on this machine that follow changes.
        connections: usize = 16;
        /// Timeout for a program to read what it was sent. It can go on with its last cursor.
        write_ms: u32 = 30_000;
    }
}
