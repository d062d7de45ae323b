//! Time series of a run: CSV for spreadsheets, and interval logs for the tools of HdrHistogram.

use std::io::{self, BufWriter, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::show::report::{RunReport, SecondCounts};

/// The columns of [`write_csv`].
const COLUMNS: [&str; 12] = [
    "elapsed_s",
    "sent",
    "answered",
    "sent_per_s",
    "answered_per_s",
    "lost_so_far",
    "late",
    "mismatched",
    "response_p50_ns",
    "response_p99_ns",
    "response_max_ns",
    "lag_max_ns",
];

/// Writes the results of each second, one line each, below a line of column names.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_csv(report: &RunReport, mut out: impl Write) -> io::Result<()> {
    writeln!(out, "{}", COLUMNS.join(","))?;
    for second in &report.seconds {
        let SecondCounts { elapsed_s, sent, answered, sent_per_s, answered_per_s, lost_so_far, .. } = second;
        write!(out, "{elapsed_s:.3},{sent},{answered},{sent_per_s:.1},{answered_per_s:.1},{lost_so_far},")?;
        let SecondCounts {
            late,
            mismatched,
            response_p50_ns,
            response_p99_ns,
            response_max_ns,
            lag_max_ns,
            ..
        } = second;
        writeln!(
            out,
            "{late},{mismatched},{response_p50_ns},{response_p99_ns},{response_max_ns},{lag_max_ns}"
        )?;
    }
    Ok(())
}

/// Writes the response times of each second during the run, in the format of HdrHistogram logs.
#[derive(Debug)]
pub struct HistogramLog<W: Write> {
    out: BufWriter<W>,
    begun: bool,
}

impl<W: Write> HistogramLog<W> {
    /// Writes to `out`, which is flushed after each second.
    pub fn new(out: W) -> Self {
        Self { out: BufWriter::new(out), begun: false }
    }

    /// Adds a second.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn add(&mut self, second: &SecondCounts) -> io::Result<()> {
        let Some(histogram) = &second.histogram else { return Ok(()) };
        // The start of the log is one second before the first shown second ends.
        let begun = SystemTime::now() - Duration::from_secs_f64(second.elapsed_s);
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        if !self.begun {
            builder.add_comment("handle-loadgen: response times in nanoseconds").with_start_time(begun);
        }
        let mut writer = builder.begin_log_with(&mut self.out, &mut serializer)?;
        let start = Duration::from_secs_f64((second.elapsed_s - second.len_s).max(0.0));
        writer
            .write_histogram(&**histogram, start, Duration::from_secs_f64(second.len_s), None)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        self.begun = true;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::latency::histogram;
    use crate::show::report::tests::report;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use std::sync::Arc;

    #[test]
    fn csv_has_a_line_for_each_second() {
        let mut out = Vec::new();
        write_csv(&report(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], COLUMNS.join(","));
        assert_eq!(lines[1], "1.000,1000,990,1000.0,990.0,10,0,0,501000,2000000,2000000,10000");
        assert!(lines.iter().all(|line| line.split(',').count() == COLUMNS.len()));
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_log_is_read_back_as_it_was_measured() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = HistogramLog::new(file.reopen().unwrap());
        for number in 1..4 {
            let mut times: Histogram<u32> = histogram(2);
            times.record_n(1_000_000 * number, 50).unwrap();
            let elapsed_s = number as f64;
            let histogram = Some(Arc::new(times));
            log.add(&SecondCounts { elapsed_s, len_s: 1.0, histogram, ..SecondCounts::default() }).unwrap();
        }
        let text = std::fs::read(file.path()).unwrap();
        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(&text) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let bytes = data_encoding::BASE64.decode(interval.encoded_histogram().as_bytes()).unwrap();
                assert_eq!(bytes[..4], [0x1c, 0x84, 0x93, 0x14], "compressed, version 2");
                let times: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                found.push((interval.start_timestamp().as_secs(), times.len(), times.max() / 1_000_000));
            }
        }
        assert_eq!(found, [(0, 50, 1), (1, 50, 2), (2, 50, 3)]);
        // The rules of readers in other languages: comments, one start, and four fields.
        let text = String::from_utf8(text).unwrap();
        let (comments, lines): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
        let start = "#[StartTime: ";
        assert_eq!(comments.iter().filter(|line| line.starts_with(start)).count(), 1, "{text}");
        for (number, line) in lines.iter().enumerate() {
            let fields: Vec<_> = line.split(',').collect();
            assert_eq!(fields[..2], [&format!("{number}.000")[..], "1.000"], "{line}");
            assert!(fields.len() == 4 && fields[2].parse::<f64>().is_ok(), "{line}");
        }
    }
}
