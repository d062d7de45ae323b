//! The scrape endpoint: `/metrics`, `/healthz` and `/readyz` on an HTTP address of their own.
//!
//! A process implements [`ScrapeSource`] for its content; this module does the networking and
//! enforces the limits. Each connection has a thread and one deadline for all of its work, and the
//! number of connections is bounded.

use crate::clients::{LOOK_INTERVAL, serve_clients};
use crate::http::{self, HttpResponse, HttpStatus};
use crate::listen::ListenError;
use crate::shutdown::Shutdown;
use crate::takeover::{Predecessor, SocketKind};
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that the client has to close after the response.
const LINGER: Duration = Duration::from_secs(1);
/// Media type of the metrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of the endpoint. Their defaults hold in every process; tests choose others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrapeLimits {
    /// Maximum number of concurrent connections; further ones wait in the kernel.
    pub connections: usize,
    /// Maximum length of the head of a request, in bytes.
    pub header_len_max: usize,
    /// Time of a connection from its first byte to the last one.
    pub timeout: Duration,
}

impl Default for ScrapeLimits {
    /// Few scrapers and probes ask at a time, with short heads, and each is answered within
    /// milliseconds.
    fn default() -> Self {
        Self { connections: 16, header_len_max: 4096, timeout: Duration::from_secs(5) }
    }
}

crate::settings! {
    /// `/metrics`, `/healthz` and `/readyz`, on an address of their own.
    pub struct ObserveConfig {
        /// Set this when the process is monitored: TCP address of `/metrics`, `/healthz` and
        /// `/readyz`; none if not set. It has neither encryption nor authentication, so it belongs
        /// on loopback or a private network.
        restart http: Option<SocketAddr> = None;
    } constants {
        /// The endpoint serves a few scrapers and probes, whatever the process does.
        scrape_limits: ScrapeLimits = ScrapeLimits::default();
    }
}

/// What a process answers to a scraper, and how it counts responses.
pub trait ScrapeSource: Send + Sync + 'static {
    /// The bounds in force.
    fn limits(&self) -> ScrapeLimits;

    /// All metrics as OpenMetrics text.
    ///
    /// # Errors
    /// One sentence with the reason why there are no metrics.
    fn metrics(&self) -> Result<String, String>;

    /// Whether the process is alive, with a short text for humans.
    ///
    /// # Errors
    /// What is wrong, one problem on each line.
    fn liveness(&self) -> Result<String, String>;

    /// Whether the process is ready for requests, with a short text for humans.
    ///
    /// # Errors
    /// What is wrong, one problem on each line.
    fn readiness(&self) -> Result<String, String>;

    /// Counts a response.
    fn count_response(&self, _status: HttpStatus) {}

    /// Counts a connection that ended without a whole response.
    fn count_abandoned(&self) {}

    /// Whether another process now accepts connections on the same listener. This process then
    /// answers its open connections and accepts no more.
    fn is_handed_over(&self) -> bool {
        false
    }
}

/// The address of the scrape endpoint cannot be bound.
#[derive(Debug)]
pub struct ScrapeError(ListenError);

impl fmt::Display for ScrapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metrics and health (`observe.http`)")
    }
}

impl std::error::Error for ScrapeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// A bound HTTP address.
#[derive(Debug)]
pub struct ScrapeEndpoint {
    listener: TcpListener,
}

impl ScrapeEndpoint {
    /// Binds `address`.
    ///
    /// # Errors
    /// When the kernel does not allow it: one sentence with the likely cause.
    pub fn bind(address: SocketAddr) -> Result<Self, ScrapeError> {
        let bound = TcpListener::bind(address).and_then(Self::on);
        bound.map_err(|error| ScrapeError(ListenError::Refused(address, error)))
    }

    /// Binds `address` if there is one, or takes its listener from the process that is replaced.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn open(
        address: Option<SocketAddr>,
        replaced: Option<&mut Predecessor>,
    ) -> Result<Option<Self>, ScrapeError> {
        let Some(address) = address else { return Ok(None) };
        let taken = replaced.and_then(|replaced| replaced.take(SocketKind::Http, address));
        let listener = taken.map_or_else(|| TcpListener::bind(address), |taken| Ok(taken.into()));
        let opened = listener.and_then(Self::on);
        opened.map(Some).map_err(|error| ScrapeError(ListenError::Refused(address, error)))
    }

    /// Serves on a listener that is already bound.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn on(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Another descriptor of the listener.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// The address, with the port that the kernel chose.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` has stopped.
    pub fn serve(self, shutdown: &Arc<Shutdown>, source: &Arc<impl ScrapeSource>) {
        let clients_max = || if source.is_handed_over() { 0 } else { source.limits().connections };
        // After a takeover, open connections still get an answer; otherwise connections end with
        // the process.
        let goodbye = source.limits().timeout + LINGER;
        let (of_clients, stop) = (Arc::clone(source), Arc::clone(shutdown));
        serve_clients(&self.listener, "scrape-client", shutdown, clients_max, goodbye, move |stream| {
            let is_over = || stop.is_stopped() && !of_clients.is_handed_over();
            if talk(&stream, &*of_clients, is_over).is_err() {
                of_clients.count_abandoned();
            }
        });
    }
}

/// A connection with a deadline. Reads and writes fail once it is over.
struct TimedStream<'s, F> {
    stream: &'s TcpStream,
    deadline: Instant,
    is_over: F,
}

impl<F: Fn() -> bool> TimedStream<'_, F> {
    /// Timeout of the next system call. It is short, so that a shutdown of the process is noticed.
    fn timeout(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || (self.is_over)() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left.min(LOOK_INTERVAL))
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.timeout()?))?;
            match self.stream.read(buffer) {
                Err(error) if is_temporary(&error) => {}
                read => return read,
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.timeout()?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => bytes = &bytes[len..],
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads a request, writes the response, and closes in a way that lets the response arrive.
fn talk(stream: &TcpStream, source: &impl ScrapeSource, is_over: impl Fn() -> bool) -> io::Result<()> {
    let limits = source.limits();
    let mut timed = TimedStream { stream, deadline: Instant::now() + limits.timeout, is_over };
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    let (response, is_head) = loop {
        match http::parse(&head, limits.header_len_max) {
            Ok(Some(request)) => break (respond(request.path, source), request.is_head),
            Err(bad) => break (HttpResponse::text(bad.status(), bad.status().text()), false),
            Ok(None) => {}
        }
        let buffer_len = buffer.len().min(limits.header_len_max - head.len());
        match timed.read(&mut buffer[..buffer_len])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&buffer[..len]),
        }
    };
    source.count_response(response.status);
    timed.write_all(&response.to_bytes(is_head))?;
    if stream.shutdown(std::net::Shutdown::Write).is_err() {
        return Ok(());
    }
    // Further input is discarded: closing with unread bytes would reset the connection and could
    // lose the response.
    timed.deadline = timed.deadline.min(Instant::now() + LINGER);
    while timed.read(&mut buffer).is_ok_and(|len| len > 0) {}
    Ok(())
}

fn respond(path: &str, source: &impl ScrapeSource) -> HttpResponse {
    let text = |result: Result<String, String>| match result {
        Ok(text) => HttpResponse::text(HttpStatus::Ok, text),
        Err(text) => HttpResponse::text(HttpStatus::Unavailable, text),
    };
    match path {
        "/healthz" => text(source.liveness()),
        "/readyz" => text(source.readiness()),
        "/metrics" => match source.metrics() {
            Ok(body) => HttpResponse { status: HttpStatus::Ok, content_type: METRICS_TYPE, body },
            Err(why) => text(Err(why)),
        },
        _ => HttpResponse::text(HttpStatus::NotFound, "not found: expected /metrics, /healthz or /readyz"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Sample {
        responses: AtomicUsize,
        abandoned: AtomicUsize,
    }

    impl ScrapeSource for Sample {
        fn limits(&self) -> ScrapeLimits {
            ScrapeLimits { connections: 2, header_len_max: 256, timeout: Duration::from_millis(300) }
        }

        fn metrics(&self) -> Result<String, String> {
            Ok("# EOF\n".to_owned())
        }

        fn liveness(&self) -> Result<String, String> {
            Ok("ok".to_owned())
        }

        fn readiness(&self) -> Result<String, String> {
            Err("starting".to_owned())
        }

        fn count_response(&self, _status: HttpStatus) {
            self.responses.fetch_add(1, Ordering::Relaxed);
        }

        fn count_abandoned(&self) {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ask(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Waits until `count` is `expected`: a client may have its answer before it is counted.
    fn wait_for_count(count: &AtomicUsize, expected: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while count.load(Ordering::Relaxed) != expected {
            assert!(Instant::now() < deadline, "{} instead of {expected}", count.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the endpoint at the end of a test, so that one that fails does not wait for it.
    struct StopAtEnd<'s>(&'s Shutdown);

    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }

    #[test]
    fn slow_clients_take_no_permit_for_longer_than_their_time() {
        let endpoint = ScrapeEndpoint::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = endpoint.address().unwrap();
        let (shutdown, sample) = (Arc::new(Shutdown::new().unwrap()), Arc::new(Sample::default()));
        std::thread::scope(|scope| {
            scope.spawn(|| endpoint.serve(&shutdown, &sample));
            let _stop = StopAtEnd(&shutdown);
            let get = |path: &str| ask(address, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
            let metrics = get("/metrics?x");
            assert!(metrics.starts_with("HTTP/1.1 200 ") && metrics.ends_with("# EOF\n"), "{metrics}");
            assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
            assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
            assert!(get("/readyz").starts_with("HTTP/1.1 503 "));
            assert!(get("/").starts_with("HTTP/1.1 404 "));
            assert!(ask(address, &[b'x'; 300]).starts_with("HTTP/1.1 4"));
            wait_for_count(&sample.responses, 5);
            let slow = [(); 2].map(|()| TcpStream::connect(address).unwrap());
            assert!(get("/healthz").ends_with("ok\n"), "their places are free again");
            wait_for_count(&sample.abandoned, 2);
            drop(slow);
            let _idle = TcpStream::connect(address).unwrap();
            shutdown.stop();
        });
    }
}
