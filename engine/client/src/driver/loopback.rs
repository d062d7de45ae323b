//! A server on loopback for tests: the simulated world's answers over UDP, TCP, HTTP and HTTPS.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::bootstrap::Root;
use crate::driver::now;
use crate::lookup::world::{SimulatedWorld, server_key, value};
use crate::testing::private_pem;
use handle_proto::ValueBuf;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::wire::Envelope;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::stream::{StreamFront, split};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The server; its threads end with the process.
pub(super) struct Loopback {
    pub(super) world: Arc<Mutex<SimulatedWorld>>,
    ports: [u16; 4],
}

const EVERY_WAY: [InterfaceProtocol; 4] =
    [InterfaceProtocol::UDP, InterfaceProtocol::TCP, InterfaceProtocol::HTTP, InterfaceProtocol::HTTPS];

/// The head of its HTTP answers.
const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-hdl-message\r\nTransfer-Encoding: chunked\r\n\r\n";

impl Loopback {
    /// A server that answers after `delay`.
    pub(super) fn new(delay: Duration) -> Self {
        let world = Arc::new(Mutex::new(SimulatedWorld::default()));
        let answer = {
            let world = Arc::clone(&world);
            move |address: SocketAddr, request: &[u8]| {
                std::thread::sleep(delay);
                world.lock().unwrap().reply(address, request, None, now())
            }
        };
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let port = |address: std::io::Result<SocketAddr>| address.unwrap().port();
        let [tcp, http, https] = &listeners;
        let ports = [&tcp, &http, &https].map(|listener| port(listener.local_addr()));
        let ports = [port(udp.local_addr()), ports[0], ports[1], ports[2]];
        serve_datagrams(udp, answer.clone());
        let [tcp, http, https] = listeners;
        serve(tcp, answer.clone(), |stream, answer| {
            let mut bytes = vec![];
            let request = read_message(stream, &mut bytes, 0);
            let _ = stream.write_all(&answer(&request));
        });
        serve(http, answer.clone(), |stream, answer| in_http(stream, answer));
        let config = tls();
        serve(https, answer, move |stream, answer| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            in_http(&mut stream, answer);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        });
        Self { world, ports }
    }

    /// Its site, with these protocols and this key.
    pub(super) fn site(&self, protocols: &[InterfaceProtocol], public_key: &[u8]) -> SiteBuilder {
        let interface = |&protocol: &InterfaceProtocol| {
            Interface::new(InterfaceKind::BOTH, protocol, self.ports[usize::from(protocol.0)])
        };
        let mut site = SiteBuilder::new();
        site.flags = SiteFlags::PRIMARY;
        site.server(ServerBuilder {
            id: 1,
            address: IpAddr::from(Ipv4Addr::LOCALHOST).into(),
            public_key: public_key.to_vec(),
            interfaces: protocols.iter().map(interface).collect(),
        });
        site
    }

    /// Gives it these records, and the prefix 10.A, at `site`; returns the global service for a
    /// client.
    pub(super) fn serves(&self, site: &SiteBuf, records: Vec<(&str, Vec<ValueBuf>)>) -> Root {
        let mut world = self.world.lock().unwrap();
        // The world finds the server by this site, whatever the records say.
        world.service(vec![self.site(&EVERY_WAY, server_key()).build()]);
        world.record(0, "0.NA/10.A", vec![value(1, b"HS_SITE", site.as_bytes())]);
        for (handle, values) in records {
            world.record(0, handle, values);
        }
        Root::of_sites([site.clone()])
    }
}

fn serve_datagrams(
    socket: UdpSocket,
    answer: impl Fn(SocketAddr, &[u8]) -> Vec<u8> + Send + Sync + Clone + 'static,
) {
    std::thread::spawn(move || {
        let socket = Arc::new(socket);
        let mut buffer = [0; 1 << 16];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            let (socket, answer, request) = (Arc::clone(&socket), answer.clone(), buffer[..len].to_vec());
            std::thread::spawn(move || {
                let message = answer(socket.local_addr().unwrap(), &request);
                let (envelope, data) = Envelope::split(&message).unwrap();
                for fragment in cut(&envelope) {
                    let _ = socket.send_to(&[&fragment.envelope, &data[fragment.range]].concat(), peer);
                }
            });
        }
    });
}

fn serve(
    listener: TcpListener,
    answer: impl Fn(SocketAddr, &[u8]) -> Vec<u8> + Send + Sync + Clone + 'static,
    with: impl Fn(&mut std::net::TcpStream, &dyn Fn(&[u8]) -> Vec<u8>) + Send + Sync + Clone + 'static,
) {
    std::thread::spawn(move || {
        let address = listener.local_addr().unwrap();
        while let Ok((mut stream, _)) = listener.accept() {
            let (answer, with) = (answer.clone(), with.clone());
            std::thread::spawn(move || with(&mut stream, &|request| answer(address, request)));
        }
    });
}

/// Reads until there is a whole message behind the bytes up to `begin`.
fn read_message(stream: &mut impl Read, bytes: &mut Vec<u8>, begin: usize) -> Vec<u8> {
    let mut buffer = [0; 4096];
    loop {
        if let Ok(StreamFront::Message(message, _)) = split(&bytes[begin..], 1 << 18) {
            return message.to_vec();
        }
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => bytes.extend_from_slice(&buffer[..len]),
            // The client has closed the connection.
            _ => std::panic::resume_unwind(Box::new(())),
        }
    }
}

fn in_http(stream: &mut (impl Read + Write), answer: &dyn Fn(&[u8]) -> Vec<u8>) {
    let (mut bytes, mut buffer) = (vec![], [0; 16]);
    let begin = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => bytes.extend_from_slice(&buffer[..len]),
            _ => return,
        }
    };
    assert!(bytes.starts_with(b"POST /"), "{}", String::from_utf8_lossy(&bytes));
    let message = answer(&read_message(stream, &mut bytes, begin));
    // In two pieces, so that the reader has to join them.
    let half = message.len() / 2;
    let chunks = [&message[..half], &message[half..], b""];
    let chunks = chunks.map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    for piece in [HEAD, &chunks[0], &chunks[1], &chunks[2]] {
        if stream.write_all(piece).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// An expired self-signed certificate, as deployed servers have them, with the key `server`.
fn tls() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(private_pem("server").as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap())
}
