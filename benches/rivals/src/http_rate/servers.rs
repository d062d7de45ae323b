//! The servers: `handle-gateway`, a bare hyper and nginx, each in a process of its own.

use super::{Args, set_of};
use anyhow::{Context as _, bail};
use clap::{Subcommand, ValueEnum};
use handle_benches::serve::{self, Child};
use handle_benches::usage::Usage;
use handle_gateway::tls::TlsIdentity;
use handle_gateway::tls::config::TlsConfig;
use handle_gateway::{Config, Gateway};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// The redirect of the servers that always answer the same.
const LOCATION: &str = "https://www.example.org/items/00000000";
/// Connections that the gateway accepts: those of the load and of the crowd.
const CONNECTIONS_MAX: usize = 20_000;
/// Time for the head of a request, longer than a measurement with slow clients.
const HEADER_MS: u32 = 600_000;
/// Time in which nginx has to start.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
pub(super) enum Role {
    #[command(hide = true)]
    ServeGateway { directory: PathBuf, core: usize },
    #[command(hide = true)]
    ServeBare { form: HttpForm, directory: PathBuf, core: usize },
}

/// The version of HTTP, and whether with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HttpForm {
    Http1,
    Http2,
    Tls,
    TlsHttp2,
}

impl HttpForm {
    pub(super) const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::Tls, Self::TlsHttp2];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Tls => "TLS, HTTP/1.1",
            Self::TlsHttp2 => "TLS, HTTP/2",
        }
    }

    pub(super) const fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsHttp2)
    }

    pub(super) const fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::TlsHttp2)
    }

    /// The spelling of the argument.
    const fn argument(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Tls => "tls",
            Self::TlsHttp2 => "tls-http2",
        }
    }
}

/// A running server.
pub(super) struct HttpServer {
    process: ServerProcess,
}

enum ServerProcess {
    Ours(Child),
    Nginx(Nginx),
}

impl HttpServer {
    pub(super) const fn address(&self) -> SocketAddr {
        match &self.process {
            ServerProcess::Ours(child) => child.address,
            ServerProcess::Nginx(nginx) => nginx.address,
        }
    }

    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(match &self.process {
            ServerProcess::Ours(child) => child.pid(),
            ServerProcess::Nginx(nginx) => nginx.pid,
        })
    }

    /// Starts this program in `role` below the command `wrapper`, which may be empty.
    pub(super) fn start(wrapper: &[String], role: &[String]) -> anyhow::Result<Self> {
        Ok(Self { process: ServerProcess::Ours(Child::start_below(wrapper, role)?) })
    }
}

/// The arguments with which a gateway starts.
pub(super) fn gateway_role(args: &Args, directory: &Path) -> Vec<String> {
    role("serve-gateway", &[], directory, args.common.server_core)
}

/// The arguments with which a bare server starts.
pub(super) fn bare_role(args: &Args, directory: &Path, form: HttpForm) -> Vec<String> {
    role("serve-bare", &[form.argument()], directory, args.common.server_core)
}

fn role(name: &str, form: &[&str], directory: &Path, core: usize) -> Vec<String> {
    let (directory, core) = (directory.display().to_string(), core.to_string());
    [&[name], form, &[&directory, &core]].concat().into_iter().map(str::to_owned).collect()
}

/// All servers. Those that are not loaded wait.
pub(super) struct HttpServers {
    pub(super) gateway: HttpServer,
    bare: [HttpServer; 4],
    /// `None` if it is not installed.
    pub(super) nginx: Option<HttpServer>,
}

impl HttpServers {
    pub(super) fn start(args: &Args, directory: &Path) -> anyhow::Result<Self> {
        let bare = |form| HttpServer::start(&[], &bare_role(args, directory, form));
        let [http1, http2, tls, tls_http2] = HttpForm::ALL.map(bare);
        let nginx = Nginx::start(directory, args.common.server_core).context("cannot start nginx")?;
        Ok(Self {
            gateway: HttpServer::start(&[], &gateway_role(args, directory))?,
            bare: [http1?, http2?, tls?, tls_http2?],
            nginx: nginx.map(|nginx| HttpServer { process: ServerProcess::Nginx(nginx) }),
        })
    }

    /// The bare server of a form.
    pub(super) fn bare(&self, form: HttpForm) -> &HttpServer {
        &self.bare[HttpForm::ALL.iter().position(|&one| one == form).unwrap_or(0)]
    }
}

/// Writes the certificate of the tests to `directory`.
pub(super) fn write_tls(directory: &Path) -> anyhow::Result<()> {
    let config = tls_of(directory);
    let certificate = include_bytes!("../../../../tests/tls/certificate.pem");
    std::fs::write(config.certificate.unwrap_or_default(), certificate)?;
    let path = config.key.unwrap_or_default();
    let mut key = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(key.write_all(include_bytes!("../../../../tests/tls/key.pem"))?)
}

fn tls_of(directory: &Path) -> TlsConfig {
    let file = |name: &str| Some(directory.join(name));
    TlsConfig { certificate: file("certificate.pem"), key: file("key.pem"), ..TlsConfig::default() }
}

/// In the child: serves until standard input ends.
pub(super) fn serve(role: Role) -> anyhow::Result<()> {
    match role {
        Role::ServeGateway { directory, core } => {
            // Threads inherit the core of the thread that starts them.
            serve::pin(Some(core));
            let listen = vec![([127, 0, 0, 1], 0).into()];
            let mut config =
                Config { snapshot: Some(set_of(&directory)), listen, workers: 1, ..Config::default() };
            config.tls = tls_of(&directory);
            config.limits.connections = CONNECTIONS_MAX;
            config.limits.connections_per_source = CONNECTIONS_MAX;
            config.limits.header_ms = HEADER_MS;
            let gateway = Gateway::start(&config)?;
            serve::announce(*gateway.addresses().first().context("an address")?)?;
            serve::wait_for_end();
            gateway.stop()
        }
        Role::ServeBare { form, directory, core } => serve_bare(form, &directory, core),
    }
}

fn serve_bare(form: HttpForm, directory: &Path, core: usize) -> anyhow::Result<()> {
    serve::pin(Some(core));
    let listener = StdListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let tls = match form.is_tls() {
        true => TlsIdentity::open(&tls_of(directory), form.is_http2())?,
        false => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || runtime.block_on(accept(form, listener, tls.map(Arc::new))));
    serve::announce(address)?;
    serve::wait_for_end();
    Ok(())
}

async fn accept(
    form: HttpForm,
    listener: StdListener,
    tls: Option<Arc<TlsIdentity>>,
) -> std::io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        match &tls {
            None => drop(tokio::spawn(redirect_all(form, stream))),
            Some(tls) => {
                let tls = Arc::clone(tls);
                tokio::spawn(async move {
                    if let Ok(Some(stream)) = tls.accept(stream).await {
                        redirect_all(form, stream).await;
                    }
                });
            }
        }
    }
}

/// Answers every request on `stream` with the same redirect. The generator counts connections that
/// fail.
async fn redirect_all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(form: HttpForm, stream: S) {
    let service = service_fn(async |_: Request<Incoming>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(LOCATION));
        Ok::<_, Infallible>(response)
    });
    let stream = TokioIo::new(stream);
    let _ = match form.is_http2() {
        false => http1::Builder::new().serve_connection(stream, service).await,
        true => http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
    };
}

/// An nginx with one worker that answers with a constant redirect.
struct Nginx {
    /// The shell that ends nginx when its input ends, also when this process is killed.
    shell: std::process::Child,
    pid: u32,
    address: SocketAddr,
}

/// Runs the program in its arguments until standard input ends.
const RUN_UNTIL_END: &str = r#""$@" <&- & read -r _; kill $!; wait $!"#;

impl Nginx {
    /// Starts it; `None` if it is not installed.
    fn start(directory: &Path, core: usize) -> anyhow::Result<Option<Self>> {
        let Some(program) = find("nginx") else { return Ok(None) };
        // The kernel gives a port that nobody else uses now.
        let address = StdListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let path = directory.join("nginx.conf");
        std::fs::write(&path, configuration(directory, address))?;
        let mut command = Command::new("sh");
        command.args(["-c", RUN_UNTIL_END, "sh"]).arg(program);
        command.arg("-p").arg(directory).arg("-c").arg(&path).stdin(Stdio::piped());
        let shell = std::thread::scope(|scope| {
            // A process inherits the core of the thread that starts it.
            let started = scope.spawn(|| {
                serve::pin(Some(core));
                command.spawn()
            });
            started.join().map_err(|_| anyhow::anyhow!("the thread that starts it panicked"))
        })??;
        let mut nginx = Self { shell, pid: 0, address };
        nginx.pid = wait_until_ready(address, &directory.join("nginx.pid"))?;
        Ok(Some(nginx))
    }
}

/// Waits until nginx listens and has written its process id.
fn wait_until_ready(address: SocketAddr, pid_file: &Path) -> anyhow::Result<u32> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        let pid = std::fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.filter(|_| StdStream::connect(address).is_ok()) {
            return Ok(pid);
        }
        if Instant::now() >= end {
            bail!("it does not listen after {} s", START_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // It has no state to save, so failures do not matter.
        let _ = self.shell.wait();
    }
}

fn configuration(directory: &Path, address: SocketAddr) -> String {
    let shown = directory.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {shown}/nginx-{kind};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {shown}/nginx.pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n{temporary}    access_log off;\n    \
         keepalive_requests 1000000000;\n    server {{\n        listen {address};\n        \
         location / {{ return 302 {LOCATION}; }}\n    }}\n}}\n"
    )
}

/// The file of a program.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Not in every PATH.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|file| file.is_file())
}
