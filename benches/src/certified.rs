//! Rate of certified answers, compared with the signing rate of the key alone.

use crate::flood::FloodTotals;
use crate::requests::Requests;
use crate::serve;
use crate::usage::thread_time;
use anyhow::{Context as _, ensure};
use handle_auth::PrivateKey;
use handle_proto::ResponseCode;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::{Envelope, Header};
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::slow::config::ServerKeyConfig;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Outstanding requests: enough to keep the slow path busy, fewer than its queue holds.
pub const WINDOW: usize = 64;
/// Bytes that a signature covers in the benches, as in a usual answer.
const COVERED_LEN: usize = 300;
/// Time after which an unanswered request is lost and sent again.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// Returns the RSA key of the servers in the vectors, with 2048 bits.
///
/// # Errors
/// When the vectors cannot be read.
pub fn key_record() -> anyhow::Result<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/servers.json");
    let servers: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let hex = servers["keys"]["server"]["handle_private_hex"].as_str().context("the key of the servers")?;
    (0..hex.len() / 2).map(|at| Ok(u8::from_str_radix(&hex[2 * at..2 * at + 2], 16)?)).collect()
}

/// Writes the key to a file in `directory` that only its owner can read.
///
/// # Errors
/// Errors of the file system.
pub fn key_file(directory: &Path) -> anyhow::Result<PathBuf> {
    let path = directory.join("privkey.bin");
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    file?.write_all(&[&1_u32.to_be_bytes()[..], &key_record()?].concat())?;
    Ok(path)
}

/// Starts a signing server with its worker and slow thread on one core.
///
/// # Errors
/// When it does not start.
pub fn start(set: PathBuf, key: PathBuf, datapath: Datapath, core: usize) -> anyhow::Result<Server> {
    let mut config = Config {
        snapshot: set,
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        workers: 1,
        cores: vec![core],
        datapath,
        server_key: Some(ServerKeyConfig { file: key, ..ServerKeyConfig::default() }),
        ..Config::default()
    };
    config.slow.cores = vec![core];
    Server::start(&config)
}

/// In a child: runs the server of [`start`] until the parent closes standard input.
///
/// # Errors
/// When it does not start.
pub fn serve(set: PathBuf, key: PathBuf, datapath: Datapath, core: usize) -> anyhow::Result<()> {
    let server = start(set, key, datapath, core)?;
    serve::announce(*server.addresses().first().context("an address")?)?;
    serve::wait_for_end();
    server.stop()
}

/// Result of one turn.
#[derive(Clone, Copy, Debug)]
pub struct CertifiedRate {
    /// Signatures or answers.
    pub count: u64,
    /// Elapsed time.
    pub elapsed: Duration,
    /// Processor time used.
    pub used: Duration,
}

impl CertifiedRate {
    /// Returns the rate per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }

    /// Converts the result to the totals of a load.
    #[must_use]
    pub fn totals(&self) -> FloodTotals {
        FloodTotals { answers: self.count, seconds: self.elapsed.as_secs_f64(), ..FloodTotals::default() }
    }

    /// Returns the processor time of one signature or answer.
    #[must_use]
    pub fn used_each(&self) -> Duration {
        self.used.div_f64(self.count.max(1) as f64)
    }
}

/// Measures how fast the key signs on `core` when nothing else runs there.
///
/// # Errors
/// When the key does not sign.
pub fn sign(core: usize, duration: Duration) -> anyhow::Result<CertifiedRate> {
    let record = key_record()?;
    let thread = std::thread::spawn(move || -> anyhow::Result<CertifiedRate> {
        serve::pin(Some(core));
        let key = PrivateKey::from_record(&record)?;
        let covered = [7; COVERED_LEN];
        let (start, used, mut count) = (Instant::now(), thread_time(), 0);
        while start.elapsed() < duration {
            key.sign(DigestAlgorithm::SHA256, &[&covered])?;
            count += 1;
        }
        Ok(CertifiedRate { count, elapsed: start.elapsed(), used: thread_time() - used })
    });
    thread.join().map_err(|_| anyhow::anyhow!("the signing thread panicked"))?
}

/// Lengths of the credential of a signed answer.
pub const SIGNED: RangeInclusive<u32> = 257..=u32::MAX;
/// Lengths of the credential of an answer with the MAC of a session.
pub const WITH_MAC: RangeInclusive<u32> = 60..=96;
/// Length of the credential of an answer without signature and MAC.
pub const BARE: RangeInclusive<u32> = 0..=0;

/// Loads the server at `to` for `duration` with [`WINDOW`] outstanding requests, and checks the
/// length of each credential. `used` returns the processor time of the server.
///
/// # Errors
/// When an answer has another credential or an error, or the network fails.
pub fn ask(
    to: SocketAddr,
    requests: &Requests,
    credential: &RangeInclusive<u32>,
    duration: Duration,
    used: impl Fn() -> anyhow::Result<Duration>,
) -> anyhow::Result<CertifiedRate> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let (mut next, mut buffer, mut count) = (0, [0; 600], 0);
    let mut send = || {
        next += 1;
        socket.send(requests.get((next - 1) % requests.len()))
    };
    for _ in 0..WINDOW {
        send()?;
    }
    let (start, used_before) = (Instant::now(), used()?);
    while start.elapsed() < duration {
        match socket.recv(&mut buffer) {
            Ok(len) => {
                let (envelope, rest) = Envelope::split(&buffer[..len])?;
                if envelope.sequence > 0 {
                    continue;
                }
                let (header, _) = Header::split(rest)?;
                let credential_len = envelope.message_len.saturating_sub(header.body_len + 28);
                let code = header.response_code;
                ensure!(code == ResponseCode::SUCCESS, "answered {code}");
                ensure!(credential.contains(&credential_len), "a credential of {credential_len} bytes");
                count += 1;
                send()?;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                for _ in 0..WINDOW {
                    send()?;
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(CertifiedRate { count, elapsed: start.elapsed(), used: used()? - used_before })
}
