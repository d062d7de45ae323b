//! Advice on a request that was not sent or not answered, in terms of the options of `hdl`.

use handle_client::LookupError;
use handle_client::administration::{AskError, SessionFailure};

/// What to try next.
pub(crate) fn of(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(LookupError::OldProof(_)) = error.downcast_ref() {
        return Some(OLD_PROOF);
    }
    Some(match error.downcast_ref()? {
        AskError::NoSession { why, has_secrets } => of_session(why, *has_secrets),
        AskError::OldProof(_) => OLD_PROOF,
        _ => return None,
    })
}

const OLD_PROOF: &str = "authenticate with a private key instead (--key), or pass --allow-old-proofs for a server that \
    supports nothing newer";

const fn of_session(why: &SessionFailure, has_secrets: bool) -> &'static str {
    match (why, has_secrets) {
        (SessionFailure::ServerKeyUnknown, true) => {
            "name the public key of the server (--server-key FILE), or pass --allow-cleartext-secrets to send secrets \
             unencrypted"
        }
        (SessionFailure::ServerKeyUnknown, false) => {
            "name the public key of the server (--server-key FILE), or pass --no-sessions"
        }
        (SessionFailure::NotUsed, _) => {
            "use sessions, or pass --allow-cleartext-secrets to send secrets unencrypted"
        }
        (SessionFailure::OldVersion(_), _) => {
            "the version may have been changed on the path; pass --allow-old-sessions for a server that supports \
             nothing newer"
        }
        (_, true) => {
            "try again; for a server without sessions pass --no-sessions and --allow-cleartext-secrets"
        }
        (_, false) => "try again; for a server without sessions pass --no-sessions",
    }
}

/// An error on one line, with what to try next.
pub(crate) fn line(error: &anyhow::Error) -> String {
    match of(error) {
        Some(advice) => format!("{error:#}; {advice}"),
        None => format!("{error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::{ResponseCode, Version};

    #[test]
    fn every_refusal_of_our_own_names_the_option_that_allows_it() {
        let refused = SessionFailure::Refused {
            code: ResponseCode::SERVER_BUSY,
            text: String::new(),
            is_proven: false,
        };
        let old = SessionFailure::OldVersion(Version::new(2, 6));
        for (why, secret, plain) in [
            (SessionFailure::ServerKeyUnknown, "--allow-cleartext-secrets", "--no-sessions"),
            (SessionFailure::NotUsed, "--allow-cleartext-secrets", "--allow-cleartext-secrets"),
            (refused, "--allow-cleartext-secrets", "--no-sessions"),
            (SessionFailure::KeyExchange, "--allow-cleartext-secrets", "--no-sessions"),
            (old, "--allow-old-sessions", "--allow-old-sessions"),
        ] {
            for (has_secrets, option) in [(true, secret), (false, plain)] {
                let error = AskError::NoSession { why: why.clone(), has_secrets };
                let line = line(&anyhow::Error::new(error).context("10.1/a"));
                assert!(line.starts_with("10.1/a: nothing was sent") && line.contains(option), "{line}");
            }
        }
        let version = Version::new(2, 6);
        assert!(line(&AskError::OldProof(version).into()).contains("--allow-old-proofs"));
        assert!(line(&LookupError::OldProof(version).into()).contains("--allow-old-proofs"));
        assert_eq!(line(&AskError::Late.into()), "no answer in time");
    }
}
