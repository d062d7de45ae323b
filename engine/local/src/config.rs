//! Settings of the local socket of `handle-admin`.

use crate::kind::{LocalKind, LocalPeer};
use handle_daemon::privileges::user_id;
use handle_daemon::settings;
use handle_daemon::user_namespace::is_visible;
use std::path::PathBuf;
use std::{fmt, io};

settings! {
    /// The local socket of `handle-admin` for other processes of its host
    /// ([administration.md](../administration.md#the-local-socket)). Those of its own user may use
    /// it for everything. If the lists name other users, its file has mode 0666 instead of 0600,
    /// and each connection is checked.
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
        /// Connections for requests about callers. Most take about a millisecond; one that needs an
        /// answer of another service may take 30 s.
        callers_connections: usize = 64;
        /// Connections for relayed messages. Each message in progress uses one, and each answer
        /// that is still sent: `handle-gateway` has 64 of both unless it is configured otherwise.
        relay_connections: usize = 128;
        /// Connections of programs that follow changes.
        changes_connections: usize = 16;
        /// Timeout for such a program to read what it was sent. It can go on with its last cursor.
        changes_write_ms: u32 = 30_000;
        /// Connections of one user without a first frame.
        pending_connections: usize = 256;
        /// Connections of each kind of `handle-gateway` that wait for others of their kind.
        waiting_connections: usize = 256;
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

    /// Connections of `kind` that wait for others to end. `handled` does not wait, and a program
    /// that follows changes may stay for days.
    #[must_use]
    pub const fn waiting(&self, kind: LocalKind) -> usize {
        match kind.peer() {
            LocalPeer::Gateway => self.waiting_connections,
            LocalPeer::Handled | LocalPeer::Follower => 0,
        }
    }

    /// Who may use the socket of this process.
    ///
    /// # Errors
    /// When a user of the lists does not exist, or this process cannot tell it from others.
    pub fn rights(&self) -> Result<LocalRights, LocalUserError> {
        self.rights_beside(rustix::process::geteuid().as_raw(), is_visible)
    }

    /// Who may use the socket beside the user `own`.
    fn rights_beside(
        &self,
        own: u32,
        is_visible: impl Fn(u32) -> bool,
    ) -> Result<LocalRights, LocalUserError> {
        let id = |setting, user: &String| {
            let error = |why| LocalUserError { setting, user: user.clone(), why };
            let id = user_id(user).map_err(|why| error(UserFault::Unreadable(why)))?;
            let id = id.ok_or_else(|| error(UserFault::Unknown))?;
            match is_visible(id) && is_visible(own) {
                true => Ok(id),
                false => Err(error(UserFault::Invisible)),
            }
        };
        let ids = |setting, users: &[String]| {
            users.iter().map(|user| id(setting, user)).collect::<Result<Vec<_>, _>>()
        };
        let handled = ids("handled_users", &self.handled_users)?;
        let gateway = ids("gateway_users", &self.gateway_users)?;
        let followers = ids("changes_users", &self.changes_users)?;
        Ok(LocalRights { own, handled, gateway, followers })
    }
}

/// A user of a list that cannot be used.
#[derive(Debug)]
pub struct LocalUserError {
    setting: &'static str,
    user: String,
    why: UserFault,
}

#[derive(Debug)]
enum UserFault {
    Unreadable(io::Error),
    /// `/etc/passwd` does not have it.
    Unknown,
    /// The kernel reports it, or the user of this process, under the number of others.
    Invisible,
}

impl fmt::Display for LocalUserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, user, why } = self;
        write!(f, "`local.{setting}`: ")?;
        match why {
            UserFault::Unreadable(error) => write!(f, "cannot read /etc/passwd: {error}"),
            UserFault::Unknown => write!(
                f,
                "/etc/passwd has no {user:?} (create it: useradd --system {user}; or write its number)"
            ),
            UserFault::Invisible => write!(
                f,
                "this process cannot tell {user:?} from other users, because its user namespace does not \
                 map it (PrivateUsers=no in its unit)"
            ),
        }
    }
}

impl std::error::Error for LocalUserError {}

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
        let rights = config.rights_beside(11, |_| true).unwrap();
        let allowed = |user| LocalKind::ALL.map(|kind| rights.allow(user, kind));
        assert_eq!(allowed(11), [true; 5], "the user of handle-admin");
        assert_eq!(allowed(0), [true, false, false, false, false]);
        assert_eq!((allowed(12), allowed(13)), ([false, true, true, true, false], allowed(12)));
        assert_eq!(allowed(14), [false, false, false, false, true]);
        assert_eq!(allowed(15), [false; 5]);
        assert!([0, 11, 12, 13, 14].into_iter().all(|user| rights.know(user)) && !rights.know(15));
        assert_eq!(rights.mode(), 0o666);
        assert_eq!(LocalConfig::default().rights().unwrap().mode(), 0o600);
    }

    #[test]
    fn users_that_do_not_exist_or_cannot_be_told_from_others_are_refused_with_their_setting() {
        let users =
            |users: &str| LocalConfig { gateway_users: vec![users.to_owned()], ..LocalConfig::default() };
        let refused = |user: &str, is_visible: fn(u32) -> bool| {
            users(user).rights_beside(11, is_visible).unwrap_err().to_string()
        };
        let unknown = refused("no-such-user-here", |_| true);
        assert!(
            unknown.contains("`local.gateway_users`: /etc/passwd has no \"no-such-user-here\""),
            "{unknown}"
        );
        let other = refused("12", |user| user != 12);
        assert!(other.contains("PrivateUsers=no"), "{other}");
        let own = refused("12", |user| user != 11);
        assert!(own.contains("PrivateUsers=no"), "{own}");
        assert!(LocalConfig::default().rights_beside(11, |_| false).is_ok(), "no other user is named");
    }
}
