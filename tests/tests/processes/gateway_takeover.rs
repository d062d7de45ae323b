//! Restarts of `handle-gateway` by take-over: no request is lost over any version of HTTP, and a
//! failing new process leaves the old one serving.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_load::publish;
use handle_tests::admin_server::administer;
use handle_tests::daemon::{self, Successor, free_address};
use handle_tests::gateway_server::{HttpAnswer, connect_over_tls, tls_client, write_tls};
use handle_tests::http as scrape_client;
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, fail, hdl, program, succeed, until};
use rustls::pki_types::ServerName;
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const PATH: &str = "/api/handles/20.500.1/1";
const TIMEOUT: Duration = Duration::from_secs(20);

/// A published set and the address at which consecutive processes serve it.
struct TakeoverSetup {
    directory: TempDir,
    address: SocketAddr,
    scrapes: SocketAddr,
}

impl TakeoverSetup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        publish(&directory.path().join("set"));
        write_tls(directory.path(), 0);
        let setup = Self { directory, address: free_address(), scrapes: free_address() };
        setup.configure(2, "");
        setup
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("gateway.toml")
    }

    fn configure(&self, workers: usize, further: &str) {
        let text = format!(
            "snapshot = \"set\"\ncontrol = \"control.sock\"\nlisten = [\"{}\"]\nworkers = {workers}\n\
             log = \"warn\"\nobserve.http = \"{}\"\n{further}\n[tls]\ncertificate = \"certificate.pem\"\n\
             key = \"key.pem\"\n",
            self.address, self.scrapes
        );
        std::fs::write(self.config(), text).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program("handle-gateway", "handle-gateway"));
        command.stdin(Stdio::null()).env("HANDLE_GATEWAY_ALLOW_ROOT", "true");
        command.arg("--config").arg(self.config()).arg("--take-over");
        command
    }

    fn status(&self) -> Json {
        daemon::ask(&self.control(), "status")
    }

    /// The status of the process that serves; `None` while none does.
    fn try_status(&self) -> Option<Json> {
        let mut stream = std::os::unix::net::UnixStream::connect(self.control()).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        stream.write_all(b"status\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Restarts on command, and waits until the new process has the control socket.
    fn restart(&self) -> Successor {
        let mut command = hdl(["control", "restart", "--json", "--socket"]);
        command.arg(self.control());
        let answer: Json = serde_json::from_str(&succeed(command)).unwrap();
        let successor = Successor { pid: answer["pid"].clone() };
        until("the new process has the control socket", || self.status()["pid"] == successor.pid);
        successor
    }

    /// Starts a process, which takes over from a running one.
    fn serve(&self) -> RunningProcess {
        self.serve_with(self.command())
    }

    fn serve_with(&self, command: Command) -> RunningProcess {
        let mut process = RunningProcess::start(command);
        until("the process serves", || {
            assert!(process.0.try_wait().unwrap().is_none(), "the process has exited");
            self.status()["pid"] == process.0.id()
        });
        process
    }
}

/// The socket to which services report.
struct ServiceManager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl ServiceManager {
    fn new(directory: &Path) -> Self {
        let path = directory.join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, path }
    }

    fn until_notified(&self, text: &str) {
        let mut buffer = [0; 1000];
        loop {
            let len = self.socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
            let notification = String::from_utf8_lossy(&buffer[..len]).into_owned();
            assert!(!notification.contains("STOPPING"), "the service does not stop: {notification}");
            if notification.contains(text) {
                return;
            }
        }
    }
}

/// Requests of clients, and those without an answer.
#[derive(Default)]
struct RequestCounts {
    answered: AtomicU64,
    lost: AtomicU64,
    /// Requests over HTTP/2 that clients have to repeat.
    repeated: AtomicU64,
    /// Connections that the server has ended with an answer.
    ended: AtomicU64,
    stop: AtomicBool,
}

impl RequestCounts {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn note(&self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.answered.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                eprintln!("{what}: {error}");
                self.lost.fetch_add(1, Ordering::Relaxed)
            }
        };
    }

    /// Requests over HTTP/1.1, at most `len` on a connection.
    fn ask_over_http1<S: Read + Write>(&self, what: &str, len: usize, open: impl Fn() -> S) {
        while !self.is_over() {
            let mut stream = open();
            for _ in 0..len {
                if self.is_over() {
                    return;
                }
                let asked = ask(&mut stream);
                let ends = asked.as_ref().map_or(true, |answer| answer.list("connection") == "close");
                self.note(what, asked.and_then(|answer| check(answer.status)));
                if ends {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Requests over HTTP/2, four at a time, until the server ends the connection.
    fn ask_over_http2(&self, address: SocketAddr, has_tls: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            while !self.is_over() {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                if has_tls {
                    let config = Arc::new(tls_client(&[b"h2"]));
                    let name = ServerName::try_from("localhost").unwrap();
                    let stream =
                        tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
                    self.ask_on_connection(stream).await;
                } else {
                    self.ask_on_connection(stream).await;
                }
                self.ended.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    async fn ask_on_connection<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        while !self.is_over() {
            // After GOAWAY, the client makes no further request.
            let Ok(mut sender) = sender.clone().ready().await else { break };
            let request = || ::http::Request::get(format!("http://localhost{PATH}")).body(()).unwrap();
            let mut responses = Vec::new();
            for _ in 0..4 {
                match sender.send_request(request(), true) {
                    Ok((response, _)) => responses.push(response),
                    Err(_) => break,
                }
            }
            for response in responses {
                let response = match response.await {
                    // It was sent after the frame that ends the connection, and the server says
                    // that it was not handled: the client repeats it. RFC 9113 section 6.8.
                    Err(error) if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => {
                        self.repeated.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    response => response,
                };
                let answered = async {
                    let (head, mut body) = response.map_err(|error| error.to_string())?.into_parts();
                    while let Some(part) = body.data().await {
                        let part = part.map_err(|error| error.to_string())?;
                        let _ = body.flow_control().release_capacity(part.len());
                    }
                    check(head.status.as_u16())
                };
                self.note("HTTP/2", answered.await);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        driver.abort();
    }
}

fn check(status: u16) -> Result<(), String> {
    if status == 200 { Ok(()) } else { Err(format!("status {status}")) }
}

fn ask(stream: &mut (impl Read + Write)) -> Result<HttpAnswer, String> {
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
    sent.map_err(|error| error.to_string())?;
    read_answer(stream)
}

fn read_answer(stream: &mut impl Read) -> Result<HttpAnswer, String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((answer, _)) = HttpAnswer::split(&bytes, false) {
            return Ok(answer);
        }
        match stream.read(&mut buffer).map_err(|error| error.to_string())? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.to_string()),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Makes requests of all kinds while `meanwhile` runs.
fn load(setup: &TakeoverSetup, meanwhile: impl FnOnce()) -> RequestCounts {
    let counts = RequestCounts::default();
    std::thread::scope(|scope| {
        /// Ends the load, also when `meanwhile` panics.
        struct LoadEnd<'c>(&'c RequestCounts);
        impl Drop for LoadEnd<'_> {
            fn drop(&mut self) {
                self.0.stop.store(true, Ordering::Relaxed);
            }
        }
        let _end = LoadEnd(&counts);
        let address = setup.address;
        for len in [1, usize::MAX, usize::MAX] {
            let counts = &counts;
            scope.spawn(move || counts.ask_over_http1("HTTP/1.1", len, || open(address)));
            scope
                .spawn(move || counts.ask_over_http1("HTTP/1.1 over TLS", len, || connect_over_tls(address)));
        }
        for has_tls in [false, true] {
            let counts = &counts;
            scope.spawn(move || counts.ask_over_http2(address, has_tls));
        }
        let scraped = &counts;
        scope.spawn(move || {
            while !scraped.is_over() {
                let reply = scrape_client::get(setup.scrapes, "/readyz").map_or(0, |reply| reply.status);
                scraped.note("/readyz", check(reply));
            }
        });
        until("clients are answered", || counts.answered.load(Ordering::Relaxed) > 100);
        meanwhile();
    });
    counts
}

#[test]
fn restarts_of_the_gateway_under_load_lose_no_request() {
    let setup = TakeoverSetup::new();
    let mut serving = setup.serve();
    // The same number of workers, fewer, and more.
    let workers = [2, 1, 3, 1, 4, 2, 2, 3, 1, 2];
    let counts = load(&setup, || {
        for workers in workers {
            setup.configure(workers, "");
            let mut old = std::mem::replace(&mut serving, setup.serve());
            assert_eq!(old.wait(), Some(0), "exit code of the old process");
            assert!(setup.control().exists(), "the control socket belongs to the new process");
            assert_eq!(setup.status()["workers"]["running"], workers);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let [answered, lost, repeated, ended] = [&counts.answered, &counts.lost, &counts.repeated, &counts.ended]
        .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{answered} requests in {} restarts, {lost} lost, {repeated} to repeat, {ended} connections ended",
        workers.len()
    );
    assert_eq!(lost, 0, "of {}", answered + lost);
    assert!(ended >= 6 * workers.len() as u64, "connections that stay open end at each restart: {ended}");
}

#[test]
fn a_new_gateway_that_fails_or_is_killed_leaves_the_old_one_serving() {
    let setup = TakeoverSetup::new();
    let mut old = setup.serve();
    let counts = load(&setup, || {
        // The new process gets the sockets and then fails.
        setup.configure(2, "site = \"missing.json\"");
        let (code, error) = fail(setup.command());
        assert!(code == 1 && error.contains("missing.json"), "{code} {error}");
        let restarted = daemon::ask(&setup.control(), "restart");
        assert!(restarted["error"].as_str().unwrap().contains("this process continues"), "{restarted}");
        setup.configure(2, "");
        // Another program does not get the sockets.
        let mut other = daemon::handled();
        other.arg("--snapshot").arg(setup.directory.path().join("set")).arg("--control").arg(setup.control());
        other.args(["--listen", &setup.address.to_string(), "--take-over"]);
        let (code, error) = fail(other);
        assert!(code == 1 && error.contains("it runs handle-gateway"), "{code} {error}");
    });
    assert_eq!(counts.lost.load(Ordering::Relaxed), 0);
    assert_eq!(setup.status()["pid"], old.0.id());
    // `kill -9` at moments from before the take-over to after it.
    let mut survived = 0;
    for step in 0..15 {
        let mut new = RunningProcess::start(setup.command());
        std::thread::sleep(Duration::from_millis(4) * step);
        new.0.kill().unwrap();
        assert_eq!(new.wait(), None);
        std::thread::sleep(Duration::from_millis(50));
        if old.0.try_wait().unwrap().is_none() && setup.status()["draining"] == false {
            survived += 1;
            assert_eq!(ask(&mut open(setup.address)).unwrap().status, 200);
        } else {
            assert_eq!(old.wait(), Some(0));
            old = setup.serve();
        }
    }
    assert!(survived > 0, "no process was killed before it served");
}

#[test]
fn an_old_gateway_that_is_killed_leaves_the_new_one_serving() {
    let setup = TakeoverSetup::new();
    let (mut took_over, mut came_too_late) = (0, 0);
    for step in 0..20 {
        let mut old = setup.serve();
        // It does not end before this connection does.
        let mut idle = open(setup.address);
        ask(&mut idle).unwrap();
        let mut new = RunningProcess::start(setup.command());
        std::thread::sleep(Duration::from_millis(4) * step);
        // Its parent, this test, waits for it only later.
        old.0.kill().unwrap();
        let pid = new.0.id();
        until("the new process serves or exits", || {
            let has_exited = new.0.try_wait().unwrap().is_some();
            has_exited || setup.try_status().is_some_and(|status| status["pid"] == pid)
        });
        match new.0.try_wait().unwrap() {
            None => {
                took_over += 1;
                assert_eq!(ask(&mut open(setup.address)).unwrap().status, 200, "step {step}");
                new.signal("TERM");
                assert_eq!(new.wait(), Some(0));
            }
            // The old one was killed before it had handed over its sockets, or while it had the
            // port.
            Some(status) => {
                came_too_late += 1;
                assert_eq!(status.code(), Some(1), "step {step}");
            }
        }
        assert_eq!(old.wait(), None);
    }
    println!("{took_over} of 20 took over, {came_too_late} ended because the old process did");
    assert!(took_over >= 5, "{took_over}");
}

#[test]
fn a_new_gateway_has_other_addresses_and_workers() {
    let setup = TakeoverSetup::new();
    let second = free_address();
    let mut old = setup.serve();
    let serve_at = |addresses: &[SocketAddr], old: &mut RunningProcess| {
        let text = std::fs::read_to_string(setup.config()).unwrap();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let lines = text.lines().map(|line| match line.starts_with("listen") {
            true => format!("listen = {addresses:?}\n"),
            false => format!("{line}\n"),
        });
        std::fs::write(setup.config(), lines.collect::<String>()).unwrap();
        let mut left = std::mem::replace(old, setup.serve());
        assert_eq!(left.wait(), Some(0));
    };
    let answers = |address| TcpStream::connect(address).is_ok() && ask(&mut open(address)).is_ok();
    serve_at(&[setup.address, second], &mut old);
    assert!(answers(setup.address) && answers(second));
    serve_at(&[second], &mut old);
    assert!(!answers(setup.address) && answers(second));
    serve_at(&[setup.address], &mut old);
    assert!(answers(setup.address) && !answers(second));
    // A port of another process: the new one does not start, and the old one continues.
    let other = std::net::TcpListener::bind(second).unwrap();
    let text = std::fs::read_to_string(setup.config()).unwrap();
    let both = format!("listen = [\"{}\", \"{second}\"]", setup.address);
    std::fs::write(setup.config(), text.replace(&format!("listen = [\"{}\"]", setup.address), &both))
        .unwrap();
    let (code, error) = fail(setup.command());
    assert!(code == 1 && error.contains(&second.to_string()), "{code} {error}");
    drop(other);
    assert!(answers(setup.address));
}

#[test]
fn another_user_does_not_get_the_sockets() {
    if !has(TestNeed::Root, rustix::process::geteuid().is_root()) {
        return;
    }
    let setup = TakeoverSetup::new();
    let _serving = setup.serve();
    let socket = std::fs::metadata(setup.control()).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&socket.permissions()) & 0o777, 0o600);
    // Even if the mode of the socket allowed it.
    for path in [setup.directory.path().to_owned(), setup.control()] {
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, open_to_all).unwrap();
    }
    let control = setup.control();
    let ask = move || {
        // Only this thread becomes another user, and it ends afterwards.
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(control).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"take-over\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    };
    let said = std::thread::spawn(ask).join().unwrap();
    assert_eq!(said, "{\"error\":\"only the user of this process may take over\"}\n");
    assert_eq!(setup.status()["draining"], false);
}

#[test]
fn a_gateway_that_stops_after_a_take_over_does_not_wait_longer_than_otherwise() {
    let setup = TakeoverSetup::new();
    setup.configure(1, "[limits]\ndrain_ms = 1000\n");
    let mut old = setup.serve();
    let mut idle = open(setup.address);
    ask(&mut idle).unwrap();
    let _new = setup.serve();
    std::thread::sleep(Duration::from_millis(500));
    assert!(old.0.try_wait().unwrap().is_none(), "it waits for the idle connection");
    let begun = std::time::Instant::now();
    old.signal("TERM");
    assert_eq!(old.wait(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(ask(&mut open(setup.address)).unwrap().status, 200);
}

#[test]
fn a_restart_on_command_waits_for_idle_connections_within_bounds() {
    let setup = TakeoverSetup::new();
    setup.configure(1, "[limits]\ndrain_ms = 125\n");
    let manager = ServiceManager::new(setup.directory.path());
    let mut command = setup.command();
    command.env("NOTIFY_SOCKET", &manager.path);
    let mut old = setup.serve_with(command);
    manager.until_notified("READY=1");
    let (mut asks_later, mut idle) = (open(setup.address), open(setup.address));
    for stream in [&mut asks_later, &mut idle] {
        assert_eq!(ask(stream).unwrap().list("connection"), "");
    }
    let successor = setup.restart();
    // The old process names the new main process, which then reports.
    manager.until_notified(&format!("MAINPID={}", successor.pid));
    manager.until_notified("READY=1");
    // A connection of the old process has one more answer.
    let last = ask(&mut asks_later).unwrap();
    assert_eq!((last.status, last.list("connection").as_str()), (200, "close"));
    assert_eq!(asks_later.read(&mut [0; 1]).unwrap(), 0);
    assert!(old.0.try_wait().unwrap().is_none(), "it waits for the idle connection");
    assert_eq!(old.wait(), Some(0));
    assert_eq!(idle.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(ask(&mut open(setup.address)).unwrap().status, 200);
}

#[test]
fn what_began_before_a_restart_is_answered_after_it() {
    let setup = TakeoverSetup::new();
    let mut old = setup.serve();
    let body = format!("{{\"handles\": [\"{}\"]}}", PATH.trim_start_matches("/api/handles/"));
    let post = format!(
        "POST /api/resolve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A part of a body, a part of a head, nothing, and nothing of a handshake.
    let (mut half_body, mut half_head) = (open(setup.address), open(setup.address));
    half_body.write_all(&post.as_bytes()[..post.len() - 10]).unwrap();
    half_head.write_all(&post.as_bytes()[..30]).unwrap();
    let (mut silent, mut secret) = (open(setup.address), connect_over_tls(setup.address));
    let mut two_at_once = open(setup.address);
    // The old process has accepted them.
    ask(&mut open(setup.address)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let _new = setup.restart();
    let is_last = |what: &str, answer: HttpAnswer| {
        assert_eq!((answer.status, answer.list("connection").as_str()), (200, "close"), "{what}");
    };
    is_last("no byte", ask(&mut silent).unwrap());
    is_last("no handshake", ask(&mut secret).unwrap());
    half_body.write_all(&post.as_bytes()[post.len() - 10..]).unwrap();
    is_last("half a body", read_answer(&mut half_body).unwrap());
    half_head.write_all(&post.as_bytes()[30..]).unwrap();
    is_last("half a head", read_answer(&mut half_head).unwrap());
    // The second of two requests gets no answer, and the first one does.
    let one = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    two_at_once.write_all(one.repeat(2).as_bytes()).unwrap();
    let mut bytes = Vec::new();
    two_at_once.read_to_end(&mut bytes).unwrap();
    let (first, rest) = HttpAnswer::split(&bytes, false).unwrap();
    is_last("the first of two", first);
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(rest));
    assert_eq!(old.wait(), Some(0));
}

/// Creates records over TLS until `meanwhile` has ended, and returns the names of those that were
/// acknowledged, and the answers to the others.
fn create_records(address: SocketAddr, meanwhile: impl FnOnce()) -> (Vec<String>, Vec<String>) {
    let stop = AtomicBool::new(false);
    let create = |client: usize| {
        let (mut created, mut refused, mut stream) = (Vec::new(), Vec::new(), connect_over_tls(address));
        while !stop.load(Ordering::Relaxed) {
            let name = format!("TST/TAKEN-{client}-{}", created.len() + refused.len());
            let body = "[{\"index\": 1, \"type\": \"URL\", \"data\": \"https://example.org/\"}]";
            let request = format!(
                "PUT /api/handles/{name}?overwrite=false HTTP/1.1\r\nHost: localhost\r\n{CALLER}\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let sent = stream.write_all(request.as_bytes()).map_err(|error| error.to_string());
            match sent.and_then(|()| read_answer(&mut stream)) {
                Ok(answer) if answer.status == 201 => {
                    created.push(name);
                    if answer.list("connection") == "close" {
                        stream = connect_over_tls(address);
                    }
                }
                answer => {
                    refused.push(format!("{name}: {answer:?}"));
                    stream = connect_over_tls(address);
                }
            }
        }
        (created, refused)
    };
    std::thread::scope(|scope| {
        let create = &create;
        let clients: Vec<_> = (0..3).map(|client| scope.spawn(move || create(client))).collect();
        meanwhile();
        stop.store(true, Ordering::Relaxed);
        let outcomes = clients.into_iter().map(|client| client.join().unwrap());
        outcomes.fold((Vec::new(), Vec::new()), |mut all, (created, refused)| {
            all.0.extend(created);
            all.1.extend(refused);
            all
        })
    })
}

/// Credentials of an administrator of TST.
const CALLER: &str = "Authorization: Basic MzAxJTNBMC5OQS9UU1Q6b3BlbiBzZXNhbWUgb3Blbg==\r\n";

#[test]
fn restarts_lose_no_change() {
    let administration = administer("root");
    let setup = TakeoverSetup::new();
    let admin = format!("[admin]\naddress = \"{}\"\nvisible_ms = 0\n", administration.address());
    setup.configure(2, &admin);
    let mut serving = setup.serve();
    let restarts = 5;
    let (created, refused) = create_records(setup.address, || {
        for _ in 0..restarts {
            std::thread::sleep(Duration::from_millis(400));
            let mut old = std::mem::replace(&mut serving, setup.serve());
            assert_eq!(old.wait(), Some(0));
        }
    });
    println!("{} records created in {restarts} restarts", created.len());
    assert!(created.len() > restarts && refused.is_empty(), "{} created; {refused:?}", created.len());
    let mut stream = connect_over_tls(setup.address);
    for name in created {
        let target = format!("/api/handles/{name}?publicOnly=false");
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{CALLER}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream).unwrap();
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
}
