//! A log line for each answer, or for a sample, which never blocks a worker.
//!
//! - Workers put entries into a queue of fixed size; one thread writes them. When the queue is
//!   full, or the limit of lines per second is reached, entries are dropped and counted.
//! - Addresses are truncated before they enter the queue, unless `whole_addresses` is set.
//! - The file is opened again on SIGHUP and on the command `reopen-log`, for log rotation.

pub mod line;
pub mod settings;

use crate::counters::{Counters, Transport};
use handle_daemon::line_log::{LineCounts, LineLog, LineLogError, LineLogWriter};
use handle_proto::ResponseCode;
use line::{QueryLogEntry, RequestSummary};
pub use settings::{QueryLogFormat, QueryLogSettings};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The writing end of the log.
pub type QueryLogWriter = LineLogWriter<QueryLogEntry>;

/// The log: the queue that workers fill, and the lines of the current second.
#[derive(Debug)]
pub struct QueryLog {
    lines: Arc<LineLog<QueryLogEntry>>,
    /// Start of the log, from which seconds are counted; a wall clock that is set back would repeat
    /// some.
    started: Instant,
    /// A second in the upper half, and the number of its lines in the lower.
    second: AtomicU64,
}

impl QueryLog {
    /// Opens the file that `settings` name, and returns the log with its writer; `None` when no
    /// file is set.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(settings: &QueryLogSettings) -> Result<Option<(Arc<Self>, QueryLogWriter)>, LineLogError> {
        if settings.path.is_none() {
            return Ok(None);
        }
        let lines = LineLog::new("the query log", settings.path.clone(), settings.queue_lines);
        let lines = Arc::new(lines);
        let writer = lines.writer()?;
        Ok(Some((Arc::new(Self { lines, started: Instant::now(), second: AtomicU64::new(0) }), writer)))
    }

    /// Opens the file again before the next line, because it was renamed.
    pub fn reopen(&self) {
        self.lines.reopen();
    }

    /// Number of lines so far; those for which the queue had no capacity are counted elsewhere.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        self.lines.counts()
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
        let (ip, ip_bits) = self.settings.cut(ip);
        let mut entry = QueryLogEntry::new(transport, ip, ip_bits, RequestSummary::read(request), code);
        let before = self.received.saturating_duration_since(since).as_micros();
        entry.unix_us = self.unix_us.saturating_sub(i64::try_from(before).unwrap_or(i64::MAX));
        entry.took_us = u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX);
        match self.log.lines.push(entry) {
            true => counters.query_log_queued.add(1),
            false => counters.query_log_dropped_full.add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::line_log::MODE;
    use handle_daemon::shutdown::Shutdown;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};

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

    /// The file of the log.
    fn path_of(tap: &QueryLogTap) -> PathBuf {
        tap.settings.path.clone().unwrap()
    }

    fn record(tap: &mut QueryLogTap, counters: &Counters, ip: &str) {
        tap.record(Transport::Udp, ip.parse().unwrap(), b"", ResponseCode::SUCCESS, counters);
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_second_has_as_many_lines_as_configured_over_all_workers_and_the_rest_is_counted() {
        let (tap, mut writer, _directory) =
            log(|settings| (settings.lines_per_second, settings.queue_lines) = (10, 64));
        let path = path_of(&tap);
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
        writer.write_queue(QueryLogFormat::Handle, QueryLogEntry::write);
        assert_eq!(log.counts(), LineCounts { written: 30, lost: 0 });
        assert_eq!(lines(&path).len(), 30);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.queue_lines = 4);
        let path = path_of(&tap);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..6).for_each(|_| record(&mut tap, &counters, "192.0.2.1"));
        assert_eq!((counters.query_log_queued.get(), counters.query_log_dropped_full.get()), (4, 2));
        writer.write_queue(QueryLogFormat::Handle, QueryLogEntry::write);
        record(&mut tap, &counters, "192.0.2.1");
        assert_eq!(counters.query_log_queued.get(), 5, "there is room again");
        let shutdown = Shutdown::new().unwrap();
        shutdown.stop();
        writer.run(&shutdown, || QueryLogFormat::Handle, QueryLogEntry::write);
        assert_eq!(lines(&path).len(), 5, "what is left is written at the end");
    }

    #[test]
    fn one_of_some_is_logged() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.sample_every = 3);
        let path = path_of(&tap);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..8).for_each(|_| record(&mut tap, &counters, "192.0.2.1"));
        writer.write_queue(QueryLogFormat::Handle, QueryLogEntry::write);
        assert_eq!(lines(&path).len(), 2);
    }

    #[test]
    fn other_settings_hold_from_the_next_answer_on() {
        let (mut tap, mut writer, _directory) =
            log(|settings| (settings.sample_every, settings.lines_per_second) = (3, 1));
        let path = path_of(&tap);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        tap.set_time(log.started, Duration::ZERO);
        (0..8).for_each(|_| record(&mut tap, &counters, "192.0.2.77"));
        assert_eq!((counters.query_log_queued.get(), counters.query_log_dropped_rate.get()), (1, 1));
        tap.set(&QueryLogSettings { whole_addresses: true, ..QueryLogSettings::default() });
        record(&mut tap, &counters, "192.0.2.77");
        writer.write_queue(QueryLogFormat::Json, QueryLogEntry::write);
        let lines = lines(&path);
        assert!(lines.len() == 2 && lines[0].contains("192.0.2.0"), "{lines:?}");
        assert!(
            lines[1].contains("192.0.2.77"),
            "all are logged, whole, and the second has room again: {lines:?}"
        );
    }

    #[test]
    fn an_answer_that_took_longer_has_the_time_at_which_it_was_asked_for() {
        let (mut tap, mut writer, _directory) = log(|_| {});
        let (path, counters) = (path_of(&tap), Counters::default());
        let since = Instant::now();
        tap.set_time(since + Duration::from_millis(40), Duration::from_secs(1_800_000_000));
        let (ip, code) = ([192, 0, 2, 1].into(), ResponseCode::SUCCESS);
        tap.record_since(since, Transport::Tcp, ip, b"", code, &counters);
        writer.write_queue(QueryLogFormat::Json, QueryLogEntry::write);
        let lines = lines(&path);
        assert!(lines[0].contains("\"time\":\"2027-01-15T07:59:59.960000Z\""), "{lines:?}");
    }

    #[test]
    fn addresses_are_cut_unless_configured_otherwise() {
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
        let path = path_of(&tap);
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        let mut one = |writer: &mut QueryLogWriter| {
            record(&mut tap, &counters, "192.0.2.1");
            writer.write_queue(QueryLogFormat::Handle, QueryLogEntry::write);
        };
        one(&mut writer);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE, "{mode:o}");
        let old = directory.path().join("query.log.1");
        std::fs::rename(&path, &old).unwrap();
        one(&mut writer);
        assert!(!path.exists());
        log.reopen();
        one(&mut writer);
        assert_eq!((lines(&old).len(), lines(&path).len()), (2, 1));
        // The directory is gone; logging continues into the open file.
        let moved = directory.path().join("query.log.2");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        log.reopen();
        one(&mut writer);
        assert_eq!((lines(&moved).len(), log.counts()), (2, LineCounts { written: 4, lost: 0 }));
    }

    #[test]
    fn a_file_that_cannot_be_written_costs_lines_and_nothing_else() {
        let (mut tap, mut writer, _directory) = log(|settings| settings.path = Some("/dev/full".into()));
        let (counters, log) = (Counters::default(), Arc::clone(&tap.log));
        for _ in 0..3 {
            record(&mut tap, &counters, "192.0.2.1");
            writer.write_queue(QueryLogFormat::Handle, QueryLogEntry::write);
        }
        assert_eq!((log.counts(), counters.query_log_queued.get()), (LineCounts { written: 0, lost: 3 }, 3));
        let settings =
            QueryLogSettings { path: Some("/nowhere/query.log".into()), ..QueryLogSettings::default() };
        let error = QueryLog::open(&settings).unwrap_err().to_string();
        assert!(error.contains("/nowhere/query.log"), "{error}");
        assert!(QueryLog::open(&QueryLogSettings::default()).unwrap().is_none(), "off unless it is named");
    }
}
