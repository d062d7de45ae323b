//! Why JSON cannot be read: the position and the problem.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;

/// Why JSON cannot be read, in one sentence: `values[3].data.value: not base64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    path: String,
    what: Cow<'static, str>,
}

impl JsonError {
    pub(super) fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self { path: String::new(), what: what.into() }
    }

    /// The same error, with the path of the enclosing object or list.
    pub(super) fn within(mut self, member: &str) -> Self {
        if !self.path.is_empty() && !self.path.starts_with('[') {
            self.path.insert(0, '.');
        }
        self.path.insert_str(0, member);
        self
    }

    /// The path of the problem, from the outermost object; empty for that object itself.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The problem.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.what);
        }
        write!(f, "{}: {}", self.path, self.what)
    }
}

impl core::error::Error for JsonError {}
