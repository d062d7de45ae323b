//! Authorities of ACME: Pebble as a process, with a DNS server that knows every name, and one that
//! answers what a test wants.

use crate::daemon::free_address;
use crate::http::read_reply;
use crate::needs::{TestNeed, has};
use crate::process::{RunningProcess, until};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The programs of the Debian package `pebble`.
const PROGRAMS: [&str; 2] = ["pebble", "pebble-challtestsrv"];
/// Time for a connection of a test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Whether Pebble is installed. If not, the test is reported as left out.
#[must_use]
pub fn has_pebble() -> bool {
    let is_there = |name: &&str| {
        let found = Command::new(name).arg("-help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok()
    };
    has(TestNeed::Pebble, PROGRAMS.iter().all(is_there))
}

/// A certificate for `localhost` and 127.0.0.1 that an authority has for itself, in `directory`:
/// `ca.pem` and `ca-key.pem`. It is its own authority.
fn write_own_certificate(directory: &Path) -> (PathBuf, PathBuf) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
    let paths = (directory.join("ca.pem"), directory.join("ca-key.pem"));
    std::fs::write(&paths.0, certificate.pem()).expect("the certificate is written");
    std::fs::write(&paths.1, key.serialize_pem()).expect("the key is written");
    paths
}

/// Options of [`Pebble`].
#[derive(Clone, Copy, Debug)]
pub struct PebbleOptions {
    /// Port on which names are checked over HTTP.
    pub http_port: u16,
    /// Port on which names are checked over TLS.
    pub tls_port: u16,
    /// Validity of certificates.
    pub validity_s: u64,
    /// The id and key of the external account that a new account needs.
    pub external_account: Option<(&'static str, &'static str)>,
    /// Percentage of requests whose nonce is refused. Clients repeat them twice.
    pub refused_nonces: u8,
}

/// A running Pebble. Accounts and certificates are lost when it is dropped.
#[derive(Debug)]
pub struct Pebble {
    directory: TempDir,
    processes: Vec<RunningProcess>,
    options: PebbleOptions,
    listen: SocketAddr,
    management: SocketAddr,
    dns: SocketAddr,
}

impl Pebble {
    /// Starts an authority.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(options: PebbleOptions) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        write_own_certificate(directory.path());
        let (listen, management, dns) = (free_address(), free_address(), free_address());
        let mut pebble = Self { directory, processes: Vec::new(), options, listen, management, dns };
        pebble.resume();
        pebble
    }

    /// Starts the processes again, after [`stop`](Self::stop).
    ///
    /// # Panics
    /// When they do not start.
    pub fn resume(&mut self) {
        let file = |name: &str| self.directory.path().join(name);
        let mut config = json!({ "pebble": {
            "listenAddress": self.listen.to_string(), "managementListenAddress": self.management.to_string(),
            "certificate": file("ca.pem"), "privateKey": file("ca-key.pem"), "ocspResponderURL": "",
            "httpPort": self.options.http_port, "tlsPort": self.options.tls_port,
            "certificateValidityPeriod": self.options.validity_s,
            "externalAccountBindingRequired": self.options.external_account.is_some(),
        }});
        if let Some((id, key)) = self.options.external_account {
            config["pebble"]["externalAccountMACKeys"] = json!({ id: key });
        }
        let path = file("pebble.json");
        std::fs::write(&path, config.to_string()).expect("the configuration is written");
        let mut dns = Command::new(PROGRAMS[1]);
        dns.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]);
        dns.args(["-dns01", &self.dns.to_string(), "-management", &free_address().to_string()]);
        let mut pebble = Command::new(PROGRAMS[0]);
        pebble.arg("-config").arg(&path).args(["-dnsserver", &self.dns.to_string()]);
        pebble.env("PEBBLE_VA_NOSLEEP", "1");
        pebble.env("PEBBLE_WFE_NONCEREJECT", self.options.refused_nonces.to_string());
        for mut command in [dns, pebble] {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.processes.push(RunningProcess::start(command));
        }
        until("Pebble answers", || self.get(self.management, "/roots/0").is_ok());
        until("Pebble has its directory", || self.get(self.listen, "/dir").is_ok());
    }

    /// Ends the processes.
    pub fn stop(&mut self) {
        self.processes.clear();
    }

    /// URL of the directory.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}/dir", self.listen)
    }

    /// The file with the authority of Pebble's own certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A client of TLS that trusts the certificates that are issued. Pebble has another root after
    /// each start.
    ///
    /// # Panics
    /// When Pebble does not answer.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        let pem = self.get(self.management, "/roots/0").expect("the root of Pebble");
        client_that_trusts(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate"))
    }

    /// The body of an answer of Pebble.
    fn get(&self, address: SocketAddr, path: &str) -> io::Result<String> {
        let own = CertificateDer::from_pem_file(self.ca_file()).map_err(io::Error::other)?;
        let (mut stream, _) = connect(address, &client_that_trusts(own), "localhost")?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let reply = read_reply(&answer).ok_or(io::ErrorKind::UnexpectedEof)?;
        let refused = || io::Error::other(format!("status {} of {path}", reply.status));
        if reply.status == 200 { Ok(reply.body.clone()) } else { Err(refused()) }
    }
}

fn client_that_trusts(root: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root).expect("a certificate that can be trusted");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("versions of TLS").with_root_certificates(roots).with_no_client_auth())
}

/// A connection over TLS to `name`.
pub type NamedStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects to `name` at `address`, and verifies the certificate. Returns also the certificate.
///
/// # Errors
/// When there is no connection, or the certificate is not valid.
///
/// # Panics
/// When `name` is not a name.
pub fn connect(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
    name: &'static str,
) -> io::Result<(NamedStream, Vec<u8>)> {
    let name = ServerName::try_from(name).expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    let certificate = stream.conn.peer_certificates().and_then(<[_]>::first).map(|it| it.to_vec());
    Ok((stream, certificate.unwrap_or_default()))
}

/// What an authority that is not one answers to every request.
#[derive(Clone, Debug)]
pub enum FalseAnswer {
    /// These bytes, in place of an answer over HTTP.
    Bytes(Vec<u8>),
    /// A status and a body.
    Status(u16, String),
    /// A head, and then bytes without end.
    Endless,
    /// Nothing, for as long as the client waits.
    Silence,
}

/// An HTTPS server that gives the same answer to every request.
#[derive(Debug)]
pub struct FalseAuthority {
    directory: TempDir,
    address: SocketAddr,
    requests: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FalseAuthority {
    /// Starts the server.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(answer: FalseAnswer) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (certificate, key) = write_own_certificate(directory.path());
        let chain = vec![CertificateDer::from_pem_file(certificate).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.expect("versions of TLS").with_no_client_auth().with_single_cert(chain, key);
        let config = Arc::new(config.expect("a certificate with its key"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ended) = (Arc::clone(&requests), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                // The client may go away at any time.
                let _ = reply(&mut StreamOwned::new(connection, stream), &answer, &ended);
            }
        });
        Self { directory, address, requests, ends, thread: Some(thread) }
    }

    /// URL of the directory.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://localhost:{}/dir", self.address.port())
    }

    /// The file with the authority of its certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Number of connections so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for FalseAuthority {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the thread.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn reply(
    stream: &mut StreamOwned<ServerConnection, TcpStream>,
    answer: &FalseAnswer,
    ended: &AtomicBool,
) -> io::Result<()> {
    stream.sock.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => break,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if ended.load(Ordering::Relaxed) => return Ok(()),
            Err(_) => {}
        }
    }
    match answer {
        FalseAnswer::Bytes(bytes) => stream.write_all(bytes)?,
        FalseAnswer::Status(status, body) => {
            let len = body.len();
            write!(stream, "HTTP/1.1 {status} X\r\nReplay-Nonce: x\r\nContent-Length: {len}\r\n\r\n{body}")?;
        }
        FalseAnswer::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            while !ended.load(Ordering::Relaxed) {
                stream.write_all(&buffer)?;
            }
        }
        FalseAnswer::Silence => loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Ok(()),
                _ if ended.load(Ordering::Relaxed) => return Ok(()),
                _ => {}
            }
        },
    }
    stream.conn.send_close_notify();
    stream.flush()
}

/// The account in a state directory: where the authority has it.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn account_id(state_directory: &Path) -> String {
    let bytes = std::fs::read(state_directory.join("account.json")).expect("an account");
    let account: Value = serde_json::from_slice(&bytes).expect("an account as JSON");
    account["credentials"]["id"].as_str().expect("an id").to_owned()
}
