//! Selects the namespace that applies, and splits a handle at its delimiter.

use crate::build::{BuildError, BuildOutcome, Templates, build};
use crate::limit::CompileBudget;
use crate::namespace::Namespace;
use handle_proto::{Handle, Value};

/// The namespaces of a handle, from the outermost to the innermost: that of all prefixes, of the
/// prefix, and of the base. Without allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain<'n>([Option<&'n Namespace>; 3]);

/// A handle with an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'h> {
    /// The whole handle.
    pub handle: &'h [u8],
    /// The part before the delimiter: a handle that may be stored.
    pub base: &'h [u8],
    /// The part after the delimiter.
    pub extension: &'h [u8],
}

impl<'h> Parts<'h> {
    /// Splits `handle` at the first `delimiter` at or after the slash that ends its prefix. `None`
    /// if there is none, or `delimiter` is empty.
    #[must_use]
    pub fn of(handle: &'h [u8], delimiter: &[u8]) -> Option<Self> {
        let prefix_len = Handle(handle).slash_at()?;
        if delimiter.is_empty() {
            return None;
        }
        let at = prefix_len
            + handle[prefix_len..].windows(delimiter.len()).position(|bytes| bytes == delimiter)?;
        Some(Self { handle, base: &handle[..at], extension: &handle[at + delimiter.len()..] })
    }
}

impl<'n> Chain<'n> {
    /// A chain without namespaces.
    #[must_use]
    pub const fn new() -> Self {
        Self([None; 3])
    }

    /// Adds `namespace` as the innermost one.
    ///
    /// # Panics
    /// When there are three already.
    pub fn push(&mut self, namespace: &'n Namespace) {
        let free = self.0.iter_mut().find(|slot| slot.is_none());
        *free.expect("a chain has at most three namespaces") = Some(namespace);
    }

    /// Whether there are no namespaces.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    fn innermost_first(&self) -> impl Iterator<Item = &'n Namespace> {
        self.0.iter().rev().flatten().copied()
    }

    /// The delimiter between base and extension. The innermost namespace that has one decides.
    #[must_use]
    pub fn delimiter(&self) -> Option<&'n str> {
        self.innermost_first().find_map(Namespace::delimiter)
    }

    /// Computes the values of the handle of `parts`, whose base has the values `base`.
    ///
    /// The innermost namespace with templates decides. If none has any, the values are those of the
    /// base. `budget` is what is left after parsing the namespace of the base.
    ///
    /// # Errors
    /// When a pattern is invalid, or a limit is exceeded.
    pub fn build(
        &self,
        parts: &Parts<'_>,
        base: &[Value<'_>],
        templates: &dyn Templates,
        budget: &mut CompileBudget,
    ) -> Result<BuildOutcome, BuildError> {
        let innermost = self.innermost_first().find(|namespace| namespace.has_templates());
        match innermost {
            Some(namespace) => build(&namespace.templates, parts, base, templates, budget),
            None => BuildOutcome::copy(base),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_at_the_first_delimiter_behind_the_prefix() {
        for (handle, delimiter, parts) in [
            ("1/a@b", "@", Some(("1/a", "b"))),
            ("1/a@b@c", "@", Some(("1/a", "b@c"))),
            ("1/a@", "@", Some(("1/a", ""))),
            ("1/@b", "@", Some(("1/", "b"))),
            ("1@2/a", "@", None),
            ("1/a/b", "/", Some(("1", "a/b"))),
            ("1/a--b", "--", Some(("1/a", "b"))),
            ("1/a-b", "--", None),
            ("1/a", "@", None),
            ("1/a@b", "", None),
            ("a@b", "@", None),
            ("", "@", None),
        ] {
            let cut = Parts::of(handle.as_bytes(), delimiter.as_bytes());
            let expected = parts.map(|(base, extension)| (base.as_bytes(), extension.as_bytes()));
            assert_eq!(cut.map(|parts| (parts.base, parts.extension)), expected, "{handle}");
        }
    }

    #[test]
    fn missing_parts_come_from_outer_namespaces() {
        let namespace = |xml: &str| Namespace::parse(xml.as_bytes(), true).unwrap();
        let outer = namespace("<ns><template delimiter='@'/></ns>");
        let (bare, inner) = (namespace("<ns/>"), namespace("<ns><template delimiter='#'/></ns>"));
        let mut chain = Chain::new();
        assert_eq!(chain.delimiter(), None);
        chain.push(&outer);
        chain.push(&bare);
        assert_eq!(chain.delimiter(), Some("@"));
        chain.push(&inner);
        assert_eq!(chain.delimiter(), Some("#"));
    }
}
