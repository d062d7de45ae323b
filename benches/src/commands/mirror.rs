//! A mirror: the time until a new one serves all records, beside copying its files; if asked to,
//! the same for a set that is fetched first; and the time from the acknowledgement of a change at
//! the primary until `handled` of the mirror answers with it.
//!
//! `hdl init` makes both services, and `handle-admin` runs as in production, one process for each.
//! The primary accepts changes without authentication, which has no part in the figures.

use super::visible::keeper::{CHANGED, changed_record, import, now_ns};
use super::visible::probe::Probe;
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use handle_benches::records::RecordGenerator;
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::usage;
use handle_client::administration::Administrator;
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleValues;
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_snapshot::set::manifest::{MANIFEST, Manifest, SetOrigin};
use handle_snapshot::set::read_manifest;
use handle_store::{Store, StoreConfig};
use handle_worker::config::ServerLimits;
use serde_json::{Value as Json, json};
use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Connections that make changes.
const CLIENTS: u64 = 4;
/// Seconds of changes of which the 99th percentile is reported, besides that of all.
const PART_S: u64 = 5;
/// Longest wait for an answer, or for a set.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Measures a new mirror, and how soon changes are visible at it. Build `hdl` and `handle-admin`
/// first, with the same profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records of the primary.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of changes.
    #[arg(long, default_value_t = 10_000)]
    changes: u64,
    /// Changes per second.
    #[arg(long, default_value_t = 300)]
    rate: u64,
    /// Milliseconds between two requests of the mirror (`mirror.interval_ms`).
    #[arg(long, default_value_t = 1000)]
    interval_ms: u32,
    /// Let the mirror request changes at intervals only, without notices of the primary.
    #[arg(long)]
    polled: bool,
    /// Fetch the set of the primary into the directory of the mirror before it starts.
    #[arg(long)]
    fetch_first: bool,
    /// Directory of both services, which must not exist; by default a temporary directory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Serve { directory: PathBuf },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.role {
        None => measure(&args),
        Some(Role::Serve { directory }) => {
            serve::published(directory, ServePath::Uring, vec![0], ServerLimits::default())
        }
    }
}

/// A process that is killed when it is dropped.
struct KilledProcess(std::process::Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        // It has no state to save.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.records > 0 && args.changes > 0 && args.rate > 0, "these numbers must not be zero");
    let temp_dir = tempfile::tempdir()?;
    let dir = args.dir.clone().unwrap_or_else(|| temp_dir.path().join("mirrored"));
    fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let primary = init(&dir, "primary")?;
    init(&dir, "mirror")?;
    configure(&dir, args)?;
    let home = dir.join("primary");
    let store = Store::open(&StoreConfig::at(&home.join("store.redb")))?;
    import(&store, &home, &RecordGenerator::new()?, args.records)?;
    drop(store);
    let mut primary_process = administer(&dir.join("primary"))?;
    until_published(&dir.join("primary"), args.records, None, &mut primary_process)?;
    let fetched = args.fetch_first.then(|| fetch(&dir)).transpose()?;
    let started = Instant::now();
    let mut mirror_process = administer(&dir.join("mirror"))?;
    let fetched_from = fetched.as_ref().and_then(|set| set.source);
    until_published(&dir.join("mirror"), args.records, fetched_from, &mut mirror_process)?;
    let mirror_s = started.elapsed().as_secs_f64();
    let visible_ns = follow(args, &dir, primary)?;
    // Copies take memory from the page cache, which the changes need.
    let copied = copy(&dir, "mirror", &[dir.join("mirror/store.redb")])?;
    copied.remove()?;
    report(args, &visible_ns, &MirrorFigures { fetched, mirror_s, copied });
    Ok(())
}

/// How long a mirror took to get all records.
struct MirrorFigures {
    fetched: Option<FetchedSet>,
    /// Seconds until it had published a set of its own.
    mirror_s: f64,
    /// A copy of its store and of that set.
    copied: CopiedFiles,
}

/// A set that `handle-fetch` has put into the directory of the mirror.
struct FetchedSet {
    source: Option<SetOrigin>,
    /// Seconds until it was there.
    seconds: f64,
    /// A copy of it.
    copied: CopiedFiles,
}

/// Files that `cp` has copied.
struct CopiedFiles {
    seconds: f64,
    bytes: u64,
    /// Directory of the copies.
    copies: PathBuf,
}

impl CopiedFiles {
    fn remove(&self) -> anyhow::Result<()> {
        Ok(fs::remove_dir_all(&self.copies)?)
    }
}

fn report(args: &Args, visible_ns: &[u64], figures: &MirrorFigures) {
    let &MirrorFigures { ref fetched, mirror_s, copied: CopiedFiles { seconds: copy_s, bytes, .. } } =
        figures;
    let at = |part: &[u64], per_mille: usize| {
        let mut sorted = part.to_vec();
        sorted.sort_unstable();
        let index = (sorted.len() - 1) * per_mille / 1000;
        sorted.get(index).map_or(0.0, |&ns| ns as f64 / 1e6)
    };
    let [median, p99, most] = [500, 990, 1000].map(|per_mille| at(visible_ns, per_mille));
    // They show whether some of the seconds were slow, or all.
    let parts = visible_ns.chunks(usize::try_from(args.rate * PART_S).unwrap_or(usize::MAX));
    let parts: Vec<f64> = parts.map(|part| at(part, 990)).collect();
    if args.json {
        let figures = json!({
            "records": args.records, "mirror_seconds": mirror_s, "copy_seconds": copy_s, "bytes": bytes,
            "fetched": fetched.as_ref().map(|set| json!({
                "seconds": set.seconds, "copy_seconds": set.copied.seconds, "bytes": set.copied.bytes,
            })),
            "changes": visible_ns.len(), "rate": args.rate, "interval_ms": args.interval_ms, "polled": args.polled,
            "visible_ms": { "median": median, "p99": p99, "max": most, "p99_of_each_5_s": parts },
            "machine": usage::machine(),
        });
        println!("{figures}");
        return;
    }
    println!("{}", usage::machine());
    if let Some(FetchedSet { seconds, copied, .. }) = fetched {
        println!(
            "a fetched set can be served after {seconds:.1} s; copying its {} MiB: {:.1} s; {:.1} times as long",
            copied.bytes >> 20,
            copied.seconds,
            seconds / copied.seconds
        );
    }
    println!(
        "a mirror of {} records: {mirror_s:.1} s; copying its {} MiB: {copy_s:.1} s; {:.1} times as long",
        args.records,
        bytes >> 20,
        mirror_s / copy_s
    );
    println!(
        "{} changes at {}/s, requests every {} ms{}: visible at the mirror after {median:.0} ms (median), \
         {p99:.0} ms (99th percentile), {most:.0} ms (maximum); 99th percentiles of each {PART_S} s: {}",
        visible_ns.len(),
        args.rate,
        args.interval_ms,
        if args.polled { "" } else { " and after notices" },
        parts.iter().map(|p99| format!("{p99:.0}")).collect::<Vec<_>>().join(", ")
    );
}

/// A program beside this one.
fn program(name: &str) -> anyhow::Result<Command> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "there is no {}: build it with the same profile", path.display());
    Ok(Command::new(path))
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Makes a service; returns the address for changes.
fn init(dir: &Path, name: &str) -> anyhow::Result<SocketAddr> {
    let (port, admin_port) = (free_port()?, free_port()?);
    let mut command = program("hdl")?;
    command.args(["init", "--prefix", "10.1045", "--address", "127.0.0.1", "--bind", "127.0.0.1", "--plain"]);
    command.args(["--port", &port.to_string(), "--admin-port", &admin_port.to_string(), "--no-metrics"]);
    command.arg(dir.join(name));
    ensure!(command.stdout(Stdio::null()).status()?.success(), "hdl init failed");
    Ok((Ipv4Addr::LOCALHOST, admin_port).into())
}

fn configure(dir: &Path, args: &Args) -> anyhow::Result<()> {
    let (notifies, notified) = if args.polled { Default::default() } else { notices(dir)? };
    let config = dir.join("primary/handle-admin.toml");
    let text = fs::read_to_string(&config)?;
    fs::write(&config, format!("anonymous_full_access = true\n{text}{notifies}"))?;
    let site = dir.join("mirror/siteinfo.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&site)?)?;
    json["primarySite"] = false.into();
    fs::write(&site, json.to_string())?;
    let config = dir.join("mirror/handle-admin.toml");
    let text = fs::read_to_string(&config)?;
    let section = format!(
        "\n[mirror]\ninterval_ms = {}\n\n[[mirror.primary]]\nname = \"primary\"\n\
         site = \"../primary/siteinfo.json\"\nidentity = \"300:10.1045/ADMIN\"\n\
         key_file = \"../primary/admin-private.bin\"\n{notified}",
        args.interval_ms
    );
    Ok(fs::write(&config, text + &section)?)
}

/// The settings of notices, of the primary and of the mirror; writes their key.
fn notices(dir: &Path) -> anyhow::Result<(String, String)> {
    let (key, address) = (dir.join("notice-key"), format!("127.0.0.1:{}", free_port()?));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&key)?;
    file.write_all(&[b'k'; 32])?;
    let primary = format!("\n[publish.notify]\nlisten = \"{address}\"\nkey_file = {key:?}\n");
    Ok((primary, format!("notify_address = \"{address}\"\nnotify_key_file = {key:?}\n")))
}

fn administer(dir: &Path) -> anyhow::Result<KilledProcess> {
    let mut command = program("handle-admin")?;
    command.arg("--config").arg(dir.join("handle-admin.toml")).args(["--allow-root", "--log", "error"]);
    Ok(KilledProcess(command.stdin(Stdio::null()).spawn()?))
}

/// Fetches the set of the primary into the directory of the mirror. It is copied before and after
/// that, and the shorter time counts: memory that the host has taken back makes a copy slow.
fn fetch(dir: &Path) -> anyhow::Result<FetchedSet> {
    let before = copy(dir, "primary", &[])?;
    before.remove()?;
    let started = Instant::now();
    let mut command = program("handle-fetch")?;
    command.arg(format!("file://{}", dir.join("primary/snapshot").display()));
    command.arg(dir.join("mirror/snapshot")).args(["--once", "--allow-root", "--log", "error"]);
    ensure!(command.status()?.success(), "handle-fetch failed");
    let seconds = started.elapsed().as_secs_f64();
    let source = read_manifest(&dir.join("mirror/snapshot"))?.source;
    let after = copy(dir, "mirror", &[])?;
    after.remove()?;
    let copied = if before.seconds < after.seconds { before } else { after };
    Ok(FetchedSet { source, seconds, copied })
}

/// Waits until `process` has published a set with so many records whose source is not `fetched`.
fn until_published(
    dir: &Path,
    records: u64,
    fetched: Option<SetOrigin>,
    process: &mut KilledProcess,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let is_there =
        |set: Manifest| set.handles_count >= records && (fetched.is_none() || set.source != fetched);
    while !read_manifest(&dir.join("snapshot")).is_ok_and(is_there) {
        ensure!(started.elapsed() < TIMEOUT, "{} publishes nothing", dir.display());
        if let Some(status) = process.0.try_wait()? {
            anyhow::bail!("handle-admin of {} has ended: {status}", dir.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Copies the files of the set of a service, and `more`, with `cp`, and syncs the copies.
fn copy(dir: &Path, service: &str, more: &[PathBuf]) -> anyhow::Result<CopiedFiles> {
    let (set, copies) = (dir.join(service).join("snapshot"), dir.join("copies"));
    let layers = read_manifest(&set)?.layers;
    fs::create_dir(&copies)?;
    let started = Instant::now();
    let mut command = Command::new("cp");
    command
        .args(layers.iter().map(|layer| set.join(&layer.file)))
        .arg(set.join(MANIFEST))
        .args(more)
        .arg(&copies);
    ensure!(command.status()?.success(), "cp failed");
    let mut bytes = 0;
    for entry in fs::read_dir(&copies)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        bytes += file.metadata()?.len();
    }
    Ok(CopiedFiles { seconds: started.elapsed().as_secs_f64(), bytes, copies })
}

/// Makes changes at the primary, and asks the mirror for them; the nanoseconds until each was
/// visible.
fn follow(args: &Args, dir: &Path, primary: SocketAddr) -> anyhow::Result<Vec<u64>> {
    let set =
        dir.join("mirror/snapshot").to_str().context("the path of the directory is not UTF-8")?.to_owned();
    let server = Child::start(&["serve".to_owned(), set])?;
    let mut probe = Probe::open(server.address, 1)?;
    let (sender, receiver) = channel();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let sender = sender.clone();
                scope.spawn(move || change(args, primary, (client, started), &sender))
            })
            .collect();
        drop(sender);
        let seen = probe.follow(args.records, move || Ok(receiver.recv().ok()));
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        seen
    })
}

/// Makes the changes of one client, each when it is due.
fn change(
    args: &Args,
    primary: SocketAddr,
    (client, started): (u64, Instant),
    sender: &Sender<(u64, u64)>,
) -> anyhow::Result<()> {
    let (generator, mut connection) = (RecordGenerator::new()?, Administrator::new(primary, TIMEOUT));
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::OVERWRITE).with(OpFlags::KEEP_CONNECTION);
    let (mut handle, mut buffer) = (Vec::new(), Vec::new());
    for number in (client..args.changes).step_by(usize::try_from(CLIENTS)?) {
        let due = started + Duration::from_secs_f64(number as f64 / args.rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        handle.clear();
        generator.handle(changed_record(number, args.records), &mut handle);
        let data = format!("{CHANGED}{number}/").into_bytes();
        let values = Values::build([Value::new(1, b"URL", &data)], &mut buffer);
        let request = Request::CreateHandle(HandleValues { handle: &handle, values });
        let answer = connection.ask(&request, flags)?;
        ensure!(answer.code() == ResponseCode::SUCCESS, "{} {}", answer.code(), answer.text());
        sender.send((number, now_ns()))?;
    }
    Ok(())
}
