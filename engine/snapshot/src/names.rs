//! How the names of handles become the keys of a set.
//!
//! A record is found under one key, and a name has one key. Whoever concludes from a key to a name,
//! as the verifier of a [proof](crate::proof), has to know the rule of the set. The publisher
//! therefore signs it: the MANIFEST and each [statement](crate::set::statement) name it.

use crate::format::fold_key;
use core::fmt;
use handle_proto::Handle;
use std::vec::Vec;

/// The rule by which the names of a set become keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// The key is the name in upper case.
    Folded,
    /// The key is the name as it is.
    Exact,
}

impl NameRule {
    const ALL: [Self; 2] = [Self::Folded, Self::Exact];

    /// The rule of layers that [fold](crate::format::FLAG_FOLDS), or do not.
    #[must_use]
    pub const fn of(folds: bool) -> Self {
        if folds { Self::Folded } else { Self::Exact }
    }

    /// The key of a name. Under both rules, a name without a slash stands for `0.NA/` and its
    /// folded form.
    #[must_use]
    pub fn key_of(self, name: &[u8]) -> Vec<u8> {
        let mut key = Handle(name).looked_up();
        fold_key(&mut key, self == Self::Folded);
        key
    }

    /// Whether some name has this key; it then is a name with this key itself.
    #[must_use]
    pub fn is_key(self, key: &[u8]) -> bool {
        self.key_of(key) == key
    }

    /// The word for the rule in a MANIFEST and a statement.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Exact => "exact",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.word() == word)
    }
}

impl fmt::Display for NameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_key_which_is_its_own_key() {
        for (name, folded, exact) in [
            ("10.1/aB", "10.1/AB", "10.1/aB"),
            ("10.1/AB", "10.1/AB", "10.1/AB"),
            ("0.na/10.1", "0.NA/10.1", "0.na/10.1"),
            ("10.a", "0.NA/10.A", "0.NA/10.A"),
            ("", "0.NA/", "0.NA/"),
        ] {
            for (rule, key) in [(NameRule::Folded, folded), (NameRule::Exact, exact)] {
                assert_eq!(rule.key_of(name.as_bytes()), key.as_bytes(), "{rule} {name}");
                assert!(rule.is_key(key.as_bytes()), "{rule} {key}");
                assert_eq!(rule.is_key(name.as_bytes()), name == key, "{rule} {name}");
                assert_eq!(NameRule::parse(rule.word()), Some(rule));
            }
        }
        assert_eq!((NameRule::of(true), NameRule::of(false)), (NameRule::Folded, NameRule::Exact));
        assert_eq!(NameRule::parse("Folded"), None);
    }
}
