//! The handles that a notice names: those whose records have changed since the notice before.

use std::fmt;

/// Most bytes of the names of one notice, with their lengths.
pub const CHANGED_LEN_MAX: usize = 1 << 20;
/// Bytes in front of each name: its length.
pub const NAME_HEAD_LEN: usize = 2;

/// Names of changed handles, each after its length in two bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ChangedHandles(Vec<u8>);

impl ChangedHandles {
    /// Adds a name. False if it is longer than 65,535 bytes, or there is no capacity.
    #[must_use]
    pub fn add(&mut self, handle: &[u8]) -> bool {
        let Ok(len) = u16::try_from(handle.len()) else { return false };
        if self.0.len() + NAME_HEAD_LEN + handle.len() > CHANGED_LEN_MAX {
            return false;
        }
        self.0.extend(len.to_be_bytes());
        self.0.extend(handle);
        true
    }

    /// Adds all names of `others`. False if there is no capacity for them.
    #[must_use]
    pub fn append(&mut self, others: &Self) -> bool {
        if self.0.len() + others.0.len() > CHANGED_LEN_MAX {
            return false;
        }
        self.0.extend(&others.0);
        true
    }

    /// Reads names; `None` if the last one is cut short, or there are too many bytes.
    #[must_use]
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let names = Self(bytes);
        let mut rest = &names.0[..];
        while !rest.is_empty() {
            rest = split_name(rest)?.1;
        }
        (names.0.len() <= CHANGED_LEN_MAX).then_some(names)
    }

    /// The names, as often as they have changed.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (name, after) = split_name(rest)?;
            rest = after;
            Some(name)
        })
    }

    /// The names in the form in which they are sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn split_name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<NAME_HEAD_LEN>()?;
    rest.split_at_checked(u16::from_be_bytes(*len).into())
}

impl fmt::Debug for ChangedHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names().map(String::from_utf8_lossy)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_as_they_were_added(names in vec(vec(any::<u8>(), 0..300), 0..20)) {
            let mut changed = ChangedHandles::default();
            for name in &names {
                prop_assert!(changed.add(name));
            }
            prop_assert!(changed.names().eq(names.iter().map(Vec::as_slice)));
            let read = ChangedHandles::parse(changed.as_bytes().to_vec()).unwrap();
            prop_assert_eq!(&read, &changed);
            prop_assert!(changed.append(&read) && changed.names().count() == 2 * names.len());
            let last = names.last().map_or(0, Vec::len);
            for cut in 1..NAME_HEAD_LEN + last {
                let cut = read.as_bytes().len().saturating_sub(cut);
                prop_assert_eq!(ChangedHandles::parse(read.as_bytes()[..cut].to_vec()).is_some(), names.is_empty());
            }
        }

        #[test]
        fn what_is_read_is_whole_names(bytes in vec(any::<u8>(), 0..200)) {
            if let Some(changed) = ChangedHandles::parse(bytes.clone()) {
                let len: usize = changed.names().map(|name| NAME_HEAD_LEN + name.len()).sum();
                prop_assert_eq!(len, bytes.len());
            }
        }
    }

    #[test]
    fn names_fit_up_to_the_limit() {
        let mut changed = ChangedHandles::default();
        assert!(!changed.add(&vec![0; 1 << 16]));
        let name = vec![b'x'; (1 << 14) - NAME_HEAD_LEN];
        for _ in 0..CHANGED_LEN_MAX >> 14 {
            assert!(changed.add(&name));
        }
        assert!(!changed.add(b"") && changed.as_bytes().len() == CHANGED_LEN_MAX);
        let one = ChangedHandles::parse(vec![0; NAME_HEAD_LEN]).unwrap();
        assert!(!changed.append(&one) && changed.append(&ChangedHandles::default()));
        assert!(ChangedHandles::parse(vec![0; CHANGED_LEN_MAX]).is_some());
        assert!(ChangedHandles::parse(vec![0; CHANGED_LEN_MAX + NAME_HEAD_LEN]).is_none());
    }
}
