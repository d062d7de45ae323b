//! Attacks on the scarce resources of `handle-admin`: connections, memory, disk space.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::listen::raise_file_limit;
use handle_proto::wire::Envelope;
use handle_tests::daemon::ask;
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, succeed, until};
use handle_tests::service_directory::InitialisedService;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::Value as Json;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// As many connections as `handle-admin` accepts by default, from sources below their own limit.
const CONNECTIONS: usize = 4096;
const PER_SOURCE: usize = 256;

fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
    connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// Opens connections that send `bytes` and wait.
fn attack(to: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let connections = (0..CONNECTIONS).map(|number| {
        let last = u8::try_from(2 + number / PER_SOURCE).unwrap();
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, last), to);
        // The server may have closed the connection already.
        let _ = stream.write_all(bytes);
        stream
    });
    connections.collect()
}

/// The beginning of a request, with `len` bytes after the envelope.
fn partial_request(len: usize) -> Vec<u8> {
    let envelope = Envelope { message_len: 250_000, ..Envelope::request(1) };
    let mut bytes = envelope.to_bytes().to_vec();
    bytes.resize(Envelope::LEN + len, 0);
    bytes
}

/// Largest memory use of a process, in MiB.
fn peak_mib(process: &RunningProcess) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<usize>().unwrap() >> 10
}

#[test]
fn partial_requests_and_idle_connections_exhaust_neither_memory_nor_connections() {
    let _one_at_a_time = crate::lock_many_files();
    raise_file_limit().unwrap();
    let mut service = InitialisedService::make();
    service.start_admin();
    let control = service.path("site/run/handle-admin.sock");
    let connections = || ask(&control, "stats")["connections"].clone();
    let create = |handle: &str| {
        succeed(service.hdl_as_admin(["handle", "create", handle, "1:URL=https://example.org/"]));
    };
    let before = peak_mib(service.admin.as_ref().unwrap());

    // 400 MB in total, of which only the configured amount is kept.
    let halves = attack(service.administration, &partial_request(100_000));
    assert!(connections()["input_bytes"].as_u64().unwrap() <= 64 << 20);
    create("10.1045/among-half-requests");
    let after = peak_mib(service.admin.as_ref().unwrap());
    assert!(after < before + 200, "from {before} to {after} MiB");
    println!("half requests: from {before} to {after} MiB, {}", connections());
    drop(halves);

    // Short partial requests need no memory, only connections.
    until("the attacker has disconnected", || connections()["open"] == 0);
    let halves = attack(service.administration, &partial_request(100));
    until("all connections are used", || connections()["open"].as_u64() > Some(4000));
    std::thread::sleep(Duration::from_millis(1100));
    create("10.1045/among-short-half-requests");
    drop(halves);

    until("the attacker has disconnected", || connections()["open"] == 0);
    let mut idle = attack(service.administration, b"");
    until("all connections are used", || connections()["open"].as_u64() > Some(4000));
    create("10.1045/among-idle-connections");
    assert!(connections()["evicted"].as_u64() > Some(1), "{}", connections());
    // The connection that was idle for longest is closed.
    idle[0].set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(idle[0].read(&mut [0; 8]).unwrap_or(0), 0);
}

/// Starts `handle-admin` with a small separate disk for the audit log; `None` if the host does not
/// permit it.
fn with_small_disk(service: &mut InitialisedService, audit: &Path) -> Option<PathBuf> {
    let may_mount = Command::new("unshare")
        .args(["--mount", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs"])
        .arg(audit)
        .stderr(Stdio::null())
        .status();
    if !has(TestNeed::MountNamespace, may_mount.is_ok_and(|status| status.success())) {
        return None;
    }
    let admin = service.admin_command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\""]);
    command.arg(audit).arg(admin.get_program()).args(admin.get_args());
    command.env("HANDLE_ADMIN_ALLOW_ROOT", "true").stdin(Stdio::null());
    service.start_admin_as(command);
    let pid = service.admin.as_ref().unwrap().0.id();
    Some(PathBuf::from(format!("/proc/{pid}/root{}", audit.display())))
}

#[test]
fn a_full_disk_of_the_audit_log_is_reported_in_time_and_does_not_stop_changes() {
    let mut service = InitialisedService::make();
    let audit = service.path("audit");
    fs::create_dir(&audit).unwrap();
    let config = service.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("control =", "audit = \"../audit/audit.jsonl\"\ncontrol =");
    fs::write(&config, format!("{text}\n[limits]\ndisk_free_bytes = 524288\n")).unwrap();
    let Some(disk) = with_small_disk(&mut service, &audit) else { return };
    let control = service.path("site/run/handle-admin.sock");
    let create = |handle: &str| {
        succeed(service.hdl_as_admin(["handle", "create", handle, "1:URL=https://example.org/"]));
    };
    let is_low = || {
        let disks = ask(&control, "status")["disks"].clone();
        let audit = disks.as_array().unwrap().iter().find(|disk| disk["of"] == "audit").unwrap();
        audit["is_low"].as_bool().unwrap()
    };
    let counts = || ask(&control, "stats")["audit"].clone();
    create("10.1045/with-room");
    assert!(!is_low());

    // Nearly full: the status shows it, and changes are still logged.
    let filled = vec![0; 800 << 10];
    fs::write(disk.join("filled"), &filled).unwrap();
    assert!(is_low());
    create("10.1045/nearly-full");
    assert_eq!(counts()["lost"], 0);

    // Full: changes continue, and their entries are in the log of the process.
    let mut rest = fs::File::create(disk.join("rest")).unwrap();
    while rest.write_all(&[0; 4096]).is_ok() {}
    drop(rest);
    // Uses up the rest of the file's last page.
    let mut count = 0;
    until("a line is lost", || {
        count += 1;
        let value = format!("2:URL=https://example.org/{count}");
        succeed(service.hdl_as_admin(["handle", "update", "10.1045/nearly-full", &value]));
        counts()["lost"].as_u64() > Some(0)
    });
    create("10.1045/full");

    // With free space, the audit log continues, and all its lines are complete.
    fs::remove_file(disk.join("filled")).unwrap();
    create("10.1045/again");
    assert!(!is_low());
    let lines: Vec<Json> = fs::read_to_string(disk.join("audit.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let has = |handle: &str| lines.iter().any(|line| line["handle"] == handle);
    assert!(has("10.1045/with-room") && has("10.1045/nearly-full") && has("10.1045/again"));
    assert!(!has("10.1045/full"));
    assert!(service.admin.as_mut().unwrap().0.try_wait().unwrap().is_none(), "handle-admin has exited");
}
