//! Numbers of challenges and sessions, which share one number space on the wire.
//!
//! Two processes of one server assign these numbers. Those of `handled`, which holds the sessions
//! of both, are even, and those of `handle-admin` are odd. So every number is unique, and a process
//! that does not know a number can tell which process assigned it.

/// A number for a challenge or a session that `handled` keeps.
#[must_use]
pub const fn of_handled(random: u32) -> u32 {
    random & !1
}

/// A number for a challenge or a session that `handle-admin` keeps.
#[must_use]
pub const fn of_admin(random: u32) -> u32 {
    random | 1
}

/// Whether a challenge or session with this number, if it exists, was created by `handle-admin`.
#[must_use]
pub const fn is_of_admin(id: i32) -> bool {
    id & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_of_both() {
        for random in [0, 1, 2, 7, 0x7fff_fffe, u32::MAX] {
            let id = |number: u32| (number & 0x7fff_ffff).cast_signed();
            assert!(is_of_admin(id(of_admin(random))), "{random}");
            assert!(!is_of_admin(id(of_handled(random))), "{random}");
        }
    }
}
