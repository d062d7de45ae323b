//! A log line for each answer, or for a sample, which never blocks a worker.
//!
//! - Workers put entries into a queue of fixed size; one thread writes them. When the queue is
//!   full, or the limit of lines per second is reached, entries are dropped and counted.
//! - Addresses are truncated before they enter the queue, unless `whole_addresses` is set.
//! - The file is opened again on SIGHUP and on the command `reopen-log`, for log rotation.

pub mod line;
pub mod settings;

use crate::counters::{Counters, Transport};
use anyhow::Context as _;
use crossbeam_queue::ArrayQueue;
use handle_daemon::shutdown::Shutdown;
use handle_proto::ResponseCode;
use line::{QueryLogEntry, RequestSummary};
pub use settings::{QueryLogFormat, QueryLogSettings};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval at which the writer checks the queue. A queue of 1024 then suffices for 50,000 lines a
/// second.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the writer checks the queue while nothing is logged.
const WRITE_INTERVAL_IDLE: Duration = Duration::from_millis(320);
/// Mode of the file: its owner may write, its group may read.
const MODE: u32 = 0o640;
/// Bytes that are written in one call.
const WRITE_LEN: usize = 64 << 10;

/// The log: the queue that workers fill, and its counters.
#[derive(Debug)]
pub struct QueryLog {
    path: PathBuf,
    queue: ArrayQueue<QueryLogEntry>,
    /// Start of the log, from which seconds are counted; a wall clock that is set back would repeat
    /// some.
    started: Instant,
    /// A second in the upper half, and the number of its lines in the lower.
    second: AtomicU64,
    reopen: AtomicBool,
    written: AtomicU64,
    failed: AtomicU64,
}

impl QueryLog {
    /// Opens the file that `settings` name, and returns the log with its writer; `None` when no
    /// file is set.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(settings: &QueryLogSettings) -> anyhow::Result<Option<(Arc<Self>, QueryLogWriter)>> {
        let Some(path) = settings.path.clone() else { return Ok(None) };
        let file = open(&path).with_context(|| {
            format!("cannot write the query log {} (check: ls -ld of its directory)", path.display())
        })?;
        let log = Arc::new(Self {
            path,
            queue: ArrayQueue::new(settings.queue_lines),
            started: Instant::now(),
            second: AtomicU64::new(0),
            reopen: AtomicBool::new(false),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let writer = QueryLogWriter { log: Arc::clone(&log), file, torn: false };
        Ok(Some((log, writer)))
    }

    /// Opens the file again before the next line, because it was renamed.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Number of lines written, and of lines lost because the file could not be written.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Whether `second` may have another line, with a limit of `lines_max` for each second.
    fn admit(&self, second: u32, lines_max: u32) -> bool {
        let admitted = self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |packed| {
            let (known, lines) = (packed >> 32, packed & u64::from(u32::MAX));
            // A worker with an older second uses the limit of the newest second.
            match u64::from(second) > known {
                true => Some(u64::from(second) << 32 | 1),
                false => (lines < lines_max.into()).then_some(packed + 1),
            }
        });
        admitted.is_ok()
    }
}

/// A worker's end of the log.
#[derive(Debug)]
pub struct QueryLogTap {
    log: Arc<QueryLog>,
    settings: QueryLogSettings,
    /// Answers until the next one that is logged.
    left: u32,
    /// The second whose limit is reached, so that the shared counter need not be read again.
    full_second: Option<u32>,
    received: Instant,
    second: u32,
    unix_us: i64,
}

impl QueryLogTap {
    /// Creates the end for one worker.
    #[must_use]
    pub fn new(log: Arc<QueryLog>, settings: &QueryLogSettings) -> Self {
        let (left, received) = (settings.sample_every, log.started);
        Self { log, settings: settings.clone(), left, full_second: None, received, second: 0, unix_us: 0 }
    }

    /// Applies other settings.
    pub fn set(&mut self, settings: &QueryLogSettings) {
        self.settings = settings.clone();
        (self.left, self.full_second) = (settings.sample_every, None);
    }

    /// Sets the current time by both clocks. Called when a batch has been received, or answers have
    /// come back.
    pub fn set_time(&mut self, now: Instant, now_unix: Duration) {
        self.received = now;
        // Seconds start at 1, because 0 means none.
        let second = now.saturating_duration_since(self.log.started).as_secs() + 1;
        self.second = u32::try_from(second).unwrap_or(u32::MAX);
        self.unix_us = i64::try_from(now_unix.as_micros()).unwrap_or(i64::MAX);
    }

    /// Logs an answer with `code` to `ip`. `request` is the message with its envelope, received in
    /// the batch.
    #[cold]
    pub fn record(
        &mut self,
        transport: Transport,
        ip: IpAddr,
        request: &[u8],
        code: ResponseCode,
        counters: &Counters,
    ) {
        let since = self.received;
        self.record_since(since, transport, ip, request, code, counters);
    }

    /// Like [`record`](Self::record), for a request received before the batch, at `since`.
    #[cold]
    pub fn record_since(
        &mut self,
        since: Instant,
        transport: Transport,
        ip: IpAddr,
        request: &[u8],
        code: ResponseCode,
        counters: &Counters,
    ) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.left = self.settings.sample_every;
        if self.full_second == Some(self.second) {
            counters.query_log_dropped_rate.add(1);
            return;
        }
        if !self.log.admit(self.second, self.settings.lines_per_second) {
            self.full_second = Some(self.second);
            counters.query_log_dropped_rate.add(1);
            return;
        }
        let mut entry =
            QueryLogEntry::new(transport, self.settings.cut(ip), RequestSummary::read(request), code);
        let before = self.received.saturating_duration_since(since).as_micros();
        entry.unix_us = self.unix_us.saturating_sub(i64::try_from(before).unwrap_or(i64::MAX));
        entry.took_us = u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX);
        match self.log.queue.push(entry) {
            Ok(()) => counters.query_log_queued.add(1),
            Err(_) => counters.query_log_dropped_full.add(1),
        }
    }
}

/// The writing end of the log.
#[derive(Debug)]
pub struct QueryLogWriter {
    log: Arc<QueryLog>,
    file: File,
    /// Whether the last write failed, perhaps within a line.
    torn: bool,
}

impl QueryLogWriter {
    /// Writes lines in `format` until `shutdown`, and then the remaining ones.
    pub fn run(mut self, shutdown: &Shutdown, format: impl Fn() -> QueryLogFormat) {
        let mut interval = WRITE_INTERVAL;
        loop {
            // Read before the queue is emptied, so that entries queued before the stop are written.
            let is_last = shutdown.is_stopped();
            interval = match self.log.queue.is_empty() {
                true => (2 * interval).min(WRITE_INTERVAL_IDLE),
                false => WRITE_INTERVAL,
            };
            self.write_all(format());
            if is_last {
                return;
            }
            shutdown.poll(&mut [], Some(interval));
        }
    }

    /// Writes what is in the queue now.
    fn write_all(&mut self, format: QueryLogFormat) {
        if self.log.reopen.swap(false, Ordering::Relaxed) {
            match open(&self.log.path) {
                Ok(file) => (self.file, self.torn) = (file, false),
                Err(error) => {
                    tracing::error!(path = %self.log.path.display(), %error, "cannot reopen the query log; continuing with the old file");
                }
            }
        }
        let mut text = String::new();
        let mut lines = 0;
        // Bounded, so that the lines are written even if the queue is filled as fast as it is
        // emptied.
        for _ in 0..self.log.queue.capacity() {
            let Some(entry) = self.log.queue.pop() else { break };
            entry.write(format, &mut text);
            lines += 1;
            if text.len() >= WRITE_LEN {
                self.write(&mut text, &mut lines);
            }
        }
        self.write(&mut text, &mut lines);
    }

    fn write(&mut self, text: &mut String, lines: &mut u64) {
        if text.is_empty() {
            return;
        }
        if self.torn {
            text.insert(0, '\n');
        }
        match self.file.write_all(text.as_bytes()) {
            Ok(()) => {
                self.torn = false;
                self.log.written.fetch_add(*lines, Ordering::Relaxed);
            }
            Err(error) => {
                // Logged once for each series of failures, not once for each line.
                if !self.torn {
                    tracing::error!(path = %self.log.path.display(), %error, "the query log cannot be written");
                }
                self.torn = true;
                self.log.failed.fetch_add(*lines, Ordering::Relaxed);
            }
        }
        text.clear();
        *lines = 0;
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(MODE);
    match options.clone().create_new(true).open(path) {
        // Sets the mode explicitly, so that the group may read the file under any umask.
        Ok(file) => file.set_permissions(Permissions::from_mode(MODE)).map(|()| file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(change: impl FnOnce(&mut QueryLogSettings)) -> (QueryLogTap, QueryLogWriter, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = QueryLogSettings {
            path: Some(directory.path().join("query.log")),
            ..QueryLogSettings::default()
        };
        change(&mut settings);
        let (log, writer) = QueryLog::open(&settings).unwrap().unwrap();
        (QueryLogTap::new(log, &settings), writer, directory)
    }

    fn record(tap: &mut QueryLogTap, counters: &Counters, ip: &str) {
        tap.record(Transport::Udp, ip.parse().unwrap(), b"", ResponseCode::SUCCESS, counters);
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_second_has_as_many_lines_as_told_over_all_workers_and_the_rest_is_counted() {
        let (tap, mut writer, _directory) =
            log(|settings| (settings.lines_per_second, settings.queue_lines) = (10, 64));
        let counters = [Counters::default(), Counters::default()];
        let (log, other) = (Arc::clone(&tap.log), QueryLogTap::new(Arc::clone(&tap.log), &tap.settings));
        let mut taps = [tap, other];
        let start = log.started;
        for second in 0..3 {
            for (tap, counters) in taps.iter_mut().zip(&counters) {
                tap.set_time(start + Duration::from_secs(second), Duration::ZERO);
                (0..8).for_each(|_| record(tap, counters, "192.0.2.1"));
            }
        }
        let sum = |counter: fn(&Counters) -> u64| counters.iter().map(counter).sum::<u64>();
        assert_eq!((sum(|c| c.query_log_queued.get()), sum(|c| c.query_log_dropped_rate.get())), (30, 18));
        // A worker with an older clock uses the limit of the current second.
        taps[0].set_time(start, Duration::ZERO);
        record(&mut taps[0], &counters[0], "192.0.2.1");
        assert_eq!(sum(|c| c.query_log_dropped_rate.get()), 19);
        writer.write_all(QueryLogFormat::Handle);
        assert_eq!(log.counts(), (30, 0));
        assert_eq!(lines(&log.path).len(), 30);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.queue_lines = 4);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..6).for_each(|_| record(&mut tap, &counters, "192.0.2.1"));
        assert_eq!((counters.query_log_queued.get(), counters.query_log_dropped_full.get()), (4, 2));
        writer.write_all(QueryLogFormat::Handle);
        record(&mut tap, &counters, "192.0.2.1");
        assert_eq!(counters.query_log_queued.get(), 5, "there is room again");
        let shutdown = Shutdown::new().unwrap();
        shutdown.stop();
        writer.run(&shutdown, || QueryLogFormat::Handle);
        assert_eq!(lines(&log.path).len(), 5, "what is left is written at the end");
    }

    #[test]
    fn one_of_some_is_logged() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.sample_every = 3);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..8).for_each(|_| record(&mut tap, &counters, "192.0.2.1"));
        writer.write_all(QueryLogFormat::Handle);
        assert_eq!(lines(&log.path).len(), 2);
    }

    #[test]
    fn other_settings_hold_from_the_next_answer_on() {
        let (mut tap, mut writer, _directory) =
            log(|settings| (settings.sample_every, settings.lines_per_second) = (3, 1));
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..8).for_each(|_| record(&mut tap, &counters, "192.0.2.77"));
        assert_eq!((counters.query_log_queued.get(), counters.query_log_dropped_rate.get()), (1, 1));
        tap.set(&QueryLogSettings { whole_addresses: true, ..QueryLogSettings::default() });
        record(&mut tap, &counters, "192.0.2.77");
        writer.write_all(QueryLogFormat::Json);
        let lines = lines(&log.path);
        assert!(lines.len() == 2 && lines[0].contains("192.0.2.0"), "{lines:?}");
        assert!(
            lines[1].contains("192.0.2.77"),
            "all are logged, whole, and the second has room again: {lines:?}"
        );
    }

    #[test]
    fn an_answer_that_took_longer_has_the_time_at_which_it_was_asked_for() {
        let (mut tap, _writer, _directory) = log(|_| {});
        let counters = Counters::default();
        let since = Instant::now();
        tap.set_time(since + Duration::from_millis(40), Duration::from_secs(1_800_000_000));
        let (ip, code) = ([192, 0, 2, 1].into(), ResponseCode::SUCCESS);
        tap.record_since(since, Transport::Tcp, ip, b"", code, &counters);
        let entry = tap.log.queue.pop().unwrap();
        assert_eq!(entry.unix_us, 1_799_999_999_960_000);
    }

    #[test]
    fn addresses_are_cut_unless_told_otherwise() {
        let cut = |ip: &str, change: fn(&mut QueryLogSettings)| {
            let mut settings = QueryLogSettings::default();
            change(&mut settings);
            let (ip, bits) = settings.cut(ip.parse().unwrap());
            format!("{ip}/{bits}")
        };
        assert_eq!(cut("192.0.2.77", |_| {}), "192.0.2.0/24");
        assert_eq!(cut("::ffff:192.0.2.77", |_| {}), "192.0.2.0/24");
        assert_eq!(cut("2001:db8:1:2:3:4:5:6", |_| {}), "2001:db8:1::/48");
        assert_eq!(cut("192.0.2.77", |settings| settings.ipv4_bits = 0), "0.0.0.0/0");
        assert_eq!(cut("2001:db8::1", |settings| settings.ipv6_bits = 0), "::/0");
        assert_eq!(cut("192.0.2.77", |settings| settings.whole_addresses = true), "192.0.2.77/32");
        assert_eq!(cut("2001:db8::77", |settings| settings.whole_addresses = true), "2001:db8::77/128");
    }

    #[test]
    fn a_renamed_file_goes_on_until_it_is_opened_again() {
        let (mut tap, mut writer, directory) = log(|_| {});
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        let mut one = |writer: &mut QueryLogWriter| {
            record(&mut tap, &counters, "192.0.2.1");
            writer.write_all(QueryLogFormat::Handle);
        };
        one(&mut writer);
        let mode = std::fs::metadata(&log.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE, "{mode:o}");
        let old = directory.path().join("query.log.1");
        std::fs::rename(&log.path, &old).unwrap();
        one(&mut writer);
        assert!(!log.path.exists());
        log.reopen();
        one(&mut writer);
        assert_eq!((lines(&old).len(), lines(&log.path).len()), (2, 1));
        // The directory is gone; logging continues into the open file.
        let moved = directory.path().join("query.log.2");
        std::fs::rename(&log.path, &moved).unwrap();
        std::fs::create_dir(&log.path).unwrap();
        log.reopen();
        one(&mut writer);
        assert_eq!((lines(&moved).len(), log.counts()), (2, (4, 0)));
    }

    #[test]
    fn a_file_that_cannot_be_written_costs_lines_and_nothing_else() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.path = Some("/dev/full".into()));
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        for _ in 0..3 {
            record(&mut tap, &counters, "192.0.2.1");
            writer.write_all(QueryLogFormat::Handle);
        }
        assert_eq!((log.counts(), counters.query_log_queued.get()), ((0, 3), 3));
        let settings =
            QueryLogSettings { path: Some("/nowhere/query.log".into()), ..QueryLogSettings::default() };
        let error = format!("{:#}", QueryLog::open(&settings).unwrap_err());
        assert!(error.contains("/nowhere/query.log"), "{error}");
        assert!(QueryLog::open(&QueryLogSettings::default()).unwrap().is_none(), "off unless it is named");
    }
}
