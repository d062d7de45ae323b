//! Requests outside of the schedule: probes, replays, and the question for the key of the server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use handle_client::raw_exchange::{RawExchangeError, ask_over_tcp, ask_over_udp};
use handle_proto::wire::Envelope;

/// Sends a whole message once; returns the answer without its envelope, or `None` if there is no
/// whole answer in time.
///
/// # Errors
///
/// If a socket cannot be used.
pub(crate) fn send(
    target: SocketAddr,
    over_tcp: bool,
    request: &[u8],
    timeout: Duration,
) -> io::Result<Option<Vec<u8>>> {
    let result = match over_tcp {
        true => ask_over_tcp(target, request, timeout),
        false => ask_over_udp(target, request, [timeout]),
    };
    match result {
        Ok(answer) => Ok(answer.message.get(Envelope::LEN..).map(<[u8]>::to_vec)),
        // A closed port, or a connection that fails in any way, counts as no answer.
        Err(RawExchangeError::Socket(_, error)) if !over_tcp => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::verify::request;
    use crate::load::question::GeneratedQuestion;
    use handle_proto::limit::MESSAGE_LEN_MAX;
    use std::io::Write as _;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn a_trickle_is_no_answer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let envelope = Envelope { message_len: MESSAGE_LEN_MAX, ..Envelope::request(9) };
                stream.write_all(&envelope.to_bytes()).unwrap();
                // Until the connection is closed; each byte arrives well in time.
                while stream.write_all(&[0]).is_ok() {
                    thread::sleep(Duration::from_millis(10));
                }
            });
            let request = request(&GeneratedQuestion::plain(b"10.1/a"), 9);
            let begun = Instant::now();
            assert_eq!(send(target, true, &request, Duration::from_millis(200)).unwrap(), None);
            // The whole answer would take three quarters of an hour.
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?} instead of 200 ms", begun.elapsed());
        });
    }
}
