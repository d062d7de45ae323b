//! Identities as written in the configuration: `index:handle`.

use handle_proto::Handle;
use handle_proto::limit::HANDLE_LEN_MAX;
use std::fmt;

/// An identity as written in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleIdentity {
    /// The index of the value that holds the key; 0 for any.
    pub index: i32,
    /// The handle of the identity.
    pub handle: Vec<u8>,
}

/// Why a text is not an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidIdentity {
    /// The index has more than 31 bits.
    Index(String),
    /// There is no handle, or it is too long.
    Handle(String),
}

impl fmt::Display for InvalidIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(text) => write!(f, "has {text:?}: an index has 31 bits"),
            Self::Handle(text) => {
                write!(f, "has {text:?}: expected INDEX:HANDLE, as \"300:0.NA/10.1000\"")
            }
        }
    }
}

impl std::error::Error for InvalidIdentity {}

/// Parses the identities of a setting.
///
/// # Errors
/// The first text that is not an identity.
pub fn identities(texts: &[String]) -> Result<Vec<HandleIdentity>, InvalidIdentity> {
    texts.iter().map(|text| identity(text)).collect()
}

/// Parses `300:10.1/admin`; without digits and a colon in front the index is 0.
fn identity(text: &str) -> Result<HandleIdentity, InvalidIdentity> {
    let (index, handle) = match text.split_once(':') {
        Some((digits, handle)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            (digits.parse().map_err(|_| InvalidIdentity::Index(text.to_owned()))?, handle)
        }
        _ => (0, text),
    };
    if handle.is_empty() || handle.len() > HANDLE_LEN_MAX {
        return Err(InvalidIdentity::Handle(text.to_owned()));
    }
    Ok(HandleIdentity { index, handle: Handle(handle.as_bytes()).looked_up() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_an_index_and_a_handle() {
        let read = |text: &str| identity(text).map(|identity| (identity.index, identity.handle)).ok();
        assert_eq!(read("300:10.1/a"), Some((300, b"10.1/a".to_vec())));
        assert_eq!(read("10.1/a:b"), Some((0, b"10.1/a:b".to_vec())));
        assert_eq!(read("7:10.1/a:b"), Some((7, b"10.1/a:b".to_vec())));
        assert_eq!(read("300:10.1"), Some((300, b"0.NA/10.1".to_vec())), "a bare prefix is its record");
        for wrong in ["", "300:", "99999999999:10.1/a"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let error = identities(&["300:10.1/a".into(), "300:".into()]).unwrap_err();
        assert_eq!(error, InvalidIdentity::Handle("300:".to_owned()));
    }
}
