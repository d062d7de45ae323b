//! Numbers of challenges and sessions, which share one number space on the wire.
//!
//! Two processes of one server assign these numbers. Those of `handled`, which holds the sessions
//! of both, are even, and those of `handle-admin` are odd. So every number is unique, and a process
//! that does not know a number can tell which process assigned it.
//!
//! Several `handle-admin` may assign numbers of both kinds without asking each other. So that an
//! answer to a challenge never counts in a session of another client, the second bit of an odd
//! number is set in those of sessions only.

/// A number for a challenge or a session that `handled` keeps.
#[must_use]
pub const fn of_handled(random: u32) -> u32 {
    random & !1
}

/// A number for a challenge that `handle-admin` keeps.
#[must_use]
pub const fn of_admin_challenge(random: u32) -> u32 {
    random & !2 | 1
}

/// A number for a session that `handle-admin` keeps.
#[must_use]
pub const fn of_admin_session(random: u32) -> u32 {
    random | 3
}

/// Whether a challenge or session with this number, if it exists, was created by `handle-admin`.
#[must_use]
pub const fn is_of_admin(id: i32) -> bool {
    id & 1 == 1
}

/// Whether a session with this number, if it exists, was set up at a `handle-admin`.
#[must_use]
pub const fn is_of_admin_session(id: i32) -> bool {
    id > 0 && id & 3 == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_of_both() {
        for random in [0, 1, 2, 7, 0x7fff_fffe, u32::MAX] {
            let id = |number: u32| (number & 0x7fff_ffff).cast_signed();
            let (challenge, session) = (id(of_admin_challenge(random)), id(of_admin_session(random)));
            assert!(is_of_admin(challenge) && is_of_admin(session), "{random}");
            assert!(!is_of_admin_session(challenge) && is_of_admin_session(session), "{random}");
            let handled = id(of_handled(random));
            assert!(!is_of_admin(handled) && !is_of_admin_session(handled), "{random}");
        }
        assert!(!is_of_admin_session(-1));
    }
}
