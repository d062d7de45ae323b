//! Drops root privileges, once ports are bound and before a thread is started.

use rustix::process::{Gid, Uid, getegid, geteuid, getgid, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// Time in which the kernel stops listing a thread that has ended.
const ENDING_TIMEOUT: Duration = Duration::from_millis(200);

/// The account that a process changes to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SystemAccount {
    uid: u32,
    gid: u32,
    /// All groups of the account.
    groups: Vec<u32>,
}

/// Why a process does not change to a user.
#[derive(Debug)]
pub enum PrivilegeError {
    /// The process is neither root nor the user: it is the user with this number.
    OtherUser {
        /// The user that it should be.
        user: String,
        /// The user that it is.
        uid: u32,
    },
    /// Several threads are running; the others would stay root.
    Threads(usize),
    /// The kernel let the process become root again.
    StillRoot,
    /// There is no such account.
    NoAccount(String),
    /// The account is root, or in its group.
    RootAccount(String),
    /// A system call or a file failed: the first sentence of the message, and the error.
    System(&'static str, io::Error),
}

impl fmt::Display for PrivilegeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherUser { user, uid } => write!(
                f,
                "`user` is {user}, but this process is user {uid} and may not change that: start it as root or as {user}"
            ),
            Self::Threads(count) => write!(f, "{count} threads are running already and would stay root"),
            Self::StillRoot => f.write_str("the privileges of root were not dropped for good"),
            Self::NoAccount(user) => write!(
                f,
                "`user`: /etc/passwd has no {user:?} (make it: useradd --system {user}; or say uid:gid)"
            ),
            Self::RootAccount(user) => write!(f, "`user` is {user:?}, which is root or in its group"),
            Self::System(what, _) => f.write_str(what),
        }
    }
}

impl std::error::Error for PrivilegeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(_, error) => Some(error),
            _ => None,
        }
    }
}

/// Adds what failed to an error of the kernel.
trait ToPrivilegeError<T> {
    fn or_say(self, what: &'static str) -> Result<T, PrivilegeError>;
}

impl<T, E: Into<io::Error>> ToPrivilegeError<T> for Result<T, E> {
    fn or_say(self, what: &'static str) -> Result<T, PrivilegeError> {
        self.map_err(|error| PrivilegeError::System(what, error.into()))
    }
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Changes permanently to `user`, a name of `/etc/passwd` or `uid:gid`. Drops the groups and
/// capabilities of root, and the ability to gain privileges by executing a program.
///
/// # Errors
/// When there is no such user, or this process is neither root nor that user.
pub fn become_user(user: &str) -> Result<(), PrivilegeError> {
    let account = account(user)?;
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if !is_root() {
        if geteuid() != uid {
            let uid = geteuid().as_raw();
            return Err(PrivilegeError::OtherUser { user: user.to_owned(), uid });
        }
        return set_no_new_privs(true).or_say("cannot give up new privileges");
    }
    // The kernel keeps credentials by thread, and threads get those of the one that starts them.
    let threads = threads_count()?;
    if threads != 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    let groups: Vec<Gid> = account.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups).or_say("cannot give up the groups of root (needs CAP_SETGID)")?;
    set_thread_res_gid(gid, gid, gid).or_say("cannot change the group (needs CAP_SETGID)")?;
    clear_ambient_capability_set().or_say("cannot give up ambient capabilities")?;
    for capability in CapabilitySet::all().iter() {
        // Without CAP_SETPCAP they stay in the bounding set, which `no_new_privs` makes worth
        // nothing.
        let _ = remove_capability_from_bounding_set(capability);
    }
    set_thread_res_uid(uid, uid, uid).or_say("cannot change the user (needs CAP_SETUID)")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).or_say("cannot give up capabilities")?;
    set_no_new_privs(true).or_say("cannot give up new privileges")?;
    let is_there = (getuid(), geteuid(), getgid(), getegid()) == (uid, uid, gid, gid);
    let root = Uid::ROOT;
    match is_there && set_thread_res_uid(root, root, root).is_err() {
        true => Ok(()),
        false => Err(PrivilegeError::StillRoot),
    }
}

/// Number of threads. The kernel lists threads for a moment after their end, so this function waits
/// for that.
fn threads_count() -> Result<usize, PrivilegeError> {
    let deadline = Instant::now() + ENDING_TIMEOUT;
    loop {
        let count = std::fs::read_dir("/proc/self/task").or_say("cannot count threads")?.count();
        if count == 1 || Instant::now() >= deadline {
            return Ok(count);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that `user`, an argument of [`become_user`], exists and is not root.
///
/// # Errors
/// When the user does not exist or is root.
pub fn check_user(user: &str) -> Result<(), PrivilegeError> {
    account(user).map(drop)
}

/// The number of `user`, a name of `/etc/passwd` or a number; `None` if there is no such name. It
/// may be root.
///
/// # Errors
/// When `/etc/passwd` cannot be read.
pub fn user_id(user: &str) -> io::Result<Option<u32>> {
    if let Ok(uid) = user.parse() {
        return Ok(Some(uid));
    }
    let passwd = std::fs::read_to_string("/etc/passwd")?;
    Ok(find(user, &passwd, "").map(|account| account.uid))
}

/// The number of a group of `/etc/group`; `None` if there is no such name.
///
/// # Errors
/// When `/etc/group` cannot be read.
pub fn group_id(group: &str) -> io::Result<Option<u32>> {
    Ok(find_group(group, &std::fs::read_to_string("/etc/group")?))
}

/// The numbers of a user and of its group, for files that it is to own.
///
/// # Errors
/// When the user does not exist or is root.
pub fn owner_ids(user: &str) -> Result<(u32, u32), PrivilegeError> {
    account(user).map(|account| (account.uid, account.gid))
}

fn account(user: &str) -> Result<SystemAccount, PrivilegeError> {
    let account = match numbers(user) {
        Some(account) => account,
        None => {
            let passwd = std::fs::read_to_string("/etc/passwd").or_say("cannot read /etc/passwd")?;
            let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
            find(user, &passwd, &group).ok_or_else(|| PrivilegeError::NoAccount(user.to_owned()))?
        }
    };
    if account.uid == 0 || account.groups.contains(&0) {
        return Err(PrivilegeError::RootAccount(user.to_owned()));
    }
    Ok(account)
}

/// `uid:gid`.
fn numbers(user: &str) -> Option<SystemAccount> {
    let (uid, gid) = user.split_once(':')?;
    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
    Some(SystemAccount { uid, gid, groups: vec![gid] })
}

/// The number of `group`, as the text of `/etc/group` says.
fn find_group(group: &str, groups: &str) -> Option<u32> {
    let mut fields = groups.lines().map(|line| line.split(':')).find_map(|mut fields| {
        let is_group = fields.next() == Some(group);
        is_group.then_some(fields)
    })?;
    fields.nth(1)?.parse().ok()
}

/// The account called `user`, as the texts of `/etc/passwd` and `/etc/group` say.
fn find(user: &str, passwd: &str, group: &str) -> Option<SystemAccount> {
    let mut fields = passwd.lines().map(|line| line.split(':')).find_map(|mut fields| {
        let is_user = fields.next() == Some(user);
        is_user.then_some(fields)
    })?;
    let (_password, uid, gid) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let mut groups = vec![gid];
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, number, members] = fields.as_slice() else { continue };
        if members.split(',').any(|member| member == user) {
            groups.extend(number.parse::<u32>().ok().filter(|&number| number != gid));
        }
    }
    Some(SystemAccount { uid, gid, groups })
}

#[cfg(test)]
#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\nhandled:x:990:980::/:/usr/sbin/nologin\nbad:x:y:1::/:/";
    const GROUP: &str = "root:x:0:\npublishers:x:970:other,handled\nhandled:x:980:handled\nx\n";

    #[test]
    fn accounts_are_found_with_all_their_groups() {
        let handled = SystemAccount { uid: 990, gid: 980, groups: vec![980, 970] };
        assert_eq!(find("handled", PASSWD, GROUP), Some(handled));
        assert_eq!(find("hand", PASSWD, GROUP), None);
        assert_eq!(find("bad", PASSWD, GROUP), None);
        assert_eq!(numbers("65534:100"), Some(SystemAccount { uid: 65534, gid: 100, groups: vec![100] }));
        assert_eq!(numbers("65534"), None);
        assert_eq!((user_id("root").unwrap(), user_id("990").unwrap()), (Some(0), Some(990)));
        assert_eq!(user_id("no-such-user-here").unwrap(), None);
        let group = |name| find_group(name, GROUP);
        assert_eq!([group("publishers"), group("publisher"), group("x")], [Some(970), None, None]);
        assert_eq!(group_id("root").unwrap(), Some(0));
    }

    #[test]
    fn root_is_no_user_to_become() {
        for user in ["root", "0:0", "1:0"] {
            assert!(account(user).unwrap_err().to_string().contains("is root or in its group"), "{user}");
        }
        let error = account("no-such-user-here").unwrap_err().to_string();
        assert!(error.contains("useradd --system no-such-user-here"), "{error}");
    }

    #[test]
    fn threads_are_not_left_behind_as_root() {
        if !needs::has(needs::TestNeed::Root, is_root()) {
            return;
        }
        // The thread of this test and the one that waits for it.
        assert!(matches!(become_user("65534:65534"), Err(PrivilegeError::Threads(2..))));
    }
}
