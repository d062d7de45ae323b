//! The counters of a run, for Prometheus to scrape during the run.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use handle_proto::ResponseCode;

use crate::show::report::SecondCounts;

/// Answers scrapes on its own thread until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    text: Arc<Mutex<String>>,
    totals: Totals,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The sums over all seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    sent: u64,
    answered: u64,
    late: u64,
    mismatched: u64,
}

/// Bound of the reaction to a stop.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Time limit for receiving a request, and for sending the answer.
const SCRAPE_MAX: Duration = Duration::from_secs(1);

impl Exporter {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// If the address cannot be used.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (text, stop) =
            (Arc::new(Mutex::new(render(&SecondCounts::default(), Totals::default()))), Arc::default());
        let (shared, stopped): (_, Arc<AtomicBool>) = (Arc::clone(&text), Arc::clone(&stop));
        let address = listener.local_addr()?;
        let thread = thread::Builder::new().name("prometheus".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    // A scraper that is too slow can try again.
                    Ok((stream, _)) => drop(answer(&stream, &shared)),
                    Err(_) => thread::sleep(TIMEOUT),
                }
            }
        })?;
        Ok(Self { address, text, totals: Totals::default(), stop, thread: Some(thread) })
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds the last second.
    pub fn update(&mut self, second: &SecondCounts) {
        self.totals.sent += second.sent;
        self.totals.answered += second.answered;
        self.totals.late += second.late;
        self.totals.mismatched += second.mismatched;
        let text = render(second, self.totals);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The second has no data.
            let _ = thread.join();
        }
    }
}

/// Answers any request with the metrics, once its head is complete.
fn answer(mut stream: &std::net::TcpStream, text: &Mutex<String>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SCRAPE_MAX))?;
    stream.set_write_timeout(Some(SCRAPE_MAX))?;
    let (mut buffer, mut len) = ([0; 4096], 0);
    while !buffer[..len].windows(4).any(|part| part == b"\r\n\r\n") {
        match stream.read(&mut buffer[len..])? {
            0 => return Ok(()),
            count => len += count,
        }
    }
    let body = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let len = body.len();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {len}\r\n\r\n{body}").as_bytes())
}

fn render(second: &SecondCounts, totals: Totals) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP handle_loadgen_{name} {help}\n# TYPE handle_loadgen_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "handle_loadgen_{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    metric("sent_total", "counter", "Requests sent.", &one(totals.sent as f64));
    metric("answered_total", "counter", "Answers in time.", &one(totals.answered as f64));
    metric("late_total", "counter", "Answers after the timeout.", &one(totals.late as f64));
    metric("mismatched_total", "counter", "Wrong answers.", &one(totals.mismatched as f64));
    metric("lost", "gauge", "Requests given up and not answered since.", &one(second.lost_so_far as f64));
    let code = |&(code, count): &(i32, u64)| {
        let name = ResponseCode(code).name().unwrap_or("unknown");
        (format!("{{code=\"{code}\",name=\"{name}\"}}"), count as f64)
    };
    let codes: Vec<_> = second.codes.iter().map(code).collect();
    metric("responses_total", "counter", "Answers in time, by response code.", &codes);
    let times = second.histogram.iter().flat_map(|histogram| {
        [0.5, 0.9, 0.99, 0.999].map(|quantile| {
            let ns = histogram.value_at_quantile(quantile);
            (format!("{{quantile=\"{quantile}\"}}"), ns as f64 / 1e9)
        })
    });
    let times: Vec<_> = times.collect();
    metric("response_seconds", "gauge", "Response times of the last second.", &times);
    metric(
        "lag_max_seconds",
        "gauge",
        "Longest lag of the last second.",
        &one(second.lag_max_ns as f64 / 1e9),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::latency::histogram;
    use std::net::TcpStream;

    fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scrape_gets_the_sums() {
        let mut exporter = Exporter::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let mut times = histogram(2);
        times.record_n(1_000_000, 9).unwrap();
        let histogram = Some(Arc::new(times));
        let second = SecondCounts {
            sent: 10,
            answered: 9,
            codes: vec![(1, 8), (100, 1)],
            histogram,
            ..SecondCounts::default()
        };
        exporter.update(&second);
        exporter.update(&second);
        let text = scrape(exporter.address());
        for line in [
            "handle_loadgen_sent_total 20",
            "handle_loadgen_answered_total 18",
            "handle_loadgen_responses_total{code=\"1\",name=\"success\"} 8",
            "handle_loadgen_response_seconds{quantile=\"0.99\"} 0.001",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    }
}
