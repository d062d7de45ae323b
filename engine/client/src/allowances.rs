//! Insecure behaviour that the user of a client has to allow by name.

/// Concessions to old servers and to servers without sessions. None is made unless it is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// Send secrets and values that are not public outside an encrypted session.
    pub cleartext_secrets: bool,
    /// Use sessions of versions below 2.7, in which neither the version nor the number of a message
    /// is protected.
    pub old_sessions: bool,
    /// Answer challenges of versions below 2.7 with an MD5 or SHA-1 digest of the secret, which can
    /// be guessed from it.
    pub old_proofs: bool,
}

impl Allowances {
    /// No concessions.
    pub const NONE: Self = Self { cleartext_secrets: false, old_sessions: false, old_proofs: false };
}
