//! Actions of HTTP servers, with faults in the status, the head, the length of a body and its end.

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpStream;

use handle_loadgen::Protocol;
use handle_loadgen::random::RandomGenerator;
use handle_proto::Value;
use handle_proto::json::record_to_json;

use super::server::{ServerAction, answer, joined, right_answer, url};

const WRONG_URL: &[u8] = b"https://example.org/evil";

/// Reads a request: the message of a POST, or the name of a GET.
pub(crate) fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let (mut line, mut len) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while line.trim_end().contains(' ') {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            len = value.trim_end().parse().unwrap();
        }
    }
    let mut message = vec![0; len];
    reader.read_exact(&mut message)?;
    match target.strip_prefix("/api/handles/") {
        Some(name) => Ok(percent_encoding::percent_decode_str(name).collect()),
        // No bytes mean the end of the connection.
        None if message.is_empty() => Err(std::io::ErrorKind::UnexpectedEof.into()),
        None => Ok(message),
    }
}

/// The body of a correct answer to `request`.
fn right_body(protocol: Protocol, request: &[u8]) -> Vec<u8> {
    if protocol == Protocol::Json { json(request, &url(request)) } else { joined(&right_answer(request)) }
}

fn wrong_body(protocol: Protocol, request: &[u8]) -> Vec<u8> {
    if protocol == Protocol::Json { json(request, WRONG_URL) } else { joined(&answer(request, WRONG_URL)) }
}

fn json(name: &[u8], url: &[u8]) -> Vec<u8> {
    let mut json = record_to_json(name, [Value::new(1, b"URL", url)]);
    json["responseCode"] = 1.into();
    json.to_string().into_bytes()
}

fn with(head: &str, body: &[u8]) -> Vec<u8> {
    [b"HTTP/1.1 ", head.as_bytes(), b"\r\n\r\n", body].concat()
}

/// Frames a correct answer, in one piece or in chunks, sometimes with an interim answer before it.
fn sound(body: &[u8], random: &mut RandomGenerator) -> Vec<u8> {
    let len = body.len();
    match random.below(4) {
        0 => {
            let (first, rest) = body.split_at(len / 3);
            let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
            let chunks = [chunk(first), chunk(rest), b"0\r\n\r\n".to_vec()].concat();
            with("200 OK\r\nTransfer-Encoding: chunked", &chunks)
        }
        1 => {
            let answer = with(&format!("200 OK\r\ncontent-length: {len}"), body);
            with("103 Early Hints", &answer)
        }
        _ => with(&format!("200 OK\r\nContent-Length: {len}"), body),
    }
}

/// Chooses the actions for a request; one in three requests gets a fault.
pub(crate) fn random_actions(
    protocol: Protocol,
    request: &[u8],
    random: &mut RandomGenerator,
    late: ServerAction,
) -> Vec<ServerAction> {
    let body = right_body(protocol, request);
    let bytes = sound(&body, random);
    let head = |len: usize| format!("200 OK\r\nContent-Length: {len}");
    let write = |bytes: Vec<u8>| vec![ServerAction::Write(bytes)];
    match random.below(48) {
        0 => vec![],
        1 => vec![ServerAction::Write(bytes.clone()), ServerAction::Write(bytes)],
        2 => vec![ServerAction::Write(bytes), ServerAction::Close],
        3 => vec![ServerAction::Close],
        4 => vec![ServerAction::Write(bytes[..bytes.len() - 1].to_vec()), ServerAction::Close],
        5 => vec![late, ServerAction::Write(bytes)],
        6 => write(sound(&wrong_body(protocol, request), random)),
        7 => write(with("500 Internal Server Error\r\nContent-Length: 4", b"oops")),
        8 => write(with("204 No Content", b"")),
        9 => write(with("302 Found\r\nLocation: /\r\nContent-Length: 0", b"")),
        // Longer and shorter than the head says, and a head without a valid length.
        10 => write(with(&head(body.len() + 7), &body)),
        11 => write(with(&head(body.len() - 7), &body)),
        12 => write(with("200 OK\r\nContent-Length: many", &body)),
        13 => vec![ServerAction::Write(with("200 OK", &body)), ServerAction::Close],
        14 => write(with("200 OK\r\nTransfer-Encoding: chunked", b"ffffffffffffffffff\r\n")),
        15 => write(b"no HTTP at all\r\n\r\n".to_vec()),
        _ => write(bytes),
    }
}
