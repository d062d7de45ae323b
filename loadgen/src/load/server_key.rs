//! The public key that must verify answers: from a file, or from the site record of the server.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;

use handle_auth::PublicKey;
use handle_auth::file::FILE_LEN_MAX;
use handle_proto::data::Site;
use handle_proto::data::site::Server;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::{Envelope, Header, Message, Reply, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode};

use crate::error::Error;
use crate::load::options::{KeySource, RunOptions};
use crate::load::single_request;
use crate::load::transport::{Protocol, StreamTransport, Streams};
use crate::read::whole_of;

/// Id of the request for the site record, which is the only one at that time.
const REQUEST_ID: i32 = 1;

/// Reads the key of the server in `options`.
///
/// # Errors
///
/// If there is none, or it is unusable.
pub(crate) fn read(source: &KeySource, options: &RunOptions) -> Result<PublicKey, Error> {
    let (path, record) = match source {
        KeySource::File(path) => {
            let key_error =
                |error: std::io::Error| Error::Key { path: path.clone(), reason: error.to_string() };
            let record = File::open(path).and_then(|file| whole_of(file, FILE_LEN_MAX));
            (path.clone(), record.map_err(key_error)?)
        }
        KeySource::Server => {
            let path = PathBuf::from(format!("the site record of {}", options.target));
            let key_error = |reason: &str| Error::Key { path: path.clone(), reason: reason.to_owned() };
            let answer = ask(options)?.ok_or_else(|| key_error("no answer"))?;
            let record = key_in(&answer, options.target).map_err(key_error)?;
            (path, record)
        }
    };
    PublicKey::from_record(&record).map_err(|error| Error::Key { path, reason: error.to_string() })
}

/// Requests the site record; returns the whole answer without its envelope.
fn ask(options: &RunOptions) -> Result<Option<Vec<u8>>, Error> {
    let over_tcp = match options.transport {
        StreamTransport::Udp { .. } => false,
        StreamTransport::Stream(Streams { protocol: Protocol::Tcp, .. }) => true,
        StreamTransport::Stream(_) => {
            let reason = "--ask-server-key works over udp and tcp only: give --server-key FILE";
            return Err(Error::Option(reason.to_owned()));
        }
    };
    single_request::send(options.target, over_tcp, &request(), options.timeout).map_err(Error::Open)
}

fn request() -> Vec<u8> {
    let mut body = Vec::new();
    // The address selects the site; deployed clients still name a handle.
    HandleBody { handle: b"0.NA/0.NA" }.encode(&mut body);
    let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let header = Header {
        body_len: len(body.len()),
        ..Header::request(OpCode::GET_SITE_INFO, OpFlags::PLAIN_REQUEST, 0)
    };
    let message_len = len(Header::LEN + body.len() + 4);
    let envelope = Envelope { message_len, ..Envelope::request(REQUEST_ID) };
    [&envelope.to_bytes()[..], &header.to_bytes(), &body, &[0; 4]].concat()
}

/// The key record of the server at `target` in an answer with a site record; for a site with a
/// single server, the key of that server.
fn key_in(answer: &[u8], target: SocketAddr) -> Result<Vec<u8>, &'static str> {
    let unreadable = "its answer cannot be decoded";
    let message = Message::decode(answer).map_err(|_| unreadable)?;
    if message.header.response_code != ResponseCode::SUCCESS {
        return Err("the server has no site record or does not return it");
    }
    let version = Envelope::request(REQUEST_ID).version;
    let reply = Reply::decode(&message.header, version, message.body).map_err(|_| unreadable)?;
    let Response::SiteInfo(record) = reply.response else { return Err(unreadable) };
    let site = Site::decode(record).map_err(|_| unreadable)?;
    let is_target = |server: &Server<'_>| {
        let mut interfaces = server.interfaces.iter();
        server.address.ip() == target.ip()
            && interfaces.any(|interface| interface.port() == Some(target.port()))
    };
    let mut servers = site.servers.iter();
    let server = match (servers.next(), servers.next()) {
        (Some(only), None) => Some(only),
        _ => site.servers.iter().find(is_target),
    };
    let key = server.ok_or("the site record has no server with the address of the target")?.public_key;
    if key.is_empty() { Err("the site record has no key for this server") } else { Ok(key.to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::options::NameOptions;
    use handle_proto::data::site::{Address, Interface, InterfaceKind, InterfaceProtocol};
    use handle_proto::data::{ServerBuilder, SiteBuilder};
    use handle_proto::wire::Request;
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};

    #[test]
    fn the_request_is_for_the_site_record() {
        let request = request();
        let (envelope, rest) = Envelope::split(&request).unwrap();
        assert_eq!(envelope.message_len as usize, rest.len());
        let message = Message::decode(rest).unwrap();
        let decoded_request = Request::decode(message.header.op_code, envelope.version, message.body);
        assert!(matches!(decoded_request, Ok(Request::GetSiteInfo(_))), "{decoded_request:?}");
    }

    fn target(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// An answer with the record of a site whose servers listen on these ports; the key of each is
    /// its port.
    fn answer(code: ResponseCode, ports: &[u16]) -> Vec<u8> {
        let mut site = SiteBuilder::new();
        for port in ports {
            site.server(ServerBuilder {
                id: 1,
                address: Address::from(IpAddr::from(Ipv4Addr::LOCALHOST)),
                public_key: port.to_be_bytes().into_iter().filter(|byte| *byte != 0).collect(),
                interfaces: vec![Interface::new(InterfaceKind::QUERY, InterfaceProtocol::UDP, *port)],
            });
        }
        let body = site.build().into_bytes();
        let header = Header {
            response_code: code,
            body_len: u32::try_from(body.len()).unwrap(),
            ..Header::request(OpCode::GET_SITE_INFO, OpFlags(0), 0)
        };
        [&header.to_bytes()[..], &body, &[0; 4]].concat()
    }

    #[test]
    fn the_key_is_that_of_the_target() {
        let good = ResponseCode::SUCCESS;
        assert_eq!(key_in(&answer(good, &[0x0102, 0x0304]), target(0x0304)), Ok(vec![3, 4]));
        assert_eq!(
            key_in(&answer(good, &[0x0102]), target(9)),
            Ok(vec![1, 2]),
            "the only server of the site has the key"
        );
        for (answer, part) in [
            (answer(good, &[0x0102, 0x0304]), "no server with"),
            (answer(good, &[]), "no server with"),
            (answer(good, &[0]), "has no key"),
            (answer(ResponseCode::OPERATION_NOT_SUPPORTED, &[1]), "does not return it"),
            (b"noise".to_vec(), "cannot be decoded"),
        ] {
            let error = key_in(&answer, target(9)).unwrap_err();
            assert!(error.contains(part), "{error} does not say {part}");
        }
    }

    #[test]
    fn a_missing_key_is_reported_with_its_reason() {
        let silent = UdpSocket::bind(target(0)).unwrap();
        let options = RunOptions {
            timeout: std::time::Duration::from_millis(20),
            ..RunOptions::new(silent.local_addr().unwrap(), NameOptions::List(Vec::new()))
        };
        let error = read(&KeySource::Server, &options).unwrap_err().to_string();
        assert!(error.contains("no answer"), "{error}");
        let http = StreamTransport::Stream(Streams::pooled(Protocol::Http));
        let error = read(&KeySource::Server, &RunOptions { transport: http, ..options }).unwrap_err();
        assert!(matches!(error, Error::Option(_)), "{error}");
    }
}
