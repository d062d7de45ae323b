//! What to try when a lookup came to nothing.

use handle_client::LookupError;
use handle_client::exchange::AttemptError;
use handle_proto::ResponseCode;

/// What to try next, in the words of this command.
pub(super) fn of(error: &LookupError) -> Option<&'static str> {
    Some(match error {
        LookupError::NoRoot => "try --root FILE, or --server HOST",
        LookupError::NoService { code: Some(ResponseCode::HANDLE_NOT_FOUND), .. } => {
            "hdl reference shows how the handle was read"
        }
        LookupError::NoService { .. } => "hdl resolve shows that record; who has it has to mend it",
        LookupError::NoServer { .. } => "hdl site shows its servers and their interfaces",
        LookupError::AllFailed { last, .. } => return of_attempt(last),
        LookupError::Circle { .. } | LookupError::TooManyIndirections { .. } => {
            "--trace shows the way; who has the records on it has to mend them"
        }
        LookupError::TooManyRequests => "--trace shows whom they would go to",
        LookupError::TooSlow { .. } => "--patience SECONDS gives it more time, --trace shows who takes it",
        LookupError::Challenge(_) => "is --auth the identity that may read it, with its own key?",
        _ => return None,
    })
}

fn of_attempt(last: &AttemptError) -> Option<&'static str> {
    Some(match last {
        AttemptError::Silence => {
            "is a firewall between? --tcp asks without datagrams, and --trace shows who is silent"
        }
        AttemptError::Unreachable | AttemptError::Ended => {
            "hdl site shows where its servers are; is the network up?"
        }
        AttemptError::Signature(_) | AttemptError::NoKey | AttemptError::Digest => {
            "hdl check --certify shows which servers sign as they should; without --certify nothing is proved"
        }
        AttemptError::Expired => "compare this clock with the server's",
        AttemptError::Refused(_) => "hdl check shows what each server says",
        AttemptError::NoAddress => "hdl site shows by which name the server is known, in domain",
        AttemptError::Malformed(_) | AttemptError::NotOurs(_) => {
            "hdl check shows whether the other servers say more; is something on the way changing answers?"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::VerifyError;

    #[test]
    fn every_reason_that_a_user_can_do_something_about_has_a_hint() {
        let handle = b"10.1/x".to_vec();
        let failed = |last| LookupError::AllFailed {
            handle: handle.clone(),
            attempts: 1,
            server: ([192, 0, 2, 1], 2641).into(),
            last,
        };
        for (error, says) in [
            (LookupError::NoRoot, "--root"),
            (LookupError::NoServer { handle: handle.clone() }, "hdl site"),
            (LookupError::TooSlow { handle: handle.clone() }, "--patience"),
            (LookupError::Circle { record: handle.clone() }, "--trace"),
            (failed(AttemptError::Silence), "--tcp"),
            (failed(AttemptError::Signature(VerifyError::Wrong)), "hdl check --certify"),
            (failed(AttemptError::Expired), "clock"),
            (failed(AttemptError::NoAddress), "domain"),
            (failed(AttemptError::Refused(ResponseCode::SERVER_BUSY)), "hdl check"),
        ] {
            let hint = of(&error).unwrap_or_default();
            assert!(hint.contains(says), "{error}: {hint}");
        }
        assert_eq!(of(&failed(AttemptError::TooLong)), None);
    }
}
