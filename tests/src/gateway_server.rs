//! Runs `handle-gateway` in this process, and asks it over plain connections.

use crate::admin_server::{AdminServer, administer_with};
use crate::openapi::require_described;
use crate::test_server::{OmittedHandles, publish};
use crate::vectors::{self, VectorSource};
use data_encoding::BASE64;
use handle_client::http_answer::HttpAnswerReader;
use handle_gateway::{Config, Gateway};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value as Json, json};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A gateway and the directory of its files.
pub struct GatewayServer {
    /// The running gateway.
    pub gateway: Gateway,
    /// The directory with its set and site record.
    pub directory: TempDir,
}

impl GatewayServer {
    /// The address that it answers on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.gateway.addresses()[0]
    }
}

/// Configuration for a test: one worker on loopback, on a port of the kernel's choice.
#[must_use]
pub fn config() -> Config {
    Config { listen: vec![([127, 0, 0, 1], 0).into()], workers: 1, ..Config::default() }
}

/// Runs a gateway over the records of the server called `name` in `servers.json` of `source`.
///
/// # Panics
/// When the files of the vectors do not hold what they should.
#[must_use]
pub fn serve_over_http(
    source: VectorSource,
    name: &str,
    change: impl FnOnce(&mut Config),
) -> (GatewayServer, OmittedHandles) {
    let servers = source.document("servers.json");
    let server = &servers["servers"][name];
    assert!(server.is_object(), "servers.json has a server {name}");
    let directory = tempfile::tempdir().expect("a directory for the set");
    let set = directory.path().join("set");
    let left_out = publish(source, server, &set);
    let site = directory.path().join("siteinfo.json");
    vectors::write_site(server, &site);
    let server_id = server["this_server_id"].as_i64().and_then(|id| i32::try_from(id).ok());
    let mut config = Config { snapshot: Some(set), site: Some(site), server_id, ..config() };
    change(&mut config);
    let gateway = Gateway::start(&config).expect("the gateway starts");
    (GatewayServer { gateway, directory }, left_out)
}

/// A gateway with TLS, and the administration service that verifies its callers.
pub struct AdministeredGateway {
    /// The gateway.
    pub gateway: GatewayServer,
    /// The administration service.
    pub administration: AdminServer,
    /// The socket at which it verifies callers.
    pub socket: PathBuf,
    /// The directory with the socket, and the certificate of the gateway.
    pub directory: TempDir,
}

impl AdministeredGateway {
    /// Starts both over the records of the server `root` of the vectors. `administer` and `change`
    /// change their configurations.
    ///
    /// # Panics
    /// When the files of the vectors do not hold what they should.
    #[must_use]
    pub fn start(
        administer: impl FnOnce(&mut handle_admin::config::Config),
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("admin.socket");
        let administration = administer_with("root", |config| {
            config.local.socket = Some(socket.clone());
            administer(config);
        });
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.admin.address = Some(administration.address());
            config.admin.socket = Some(socket.clone());
            use_tls(config, directory.path());
            change(config);
        });
        Self { gateway, administration, socket, directory }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// Reads a response at the start of `bytes`, which may be followed by others; with it, the
    /// bytes after it. A response to HEAD has no body. `None` if it is not whole.
    #[must_use]
    pub fn split(bytes: &[u8], is_head: bool) -> Option<(Self, &[u8])> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&bytes[..end]);
        let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
        let (mut reader, mut body) = (HttpAnswerReader::default(), Vec::new());
        let has_body = !is_head && status >= 200;
        let used = if has_body { reader.read(bytes, &mut body).ok()? } else { end };
        if has_body && !reader.is_over() && !reader.ends_with_connection() {
            return None;
        }
        let header =
            |line: &str| line.split_once(':').map(|(name, it)| (name.to_owned(), it.trim().to_owned()));
        let headers = head.split("\r\n").skip(1).filter_map(header).collect();
        Some((Self { status, headers, body }, &bytes[used..]))
    }

    /// The value of a header, by its name in small letters.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// All values of a header, joined by commas.
    #[must_use]
    pub fn list(&self, name: &str) -> String {
        let named = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Configures the certificate of the tests, with its files in `directory`.
///
/// # Panics
/// When they cannot be written.
pub fn use_tls(config: &mut Config, directory: &Path) {
    write_tls(directory, 0);
    config.tls.certificate = Some(directory.join("certificate.pem"));
    config.tls.key = Some(directory.join("key.pem"));
}

/// Writes one of the certificates of the tests to the files that [`use_tls`] names.
///
/// # Panics
/// When they cannot be written.
pub fn write_tls(directory: &Path, number: usize) {
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    let (certificate_pem, key_pem) = CERTIFICATES[number % CERTIFICATES.len()];
    std::fs::write(&certificate, certificate_pem).expect("the certificate is written");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&key);
    file.and_then(|mut file| file.write_all(key_pem)).expect("the key is written");
}

/// The certificates of the tests, for `localhost`, and their keys, which are used nowhere else.
const CERTIFICATES: [(&[u8], &[u8]); 2] = [
    (include_bytes!("../tls/certificate.pem"), include_bytes!("../tls/key.pem")),
    (include_bytes!("../tls/next_certificate.pem"), include_bytes!("../tls/next_key.pem")),
];

/// A client that trusts the certificates of the tests, and offers these protocols.
///
/// # Panics
/// When the certificate of the tests is not one.
#[must_use]
pub fn tls_client(protocols: &[&[u8]]) -> ClientConfig {
    tls_client_trusting(trusted_certificates(), protocols)
}

/// The certificates of the tests, as a client trusts them.
///
/// # Panics
/// When the certificate of the tests is not one.
#[must_use]
pub fn trusted_certificates() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for (pem, _) in CERTIFICATES {
        let certificate = CertificateDer::from_pem_slice(pem).expect("a certificate");
        roots.add(certificate).expect("a certificate that can be trusted");
    }
    roots
}

/// A client that trusts these certificates, and offers these protocols.
fn tls_client_trusting(roots: RootCertStore, protocols: &[&[u8]]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions of TLS").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Like [`exchange`], over TLS.
///
/// # Panics
/// When there is no connection, or no end of the answers.
#[must_use]
pub fn exchange_over_tls(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    exchange_in(&mut connect_over_tls(address), request)
}

/// Sends a request in a connection, and returns all bytes until its end.
fn exchange_in(stream: &mut StreamOwned<ClientConnection, TcpStream>, request: &[u8]) -> Vec<u8> {
    stream.write_all(request).expect("the request is sent");
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => panic!("no answer over TLS: {error}"),
        _ => answer,
    }
}

/// A connection over TLS.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn connect_over_tls(address: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(tls_client(&[])), name).expect("a connection");
    StreamOwned::new(connection, connect(address))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends the bytes of one or more requests, of which the last closes the connection, and returns
/// all bytes of the answers.
///
/// # Panics
/// When there is no connection, or no end of the answers.
#[must_use]
pub fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    // A server that refuses a request may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("no end of the answer: {error}")
        }
        _ => answer,
    }
}

/// The answer in `bytes` to a request with `method` for `target`, which the OpenAPI document of the
/// gateway describes.
///
/// # Panics
/// When there is none, or it is not described.
#[must_use]
pub fn described(method: &str, target: &str, bytes: &[u8]) -> HttpAnswer {
    let answer = HttpAnswer::split(bytes, method == "HEAD");
    let answer = answer.unwrap_or_else(|| panic!("{target}: {}", String::from_utf8_lossy(bytes))).0;
    require_described(method, target, &answer);
    answer
}

/// Like [`ask_over_tls`], to an address under the name in its certificate, which is trusted.
///
/// # Panics
/// When there is no answer, or the OpenAPI document does not describe it.
#[must_use]
pub fn ask_over_tls_trusting(
    certificate: &[u8],
    (address, name): (SocketAddr, &str),
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> HttpAnswer {
    let certificate = CertificateDer::from_pem_slice(certificate).expect("a certificate");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate that can be trusted");
    let connection = ClientConnection::new(Arc::new(tls_client_trusting(roots, &[])), name);
    let mut stream = StreamOwned::new(connection.expect("a connection"), connect(address));
    let len = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let request = format!("{head}{headers}Content-Length: {len}\r\n\r\n{body}");
    described(method, target, &exchange_in(&mut stream, request.as_bytes()))
}

/// The answer to a request over TLS, with these further header lines, on a connection of its own.
///
/// # Panics
/// When there is no answer, or the OpenAPI document does not describe it.
#[must_use]
pub fn ask_over_tls(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> HttpAnswer {
    let len = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let request = format!("{head}{headers}Content-Length: {len}\r\n\r\n{body}");
    described(method, target, &exchange_over_tls(address, request.as_bytes()))
}

/// Asks for `target` with these further header lines.
///
/// # Panics
/// When there is no answer, or the OpenAPI document does not describe it.
#[must_use]
pub fn get(address: SocketAddr, target: &str, headers: &str) -> HttpAnswer {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    let bytes = exchange(address, request.as_bytes());
    described("GET", target, &bytes)
}

/// Posts `body` to `target` with these further header lines.
///
/// # Panics
/// When there is no answer, or the OpenAPI document does not describe it.
#[must_use]
pub fn post(address: SocketAddr, target: &str, headers: &str, body: &[u8]) -> HttpAnswer {
    let bytes = exchange(address, &post_request(target, headers, body));
    described("POST", target, &bytes)
}

/// The bytes of a request that posts `body` to `target` and closes the connection.
#[must_use]
pub fn post_request(target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// What a caller has of a session: its id and nonce.
pub type OpenedSession = (String, Vec<u8>);

/// The session in an answer that opens one.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn session_of(opened: &Json) -> OpenedSession {
    let text = |name: &str| opened[name].as_str().unwrap_or_else(|| panic!("no {name} in {opened}"));
    let nonce = BASE64.decode(text("nonce").as_bytes()).expect("a nonce in base64");
    (text("sessionId").to_owned(), nonce)
}

/// The body of a request that gives a session an identity, whose client nonce is `client nonce`.
#[must_use]
pub fn session_proof(id: &str, identity: &str, kind: &str, algorithm: &str, proof: &[u8]) -> Json {
    json!({
        "sessionId": id, "id": identity, "type": kind, "alg": algorithm,
        "cnonce": BASE64.encode(b"client nonce"), "signature": BASE64.encode(proof),
    })
}

/// The header line with a session.
#[must_use]
pub fn of_session(id: &str) -> String {
    format!("Authorization: Handle sessionId=\"{id}\"\r\n")
}
