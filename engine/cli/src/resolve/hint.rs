//! Hints for failed lookups.

use crate::client::ClientArgs;
use handle_client::LookupError;
use handle_client::exchange::AttemptError;
use handle_client::lookup::Client;
use handle_client::sockets::RECEIVE_BUFFER_LEN;
use handle_proto::ResponseCode;
use std::net::SocketAddr;

/// The next thing to try, in terms of the options of `hdl`.
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
        true => "; if it belongs to a lab that has stopped, start a new one with `handle-lab up`",
        false => "",
    };
    format!("that is the global service in {file}{lab}; {how_else}")
}

/// A hint for an answer with lost datagrams: usually the receive buffer was too small.
pub(crate) fn of_partial_answer() -> String {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let allowed = allowed.and_then(|text| text.trim().parse::<usize>().ok());
    let too_low = match allowed {
        Some(allowed) if allowed < RECEIVE_BUFFER_LEN => format!(
            "; the kernel limits receive buffers to {allowed} bytes, too little for long answers (sysctl \
            net.core.rmem_max={RECEIVE_BUFFER_LEN})"
        ),
        _ => String::new(),
    };
    format!("try --tcp{too_low}")
}

fn of_error(error: &LookupError) -> Option<&'static str> {
    Some(match error {
        LookupError::NoRoot => "try --root FILE, or --server HOST",
        LookupError::NoService { code: Some(ResponseCode::HANDLE_NOT_FOUND), .. } => {
            "hdl reference shows how the handle is parsed"
        }
        LookupError::NoService { .. } => "hdl resolve shows that record; its administrator has to correct it",
        LookupError::NoServer { .. } => "hdl site shows its servers and their interfaces",
        LookupError::AllFailed { last, .. } => return of_attempt(last),
        LookupError::Circle { .. } | LookupError::TooManyIndirections { .. } => {
            "--trace shows the steps; the administrators of those records have to correct them"
        }
        LookupError::TooManyRequests => "--trace shows the servers that are asked",
        LookupError::TooSlow { .. } => {
            "allow more time with --lookup-timeout SECONDS; --trace shows which server is slow"
        }
        LookupError::OldProof(_) => {
            "authenticate with a private key (--key), or pass --allow-old-proofs for a server that supports nothing newer"
        }
        LookupError::Challenge(_) => {
            "check that --auth names an identity with the right to read, and that the key belongs to it"
        }
        _ => return None,
    })
}

fn of_attempt(last: &AttemptError) -> Option<&'static str> {
    Some(match last {
        AttemptError::Silence => {
            "a firewall may drop datagrams: try --tcp; --trace shows which servers do not answer"
        }
        AttemptError::Unreachable | AttemptError::Ended => {
            "check the network; hdl site shows the addresses of the servers"
        }
        AttemptError::Signature(_) | AttemptError::NoKey | AttemptError::Digest => {
            "hdl check --certify shows which servers sign correctly; without --certify answers are not authenticated"
        }
        AttemptError::Expired => "compare the clock of this machine with that of the server",
        AttemptError::Refused(_) => "hdl check shows the answer of each server",
        AttemptError::NoAddress => "hdl site shows the host name of the server, in the attribute domain",
        AttemptError::Malformed(_) | AttemptError::NotOurs(_) => {
            "hdl check compares all servers; answers may be changed on the path"
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
            (LookupError::TooSlow { handle: handle.clone() }, "--lookup-timeout"),
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
