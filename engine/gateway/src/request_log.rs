//! A line for each request, which never blocks a worker.
//!
//! - Workers put entries into a queue of fixed size, and one thread writes them. When the queue is
//!   full, entries are dropped and counted.
//! - An entry has no query, no credentials, and of the address only the bits that may be logged.
//! - The file is opened again by a reload, for log rotation.

use crate::peer::HttpPeer;
use crate::route::Route;
use handle_auth::source::Network;
use handle_daemon::clock::now_unix;
use handle_daemon::line_log::{LineCounts, LineLog, LineLogError, LineLogWriter};
use handle_daemon::settings;
use handle_daemon::settings::SettingType;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Version};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

settings! {
    /// The log of requests. Queries and credentials are not logged.
    pub struct RequestLogConfig {
        /// Set this when requests are logged: the format of a line, JSON or that of web servers.
        live format: RequestLogFormat = RequestLogFormat::Off;
        /// Set this when the log goes to a file, of mode 0640; standard output if not set.
        restart path: Option<PathBuf> = None;
        /// Set this when your rules allow whole addresses in the log; otherwise, networks are
        /// logged, an IPv4 /24 or IPv6 /48.
        live whole_addresses: bool = false;
    } constants {
        /// Lines waiting to be written: those of 100 ms at 80,000 requests per second. Further ones
        /// are dropped and counted.
        queue_lines: usize = 8192;
        /// Prefix length of a logged network, IPv4: without the part that identifies a host.
        ipv4_bits: u8 = 24;
        /// Prefix length of a logged network, IPv6: what a provider gives to one site.
        ipv6_bits: u8 = 48;
    }
}

/// Format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestLogFormat {
    /// Nothing is logged.
    #[default]
    Off,
    /// One JSON object.
    Json,
    /// The combined log format of web servers.
    Combined,
}

impl SettingType for RequestLogFormat {
    fn type_name() -> String {
        "`off`, `json`, `combined`".to_owned()
    }
}

/// Most bytes of a path in the log.
const PATH_LEN_MAX: usize = 2048;
/// Most bytes of other texts that clients send.
const TEXT_LEN_MAX: usize = 256;

/// One request.
#[derive(Clone, Debug)]
pub struct RequestLogEntry {
    /// When it arrived, in microseconds since 1970.
    unix_us: i64,
    address: Network,
    method: Method,
    path: Box<str>,
    route: Route,
    version: Version,
    is_tls: bool,
    referer: Option<Box<str>>,
    user_agent: Option<Box<str>>,
    status: u16,
    /// Bytes of the body; `None` for one in parts.
    body_len: Option<u64>,
    took_us: u64,
}

/// What the log has of a request.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequest<'r> {
    /// The method.
    pub method: &'r Method,
    /// The path, without the query.
    pub path: &'r str,
    /// Its route.
    pub route: Route,
    /// The version of HTTP.
    pub version: Version,
    /// The value of `Referer`.
    pub referer: Option<&'r [u8]>,
    /// The value of `User-Agent`.
    pub user_agent: Option<&'r [u8]>,
}

impl<'r> LoggedRequest<'r> {
    /// What the log has of the request `parts`.
    #[must_use]
    pub fn of(parts: &'r Parts, route: Route) -> Self {
        let value = |name| parts.headers.get(name).map(HeaderValue::as_bytes);
        Self {
            method: &parts.method,
            path: parts.uri.path(),
            route,
            version: parts.version,
            referer: value(header::REFERER),
            user_agent: value(header::USER_AGENT),
        }
    }
}

/// What is known of a response when it is logged.
#[derive(Clone, Copy, Debug)]
pub struct LoggedResponse {
    /// The status.
    pub status: u16,
    /// Bytes of the body; `None` for one in parts.
    pub body_len: Option<u64>,
    /// When the request arrived.
    pub since: Instant,
}

fn cut(text: &str, len_max: usize) -> Box<str> {
    let len = (0..=text.len().min(len_max)).rev().find(|&len| text.is_char_boundary(len)).unwrap_or(0);
    text[..len].into()
}

fn header_text(value: &[u8]) -> Box<str> {
    cut(&String::from_utf8_lossy(value), TEXT_LEN_MAX)
}

impl RequestLogEntry {
    /// The entry for a request of `peer`; `None` if nothing is logged.
    #[must_use]
    pub fn of(request: LoggedRequest<'_>, peer: HttpPeer, config: &RequestLogConfig) -> Option<Self> {
        (config.format != RequestLogFormat::Off).then(|| Self::new(request, peer, config))
    }

    fn new(request: LoggedRequest<'_>, peer: HttpPeer, config: &RequestLogConfig) -> Self {
        let HttpPeer { address, is_tls, .. } = peer;
        let (whole, some) = if address.is_ipv4() { (32, config.ipv4_bits) } else { (128, config.ipv6_bits) };
        let bits = if config.whole_addresses { whole } else { some };
        // Where the client comes from may have a query as well.
        let referer = request.referer.map(header_text);
        let referer = referer.map(|text| text.split(['?', '#']).next().unwrap_or_default().into());
        Self {
            unix_us: i64::try_from(now_unix().as_micros()).unwrap_or(i64::MAX),
            address: Network::new(address, bits),
            method: request.method.clone(),
            path: cut(request.path, PATH_LEN_MAX),
            route: request.route,
            version: request.version,
            is_tls,
            referer,
            user_agent: request.user_agent.map(header_text),
            status: 0,
            body_len: None,
            took_us: 0,
        }
    }

    /// Appends the line, with its line end.
    pub fn write(&self, format: RequestLogFormat, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = match format {
            RequestLogFormat::Json => {
                let time = Timestamp::from_microsecond(self.unix_us).unwrap_or(Timestamp::UNIX_EPOCH);
                let line = json!({
                    "time": time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
                    "address": self.address.address().to_string(),
                    "method": self.method.as_str(),
                    "path": self.path,
                    "route": self.route.path(),
                    "version": format!("{:?}", self.version),
                    "tls": self.is_tls,
                    "status": self.status,
                    "bytes": self.body_len,
                    "took_us": self.took_us,
                    "referer": self.referer,
                    "user_agent": self.user_agent,
                });
                writeln!(out, "{line}")
            }
            RequestLogFormat::Off | RequestLogFormat::Combined => {
                self.write_combined(out);
                Ok(())
            }
        };
    }

    /// Appends the line of web servers. Making it is a part of what an answer costs, so nothing is
    /// allocated, and the time is formatted once a second.
    fn write_combined(&self, out: &mut String) {
        thread_local! {
            static SECOND: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
        }
        let _ = write!(out, "{}", self.address.address());
        out.push_str(" - - [");
        SECOND.with_borrow_mut(|(known_s, text)| {
            let unix_s = self.unix_us.div_euclid(1_000_000);
            if *known_s != unix_s {
                let time = Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH);
                (*known_s, *text) = (unix_s, time.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string());
            }
            out.push_str(text);
        });
        out.push_str("] \"");
        out.push_str(self.method.as_str());
        out.push(' ');
        push_escaped(&self.path, out);
        let _ = write!(out, " {:?}\" {} ", self.version, self.status);
        match self.body_len {
            Some(len) => {
                let _ = write!(out, "{len}");
            }
            None => out.push('-'),
        }
        for text in [&self.referer, &self.user_agent] {
            out.push_str(" \"");
            push_escaped(text.as_deref().unwrap_or("-"), out);
            out.push('"');
        }
        out.push('\n');
    }
}

/// Appends text between quotation marks: these, backslashes and bytes that are not printable ASCII
/// as escapes.
fn push_escaped(text: &str, out: &mut String) {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.as_bytes().iter().all(is_plain) {
        return out.push_str(text);
    }
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            b' '..=b'~' => out.push(byte as char),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
}

/// The log: the queue that workers fill, and its counters.
#[derive(Debug)]
pub struct RequestLog {
    lines: Arc<LineLog<RequestLogEntry>>,
    /// Entries that did not fit into the queue.
    dropped: AtomicU64,
}

impl RequestLog {
    /// The log that `config` describes.
    #[must_use]
    pub fn new(config: &RequestLogConfig) -> Self {
        let lines = LineLog::new("the log of requests", config.path.clone(), config.queue_lines);
        Self { lines: Arc::new(lines), dropped: AtomicU64::new(0) }
    }

    /// Logs a request that has been answered.
    pub fn record(&self, mut entry: RequestLogEntry, response: LoggedResponse) {
        entry.status = response.status;
        entry.body_len = response.body_len;
        entry.took_us = u64::try_from(response.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        if !self.lines.push(entry) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file again before the next line, because it may have been renamed.
    pub fn reopen(&self) {
        self.lines.reopen();
    }

    /// Number of lines so far. Entries that did not fit into the queue are among those lost.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        let LineCounts { written, lost } = self.lines.counts();
        LineCounts { written, lost: lost + self.dropped.load(Ordering::Relaxed) }
    }

    /// The writer of the lines.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn writer(&self) -> Result<LineLogWriter<RequestLogEntry>, LineLogError> {
        self.lines.writer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use std::path::Path;

    fn entry(target: &str, config: &RequestLogConfig) -> RequestLogEntry {
        let request = Request::builder()
            .uri(target)
            .header("authorization", "Basic c2VjcmV0")
            .header("referer", "https://a.example/b?token=secret#x")
            .header("user-agent", "a \"b\" \\ \u{e9}");
        let parts = request.body(()).unwrap().into_parts().0;
        let peer = HttpPeer::new([192, 0, 2, 77].into(), true);
        let logged = LoggedRequest::of(&parts, Route::Handle);
        assert!(RequestLogEntry::of(logged, peer, &RequestLogConfig::default()).is_none());
        let mut entry = RequestLogEntry::new(logged, peer, config);
        (entry.unix_us, entry.status, entry.body_len, entry.took_us) = (971_211_336_000_001, 302, Some(5), 9);
        entry
    }

    fn line(format: RequestLogFormat, entry: &RequestLogEntry) -> String {
        let mut out = String::new();
        entry.write(format, &mut out);
        out
    }

    #[test]
    fn lines_have_no_queries_and_no_credentials() {
        let config = RequestLogConfig::default();
        let entry = entry("/10.1/a%20b?callback=secret", &config);
        assert_eq!(
            line(RequestLogFormat::Combined, &entry),
            "192.0.2.0 - - [10/Oct/2000:20:55:36 +0000] \"GET /10.1/a%20b HTTP/1.1\" 302 5 \
             \"https://a.example/b\" \"a \\\"b\\\" \\\\ \\xc3\\xa9\"\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(RequestLogFormat::Json, &entry)).unwrap();
        assert_eq!(
            (&json["path"], &json["status"], &json["took_us"]),
            (&"/10.1/a%20b".into(), &302.into(), &9.into())
        );
        assert_eq!(json["route"], "/{handle}");
        assert_eq!((&json["time"], &json["tls"]), (&"2000-10-10T20:55:36.000001Z".into(), &true.into()));
        assert!(!json.to_string().contains("secret") && !json.to_string().contains("Basic"));
    }

    #[test]
    fn addresses_are_cut_unless_configured_otherwise() {
        let whole = RequestLogConfig { whole_addresses: true, ..RequestLogConfig::default() };
        assert!(line(RequestLogFormat::Combined, &entry("/", &whole)).starts_with("192.0.2.77 "));
        let long = entry(&format!("/{}", "a".repeat(5000)), &whole);
        assert_eq!(long.path.len(), PATH_LEN_MAX);
    }

    #[test]
    fn a_full_queue_loses_lines_and_a_renamed_file_goes_on_until_it_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("requests.log");
        let config =
            RequestLogConfig { path: Some(path.clone()), queue_lines: 2, ..RequestLogConfig::default() };
        let log = RequestLog::new(&config);
        let mut writer = log.writer().unwrap();
        let record = |count: usize, writer: &mut LineLogWriter<RequestLogEntry>| {
            for _ in 0..count {
                let response = LoggedResponse { status: 200, body_len: None, since: Instant::now() };
                log.record(entry("/", &config), response);
            }
            writer.write_queue(RequestLogFormat::Combined, RequestLogEntry::write);
        };
        record(3, &mut writer);
        assert_eq!(log.counts(), LineCounts { written: 2, lost: 1 });
        let old = directory.path().join("requests.log.1");
        std::fs::rename(&path, &old).unwrap();
        record(1, &mut writer);
        log.reopen();
        record(1, &mut writer);
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&old), lines(&path)), (3, 1));
        assert_eq!(log.counts(), LineCounts { written: 4, lost: 1 });
    }
}
