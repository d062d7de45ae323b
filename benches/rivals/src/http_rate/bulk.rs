//! Records created in one request to `POST /api/batch`: a client with TLS, `handle-gateway` and
//! `handle-admin`, which commits each part of the records to disk and publishes them.
//!
//! Both processes are those that are deployed, on the core of the servers.

use super::servers::write_tls;
use super::{Args, say};
use anyhow::{Context as _, ensure};
use handle_benches::serve;
use handle_benches::spread::Spread;
use handle_benches::usage::Usage;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Start of the answer to a line that created a record.
const CREATED: &[u8] = b"\"responseCode\":1,";
/// Longest wait for a process to start, and for the answer to a request.
const TIMEOUT: Duration = Duration::from_secs(120);
/// `300:0.NA/10.1` with the secret of [`SECRET`], as the scheme Basic encodes it.
const CREDENTIALS: &str = "Basic MzAwJTNBMC5OQS8xMC4xOm9wZW4gc2VzYW1l";
const SECRET: &str = "open sesame";

pub(super) fn measure(args: &Args) -> anyhow::Result<serde_json::Value> {
    let directory = tempfile::tempdir()?;
    let service = BulkService::start(directory.path(), args.common.server_core)?;
    serve::pin(Some(args.common.client_core));
    let lines = args.lines;
    let mut report = serde_json::Map::new();
    for (name, has_key) in [("without an idempotency key", false), ("with an idempotency key", true)] {
        let (mut rates, mut busy) = (Vec::new(), Vec::new());
        for round in 0..args.rounds {
            let body = creations(&format!("{has_key}-{round}"), lines);
            let key = has_key.then(|| format!("round-{round}"));
            let used = service.usage()?;
            let took = service.create(&body, key.as_deref(), lines)?.as_secs_f64();
            busy.push((service.usage()? - used).as_secs_f64() / took);
            rates.push(lines as f64 / took);
        }
        let (rates, busy) = (Spread::of(rates), Spread::of(busy));
        say(
            args,
            &format!(
                "POST /api/batch with {lines} records {name}: {rates:.0} records/s, servers busy {busy:.2}"
            ),
        );
        report.insert(name.to_owned(), json!({ "records_per_s": rates.to_json(), "busy": busy.to_json() }));
    }
    report.insert("records".to_owned(), lines.into());
    Ok(report.into())
}

/// The value that names the administrator of all records.
fn administrator() -> serde_json::Value {
    json!({ "index": 100, "type": "HS_ADMIN", "data": { "format": "admin",
        "value": { "handle": "0.NA/10.1", "index": 300, "permissions": "111111111111" } } })
}

/// The body of a request: records with a URL and an administrator.
fn creations(prefix: &str, lines: usize) -> String {
    let mut body = String::new();
    for number in 0..lines {
        let url = json!({ "index": 1, "type": "URL", "data": format!("https://www.example.org/items/{number:08}") });
        let record =
            json!({ "handle": format!("10.1/{prefix}-{number:08}"), "values": [url, administrator()] });
        // Writing to a string does not fail.
        let _ = writeln!(body, "{record}");
    }
    body
}

/// A process that is killed when it is dropped.
struct KilledProcess(Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        // Its files are temporary.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both processes over a store with the record of a prefix.
struct BulkService {
    address: SocketAddr,
    processes: [KilledProcess; 2],
}

impl BulkService {
    fn start(directory: &Path, core: usize) -> anyhow::Result<Self> {
        write_tls(directory)?;
        write_store(directory)?;
        let (admin, http) = (free_address()?, free_address()?);
        let admin_process = spawn(directory, "handle-admin", &admin_configuration(admin), core)?;
        until("handle-admin publishes", || directory.join("set/MANIFEST").exists())?;
        let gateway = spawn(directory, "handle-gateway", &gateway_configuration(admin, http), core)?;
        until("handle-gateway listens", || StdStream::connect(http).is_ok())?;
        Ok(Self { address: http, processes: [admin_process, gateway] })
    }

    /// The processor time of both processes.
    fn usage(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| Ok(Usage::of(process.0.id())?.total())).sum()
    }

    /// Creates records in one request, and returns the time from its start to the end of the
    /// answer.
    fn create(&self, body: &str, key: Option<&str>, lines: usize) -> anyhow::Result<Duration> {
        let key = key.map_or_else(String::new, |key| format!("Idempotency-Key: {key}\r\n"));
        let head = format!(
            "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {CREDENTIALS}\r\n\
             Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n{key}\r\n",
            body.len()
        );
        let request = [head.as_str(), body].concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (took, answer) = runtime.block_on(async {
            tokio::time::timeout(TIMEOUT, exchange(self.address, request))
                .await
                .context("no answer in time")?
        })?;
        let created = answer.windows(CREATED.len()).filter(|part| *part == CREATED).count();
        let start = String::from_utf8_lossy(&answer[..answer.len().min(400)]);
        ensure!(created == lines, "{created} of {lines} records created: {start}");
        Ok(took)
    }
}

/// Sends a request over TLS while it reads the answer; the time from the start of the connection to
/// the end of the answer.
async fn exchange(address: SocketAddr, request: String) -> anyhow::Result<(Duration, Vec<u8>)> {
    let connector = TlsConnector::from(Arc::new(client_config()?));
    let begun = Instant::now();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let stream = connector.connect(ServerName::try_from("localhost")?, stream).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let send = async {
        writer.write_all(request.as_bytes()).await?;
        writer.flush().await
    };
    let (sent, received) = tokio::join!(send, reader.read_to_end(&mut answer));
    let took = begun.elapsed();
    sent?;
    received?;
    Ok((took, answer))
}

fn client_config() -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(include_bytes!("../../../../tests/tls/certificate.pem"))?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A program beside this one.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "there is no {}: build it with the same profile", path.display());
    Ok(path)
}

/// Writes the site record, and a store with a prefix and its secret.
fn write_store(directory: &Path) -> anyhow::Result<()> {
    let interface = json!({ "query": true, "admin": true, "protocol": "TCP", "port": 1 });
    let site = json!({
        "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true, "multiPrimary": false,
        "attributes": [], "servers": [{ "serverId": 1, "address": "127.0.0.1", "interfaces": [interface] }],
    });
    fs::write(directory.join("site.json"), site.to_string())?;
    fs::create_dir(directory.join("set"))?;
    let secret = json!({ "index": 300, "type": "HS_SECKEY", "data": SECRET, "permissions": "1100" });
    let record = json!({ "handle": "0.NA/10.1", "values": [administrator(), secret] });
    fs::write(directory.join("prefixes"), "10.1\n")?;
    fs::write(directory.join("records"), format!("{record}\n"))?;
    for (kind, name) in [("prefixes", "prefixes"), ("lines", "records")] {
        let mut command = Command::new(program("hdl")?);
        command.arg("import").arg(directory.join("store")).args(["--from", kind]).arg(directory.join(name));
        if kind == "prefixes" {
            command.arg("--create");
        }
        ensure!(command.stdout(Stdio::null()).status()?.success(), "hdl import failed");
    }
    Ok(())
}

fn admin_configuration(listen: SocketAddr) -> String {
    format!(
        "site = \"site.json\"\nlisten = [\"{listen}\"]\nstore.file = \"store\"\npublish.directory = \"set\"\n\
         local.socket = \"admin.socket\"\n"
    )
}

fn gateway_configuration(admin: SocketAddr, listen: SocketAddr) -> String {
    format!(
        "snapshot = \"set\"\nsite = \"site.json\"\nlisten = [\"{listen}\"]\nworkers = 1\n\
         admin.address = \"{admin}\"\nadmin.socket = \"admin.socket\"\n\
         tls.certificate = \"certificate.pem\"\ntls.key = \"key.pem\"\n"
    )
}

/// Starts a program on one core.
fn spawn(directory: &Path, name: &str, configuration: &str, core: usize) -> anyhow::Result<KilledProcess> {
    let path = directory.join(format!("{name}.toml"));
    fs::write(&path, configuration)?;
    let mut command = Command::new(program(name)?);
    command.arg("--config").arg(path).args(["--allow-root", "--log", "error"]).stdin(Stdio::null());
    let spawned = std::thread::scope(|scope| {
        // A process inherits the core of the thread that starts it.
        let started = scope.spawn(|| {
            serve::pin(Some(core));
            command.spawn()
        });
        started.join().map_err(|_| anyhow::anyhow!("the thread that starts {name} panicked"))
    })?;
    Ok(KilledProcess(spawned?))
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn until(what: &str, is_true: impl Fn() -> bool) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !is_true() {
        ensure!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
