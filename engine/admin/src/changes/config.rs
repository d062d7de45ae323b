//! Settings of the socket for programs that follow changes.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use std::path::PathBuf;

settings! {
    /// Changes for other programs ([administration.md](../administration.md#following-changes)).
    pub struct ChangesConfig {
        /// UNIX socket at which programs follow the changes of the store, with public values; none
        /// if not set.
        restart socket: Option<PathBuf> = None;
        /// File mode of the socket, as a decimal or, in TOML, octal number (`0o660`).
        restart mode: u32 = 0o600, 0..=0o777;
        /// User ids whose programs may connect, besides the user of `handle-admin`.
        restart uids: Vec<u32> = Vec::new();
        /// Maximum number of connections to this socket.
        restart connections: usize = 16, 1..=1024;
        /// Timeout for a program to read what it was sent. It can go on with its last cursor.
        restart write_ms: u32 = 30_000, 10..=DAY_MS;
    }
}
