//! What the credential of a message in a session proves.

/// What the credential of a message proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionProof {
    /// Nothing, because there is no MAC.
    None,
    /// A holder of the key of the session wrote the message.
    Mac,
}
