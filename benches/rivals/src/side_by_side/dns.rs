//! Servers of DNS as processes, and name servers with a zone of as many names as the set has
//! records, and answers of the same length.

use anyhow::{Context as _, bail, ensure};
use handle_benches::dns::is_success;
use handle_benches::records::BenchRandom;
use handle_benches::requests::Requests;
use handle_benches::serve;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to read its zone.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// Digits of a name; all names have the same length.
const DIGITS: usize = 9;
const ZONE: &str = "bench";

/// How to start a server of DNS.
#[derive(Debug)]
pub(crate) struct Program {
    /// Name in the table.
    pub(crate) name: &'static str,
    /// The executable.
    pub(crate) command: &'static str,
    /// The Debian package.
    pub(crate) package: &'static str,
    /// Its arguments; the path of its configuration follows.
    pub(crate) args: &'static [&'static str],
    pub(crate) config: fn(&ServerSlot<'_>) -> String,
}

/// What the configuration of a server needs.
#[derive(Debug)]
pub(crate) struct ServerSlot<'a> {
    /// A directory of its own.
    pub(crate) directory: &'a Path,
    /// Where it answers.
    pub(crate) address: SocketAddr,
    /// The server that a resolver asks; its own address for others.
    pub(crate) upstream: SocketAddr,
}

/// Name servers that are measured if they are installed.
pub(crate) const PROGRAMS: [&Program; 2] = [
    &Program { name: "NSD", command: "nsd", package: "nsd", args: &["-d", "-c"], config: nsd_config },
    &Program { name: "Knot", command: "knotd", package: "knot", args: &["-c"], config: knot_config },
];

fn nsd_config(slot: &ServerSlot<'_>) -> String {
    let (directory, port) = (slot.directory.display(), slot.address.port());
    format!(
        "server:\n  server-count: 1\n  ip-address: 127.0.0.1@{port}\n  do-ip6: no\n  username: \"\"\n  \
         chroot: \"\"\n  zonesdir: \"{directory}\"\n  zonelistfile: \"{directory}/zone.list\"\n  \
         xfrdfile: \"{directory}/xfrd.state\"\n  xfrdir: \"{directory}\"\n  pidfile: \"{directory}/pid\"\n  \
         database: \"\"\n  logfile: \"{directory}/log\"\n  minimal-responses: yes\n  rrl-ratelimit: 0\n\
         remote-control:\n  control-enable: no\n\
         zone:\n  name: \"{ZONE}\"\n  zonefile: \"{directory}/zone\"\n"
    )
}

fn knot_config(slot: &ServerSlot<'_>) -> String {
    let (directory, port) = (slot.directory.display(), slot.address.port());
    format!(
        "server:\n  rundir: \"{directory}\"\n  pidfile: \"{directory}/pid\"\n  listen: 127.0.0.1@{port}\n  \
         udp-workers: 1\n  tcp-workers: 1\n  background-workers: 1\n\
         log:\n  - target: \"{directory}/log\"\n    any: error\n\
         database:\n  storage: \"{directory}\"\n\
         template:\n  - id: default\n    storage: \"{directory}\"\n    journal-content: none\n    \
         zonefile-load: whole\n    semantic-checks: off\n\
         zone:\n  - domain: {ZONE}\n    file: \"zone\"\n"
    )
}

/// A running name server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct NameServer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    process: Child,
    directory: TempDir,
}

/// Starts a name server with a zone of `names` names.
pub(crate) fn start_authoritative(
    program: &'static Program,
    names: u64,
    answer_len: usize,
    core: usize,
) -> anyhow::Result<NameServer> {
    eprintln!("{}: loading {names} names", program.name);
    let directory = tempfile::tempdir()?;
    write_zone(&directory.path().join("zone"), names, answer_len)?;
    NameServer::start(program, directory, core, None, &query(names - 1, 1))
}

impl NameServer {
    /// Starts `program` in `directory` on `core`, and waits until it answers `probe`. A resolver
    /// asks `upstream`.
    pub(crate) fn start(
        program: &'static Program,
        directory: TempDir,
        core: usize,
        upstream: Option<SocketAddr>,
        probe: &[u8],
    ) -> anyhow::Result<Self> {
        let Some(executable) = find(program.command) else {
            bail!("`{}` is not installed (Debian package {})", program.command, program.package);
        };
        let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
        let config = directory.path().join("config");
        let slot = ServerSlot { directory: directory.path(), address, upstream: upstream.unwrap_or(address) };
        std::fs::write(&config, (program.config)(&slot))?;
        // A child inherits the core of the thread that starts it.
        let mut command = Command::new(executable);
        command.args(program.args).arg(&config).current_dir(directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                serve::pin(Some(core));
                command.spawn()
            });
            started
                .join()
                .map_err(|_| anyhow::anyhow!("the thread that starts it panicked"))?
                .map_err(Into::into)
        });
        let process: anyhow::Result<Child> = process;
        let mut server = Self { name: program.name, address, process: process?, directory };
        server.wait_until_ready(probe)?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn wait_until_ready(&mut self, probe: &[u8]) -> anyhow::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let (end, mut answer) = (Instant::now() + START_TIMEOUT, [0; 1500]);
        let mut last = None;
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait()? {
                let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                bail!("it ended with {status}: {}", log.lines().last().unwrap_or("no message in its log"));
            }
            // The send fails until the server listens.
            if socket.send_to(probe, self.address).is_ok()
                && let Ok(len) = socket.recv(&mut answer)
            {
                if is_success(&answer[..len]) {
                    eprintln!("{}: answers of {len} bytes", self.name);
                    return Ok(());
                }
                last = Some(answer[3] & 15);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("no answer in {} s; the last had code {last:?}", START_TIMEOUT.as_secs())
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        // Both servers end their children on SIGTERM.
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Not in every PATH.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(command)).find(|file| file.is_file())
}

fn write_zone(path: &Path, names: u64, answer_len: usize) -> anyhow::Result<()> {
    let mut zone = BufWriter::new(File::create(path)?);
    write!(zone, "$ORIGIN {ZONE}.\n$TTL 86400\n@ SOA ns hostmaster 1 7200 3600 1209600 3600\n@ NS ns\n")?;
    writeln!(zone, "ns A 127.0.0.1")?;
    // Header, question, and the record without its data, with a compressed name.
    let data_len = answer_len
        .checked_sub(12 + (DIGITS + ZONE.len() + 3 + 4) + 12)
        .context("answers are too short for a record")?;
    ensure!(answer_len <= 512, "answers of {answer_len} bytes do not fit without EDNS");
    // A length byte precedes each string.
    let first_len = data_len.min(256) - 1;
    let mut data = format!("\"{}\"", "x".repeat(first_len));
    if data_len > 257 {
        write!(data, " \"{}\"", "x".repeat(data_len - 257))?;
    }
    for n in 0..names {
        writeln!(zone, "{} TXT {data}", name(n))?;
    }
    Ok(zone.flush()?)
}

fn name(n: u64) -> String {
    format!("{n:0DIGITS$}")
}

/// Encodes a query for the TXT records of name `n`.
fn query(n: u64, id: u16) -> Vec<u8> {
    handle_benches::dns::query(&[&name(n), ZONE], id)
}

/// The same for a resolver, which may ask others.
pub(crate) fn recursive_query(n: u64, id: u16) -> Vec<u8> {
    handle_benches::dns::recursive_query(&[&name(n), ZONE], id)
}

/// Makes `count` queries for random names.
pub(crate) fn queries(names: u64, count: usize) -> Requests {
    let mut random = BenchRandom(2);
    let ids = (0..=u16::MAX).cycle().take(count);
    Requests::from_datagrams(ids.map(|id| query(random.below(names), id)))
}
