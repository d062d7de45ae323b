//! Settings of the local socket of `handle-admin`.

use crate::kind::{LocalKind, LocalPeer};
use handle_daemon::privileges::{PrivilegeError, user_id};
use handle_daemon::settings;
use std::path::PathBuf;

settings! {
    /// The local socket of `handle-admin` for the other processes of its host
    /// ([administration.md](../administration.md#the-local-socket)). Processes of the user of
    /// `handle-admin` may use it for everything; if the lists name other users, the file of the
    /// socket has the mode 0666 instead of 0600, and each connection is checked.
    pub struct LocalConfig {
        /// Set this when `handled` or `handle-gateway` hands over requests, or programs follow
        /// changes: the UNIX socket for all of them; none if not set.
        restart socket: Option<PathBuf> = None;
        /// Set this when `handled` runs as another user: users, by name or number, whose processes
        /// may forward requests.
        restart handled_users: Vec<String> = Vec::new();
        /// Set this when `handle-gateway` runs as another user: users whose processes may verify
        /// callers, change many records, search, and relay messages. It gives no rights to records:
        /// callers prove who they are.
        restart gateway_users: Vec<String> = Vec::new();
        /// Set this when programs of other users follow changes: users whose programs may read the
        /// changes of the store, with public values.
        restart changes_users: Vec<String> = Vec::new();
    } constants {
        /// Connections for forwarded requests. Each request and each listing in progress uses one.
        forward_connections: usize = 64;
        /// Connections for changes of many records and for searches. Each request in progress uses
        /// one.
        bulk_connections: usize = 32;
        /// Connections for requests about callers, which take about a millisecond; others wait.
        callers_connections: usize = 64;
        /// Connections for relayed messages. Each message in progress uses one.
        relay_connections: usize = 64;
        /// Connections of programs that follow changes.
        changes_connections: usize = 16;
        /// Timeout for such a program to read what it was sent. It can go on with its last cursor.
        changes_write_ms: u32 = 30_000;
        /// Connections of one user without a first frame, or that wait for others of their kind.
        pending_connections: usize = 256;
    }
}

impl LocalConfig {
    /// Connections of `kind` at a time.
    #[must_use]
    pub const fn connections(&self, kind: LocalKind) -> usize {
        match kind {
            LocalKind::Forward => self.forward_connections,
            LocalKind::Bulk => self.bulk_connections,
            LocalKind::Callers => self.callers_connections,
            LocalKind::Relay => self.relay_connections,
            LocalKind::Changes => self.changes_connections,
        }
    }

    /// Who may use the socket, with the user `own` of this process.
    ///
    /// # Errors
    /// When there is no such user.
    pub fn rights(&self, own: u32) -> Result<LocalRights, PrivilegeError> {
        let ids = |users: &[String]| users.iter().map(|user| user_id(user)).collect::<Result<_, _>>();
        let [handled, gateway, followers] =
            [ids(&self.handled_users)?, ids(&self.gateway_users)?, ids(&self.changes_users)?];
        Ok(LocalRights { own, handled, gateway, followers })
    }
}

/// The users that may use the socket, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRights {
    own: u32,
    handled: Vec<u32>,
    gateway: Vec<u32>,
    followers: Vec<u32>,
}

impl LocalRights {
    /// Whether processes of `user` may use the socket for `kind`.
    #[must_use]
    pub fn allow(&self, user: u32, kind: LocalKind) -> bool {
        let users = match kind.peer() {
            LocalPeer::Handled => &self.handled,
            LocalPeer::Gateway => &self.gateway,
            LocalPeer::Follower => &self.followers,
        };
        user == self.own || users.contains(&user)
    }

    /// Whether processes of `user` may use the socket for anything.
    #[must_use]
    pub fn know(&self, user: u32) -> bool {
        LocalKind::ALL.into_iter().any(|kind| self.allow(user, kind))
    }

    /// Mode of the file. The kernel names the user of each connection, so the file lets in all
    /// users if any other than its owner may connect.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        if self.handled.is_empty() && self.gateway.is_empty() && self.followers.is_empty() {
            0o600
        } else {
            0o666
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_may_do_what_the_list_with_its_name_is_for() {
        let config: LocalConfig = toml::from_str(
            "handled_users = [\"root\"]\ngateway_users = [\"12\", \"13\"]\nchanges_users = [\"14\"]",
        )
        .unwrap();
        let rights = config.rights(11).unwrap();
        let allowed = |user| LocalKind::ALL.map(|kind| rights.allow(user, kind));
        assert_eq!(allowed(11), [true; 5], "the user of handle-admin");
        assert_eq!(allowed(0), [true, false, false, false, false]);
        assert_eq!((allowed(12), allowed(13)), ([false, true, true, true, false], allowed(12)));
        assert_eq!(allowed(14), [false, false, false, false, true]);
        assert_eq!(allowed(15), [false; 5]);
        assert!([0, 11, 12, 13, 14].into_iter().all(|user| rights.know(user)) && !rights.know(15));
        assert_eq!(rights.mode(), 0o666);
        assert_eq!(LocalConfig::default().rights(11).unwrap().mode(), 0o600);
        let unknown = LocalConfig { changes_users: vec!["no-such-user-here".into()], ..config };
        assert!(unknown.rights(11).is_err());
    }
}
