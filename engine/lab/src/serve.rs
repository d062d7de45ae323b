//! `handle-lab serve`: a service for tests of programs that use handles.
//!
//! A registry that knows one prefix, and the service of that prefix as `hdl init` makes it: a
//! server, its administration, and a gateway with TLS. The administrator has a key and a secret.

mod client_lines;
mod registry;

use crate::end::{LabEnd, SECONDS_MAX};
use crate::server_process::ServerProcess;
use crate::up::topology;
use anyhow::{Context as _, ensure};
use client_lines::TestService;
use handle_cli::init::new_service::{self, NewService};
use handle_cli::{ExitOutcome, output};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The prefix.
    #[arg(long)]
    prefix: String,
    /// Keep all files in this directory, and go on with the service that is in it, if there is one.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The address at which clients reach the service.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: IpAddr,
    /// The address to listen on. Default: that of clients. In a container: 0.0.0.0.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Port for queries, over UDP and TCP. Default: a free port.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port for administration, over TCP. Default: a free port.
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// Port of the gateway, for HTTP and HTTPS. Default: a free port.
    #[arg(long, value_name = "PORT")]
    gateway_port: Option<u16>,
    /// Port of the registry, over UDP and TCP. Default: a free port.
    #[arg(long, value_name = "PORT")]
    registry_port: Option<u16>,
    /// File with the secret of the administrator, readable only by its owner (mode 0600). Default:
    /// a random one.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Append environment variables for clients to this file, as KEY=VALUE, one per line; they have
    /// the secret.
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Print what clients need as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Stop this many seconds after the start.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
}

/// The directory of `hdl init` in that of the test service.
const SERVICE: &str = "service";
/// What the service is, for the next start in the same directory.
const STATE: &str = "test-service.json";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    // Before any file is written or process started, so that all of it is cleaned up.
    let end = LabEnd::listen()?;
    let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
    let directory = args.directory.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let directory =
        directory.canonicalize().with_context(|| format!("cannot find {}", directory.display()))?;
    let service = match directory.join(STATE).exists() {
        true => TestService::read(&directory, &args.prefix)?,
        false => make(args, &directory)?,
    };
    let mut processes = Vec::new();
    for (command, file) in [
        ("lab-server", service.registry_config()),
        ("admin-server", service.config("handle-admin")),
        ("lab-server", service.config("handled")),
        ("gateway-server", service.config("handle-gateway")),
    ] {
        if end.has_come() {
            return Ok(ExitOutcome::Failed);
        }
        let arguments: [&OsStr; 3] = [command.as_ref(), "--config".as_ref(), file.as_os_str()];
        processes.push(ServerProcess::start(arguments, file.with_extension("sock"))?);
    }
    if let Some(file) = &args.env_file {
        append_environment(file, &service)?;
    }
    let is_input_closed = end.input_has_ended();
    match args.json {
        true => println!("{}", service.json()),
        false => show(&service, args, is_input_closed),
    }
    // A service that could not say where it is is of no use.
    output::check()?;
    end.wait(is_input_closed, args.seconds.map(Duration::from_secs));
    // In the reverse order: the gateway goes first, and the administration after it.
    while let Some(process) = processes.pop() {
        process.stop()?;
    }
    temporary.close().context("cannot remove the temporary directory")?;
    Ok(ExitOutcome::Good)
}

/// Makes the service and its registry in an empty directory.
fn make(args: &Args, directory: &Path) -> anyhow::Result<TestService> {
    ensure!(
        std::fs::read_dir(directory)?.next().is_none(),
        "{} is not empty, and has no test service: choose an empty or new directory",
        directory.display()
    );
    ensure!(!args.prefix.is_empty() && !args.prefix.contains(['/', ' ']), "invalid prefix {:?}", args.prefix);
    let secret: Zeroizing<Vec<u8>> = match &args.secret_file {
        Some(file) => handle_auth::open_text_secret(file)?,
        None => Zeroizing::new(format!("{:032x}", rand::random::<u128>()).into_bytes()),
    };
    let free = topology::addresses(&[], 4)?;
    let given = [args.port, args.admin_port, args.gateway_port, args.registry_port];
    let ports: Vec<u16> = given.iter().zip(&free).map(|(port, free)| port.unwrap_or(free.port())).collect();
    let service = TestService {
        directory: directory.to_owned(),
        prefix: args.prefix.clone(),
        address: args.address,
        port: ports[0],
        admin_port: ports[1],
        gateway_port: ports[2],
    };
    let bind = args.bind.unwrap_or(args.address);
    new_service::create(&NewService {
        directory: &directory.join(SERVICE),
        prefix: &args.prefix,
        address: args.address,
        bind: Some(bind),
        port: service.port,
        admin_port: service.admin_port,
        gateway_port: service.gateway_port,
        metrics_port: None,
        writes_audit_log: false,
        accounts: Default::default(),
        description: "test service",
        case_sensitive: false,
        bits: handle_auth::generate::RSA_BITS[0],
        passphrase: None,
        secret: Some(&secret),
        contact: Default::default(),
    })?;
    handle_auth::file::create_secret_file(&service.secret_file(), &secret)?;
    registry::make(&service, bind, ports[3])?;
    // Last: without it, an interrupted start is not gone on with.
    std::fs::write(directory.join(STATE), format!("{:#}\n", service.state()))?;
    Ok(service)
}

/// Appends, as a file of a workflow may have lines of other steps.
fn append_environment(file: &Path, service: &TestService) -> anyhow::Result<()> {
    let lines: String =
        service.environment()?.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let opened = File::options().create(true).append(true).mode(0o600).open(file);
    let written = opened.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn show(service: &TestService, args: &Args, is_input_closed: bool) {
    service.show();
    println!();
    let how = if is_input_closed { "SIGTERM or ^C" } else { "^C or ^D" };
    let rest = match args.directory {
        Some(_) => "keeps its files",
        None => "removes its files",
    };
    match args.seconds {
        Some(seconds) => println!("the service stops after {seconds} s and {rest}; {how} stops it earlier"),
        None => println!("{how} stops the service, which then {rest}"),
    }
}
