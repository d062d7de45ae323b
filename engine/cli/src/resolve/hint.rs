//! What to try when a lookup came to nothing.

use crate::client::ClientArgs;
use handle_client::LookupError;
use handle_client::exchange::AttemptError;
use handle_client::lookup::Client;
use handle_client::sockets::RECEIVE_BUFFER_LEN;
use handle_proto::ResponseCode;
use std::net::SocketAddr;

/// What to try next, in the words of this command.
pub(super) fn of(error: &LookupError, client: &Client, args: &ClientArgs) -> Option<String> {
    match error {
        LookupError::AllFailed {
            server,
            last: AttemptError::Silence | AttemptError::Unreachable | AttemptError::Ended,
            ..
        } if is_of_the_root(client, *server) => Some(of_silent_root(*server, args)),
        LookupError::AllFailed { last: AttemptError::Partial, .. } => Some(of_partial_answer()),
        error => of_error(error).map(str::to_owned),
    }
}

fn is_of_the_root(client: &Client, address: SocketAddr) -> bool {
    client.root.get().sites.iter().any(|site| {
        site.view().servers.iter().any(|server| {
            client.preferences.reached(server.address.ip()) == address.ip()
                && server.interfaces.iter().any(|interface| interface.port() == Some(address.port()))
        })
    })
}

fn of_silent_root(server: SocketAddr, args: &ClientArgs) -> String {
    let (file, how_else) = args.root_source();
    let lab = match server.ip().is_loopback() {
        true => "; if it was the one of a lab, that is down: `hdl lab up` makes another",
        false => "",
    };
    format!("that is the global service, as {file} says{lab}; {how_else}")
}

/// What to try when datagrams of an answer were lost: most often they found no room.
pub(crate) fn of_partial_answer() -> String {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let allowed = allowed.and_then(|text| text.trim().parse::<usize>().ok());
    let too_low = match allowed {
        Some(allowed) if allowed < RECEIVE_BUFFER_LEN => format!(
            "; the kernel allows receive buffers of {allowed} bytes, too little for long answers (sysctl \
             net.core.rmem_max={RECEIVE_BUFFER_LEN})"
        ),
        _ => String::new(),
    };
    format!("--tcp asks without datagrams{too_low}")
}

fn of_error(error: &LookupError) -> Option<&'static str> {
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
        LookupError::OldProof(_) => {
            "prove it with a private key (--key), or pass --allow-old-proofs for a server that speaks nothing newer"
        }
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
            let hint = of_error(&error).unwrap_or_default();
            assert!(hint.contains(says), "{error}: {hint}");
        }
        assert!(of_partial_answer().contains("--tcp"));
        assert_eq!(of_error(&failed(AttemptError::TooLong)), None);
    }
}
