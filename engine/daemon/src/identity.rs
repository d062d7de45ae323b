//! Identities as written in the configuration: `index:handle`.

use anyhow::{Context as _, ensure};
use handle_proto::Handle;
use handle_proto::limit::HANDLE_LEN_MAX;

/// An identity as written in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleIdentity {
    /// The index of the value that holds the key; 0 for any.
    pub index: i32,
    /// The handle of the identity.
    pub handle: Vec<u8>,
}

/// Parses the identities of `setting`.
///
/// # Errors
/// Names the invalid identity.
pub fn identities(setting: &str, texts: &[String]) -> anyhow::Result<Vec<HandleIdentity>> {
    texts.iter().map(|text| identity(text).with_context(|| format!("`{setting}` has {text:?}"))).collect()
}

/// Reads `300:10.1/admin`; without digits and a colon in front the index is 0.
fn identity(text: &str) -> anyhow::Result<HandleIdentity> {
    let (index, handle) = match text.split_once(':') {
        Some((digits, handle)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let index = digits.parse().ok().context("an index has 31 bits")?;
            (index, handle)
        }
        _ => (0, text),
    };
    ensure!(
        !handle.is_empty() && handle.len() <= HANDLE_LEN_MAX,
        "expected INDEX:HANDLE, as \"300:0.NA/10.1000\""
    );
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
        let error = identities("administrators.server", &["300:".into()]).unwrap_err();
        assert!(format!("{error:#}").contains("administrators.server"));
    }
}
