//! Metrics. Each is declared in one place, from which everything else about it is generated.
//!
//! - [`metrics!`](crate::metrics!) declares metrics with the expressions that read their values.
//! - [`event_counters!`](crate::event_counters!) declares counters of a process; each of them is a
//!   metric.
//! - [`MetricsText`] writes the values as OpenMetrics text.
//! - From a [`MetricGroup`], the tables on the pages of metrics in `docs/operations` are made.
//!
//! ```
//! use handle_daemon::metrics::{EventCounter, MetricsText};
//!
//! handle_daemon::event_counters! {
//!     /// Counters of a process.
//!     pub struct Counters of EventCounter, "example_" {
//!         /// Requests answered.
//!         requests,
//!     }
//! }
//!
//! handle_daemon::metrics! {
//!     /// Metrics of the store.
//!     fn store_metrics<'s>(u64), "example_store_" {
//!         /// Records in the store.
//!         gauge records = |store| *store;
//!     }
//! }
//!
//! let counters = Counters::default();
//! counters.requests.add();
//! let mut text = MetricsText::default();
//! text.add_all(Counters::rows(), counters.values());
//! text.add_table(store_metrics(), &7);
//! let text = text.finish().unwrap();
//! assert!(text.contains("# HELP example_requests Requests answered.\n"));
//! assert!(text.contains("\nexample_requests_total 1\n") && text.contains("\nexample_store_records 7\n"));
//! ```

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Durations, counted by their length.
    Histogram,
    /// Facts in labels, with the number 1.
    Info,
}

impl MetricKind {
    /// The name of the kind, as in OpenMetrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The suffix of the names of series of this kind.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// Everything about a metric but its value.
#[derive(Clone, Debug)]
pub struct MetricRow {
    /// Its name, without the suffix of its kind.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// Its description, in sentences.
    pub help: String,
    /// Values of the first label, with their meaning; empty if `help` says enough.
    pub values: Vec<(&'static str, &'static str)>,
}

impl MetricRow {
    /// A metric that `help`, a doc comment, describes.
    #[must_use]
    pub fn new(kind: MetricKind, name: &'static str, labels: &[&'static str], help: &str) -> Self {
        Self { name, kind, labels: labels.to_vec(), help: help.trim_ascii().to_owned(), values: Vec::new() }
    }
}

/// Metrics that share a table of a page.
#[derive(Clone, Debug)]
pub struct MetricGroup {
    /// The name of the group, which marks the place of the table in the page.
    pub name: &'static str,
    /// The metrics, in their order.
    pub rows: Vec<MetricRow>,
}

/// One number of a series.
#[derive(Clone, Debug)]
pub enum MetricNumber {
    /// A whole number.
    Count(u64),
    /// A number with a fraction.
    Fraction(f64),
    /// Durations.
    Durations {
        /// Their sum, in seconds.
        sum_s: f64,
        /// Their number.
        count: u64,
        /// Upper bounds in seconds, each with the durations between it and the one before.
        buckets: Vec<(f64, u64)>,
    },
    /// No number: the information is in the labels.
    Labels,
}

/// The values of a metric: a number for each combination of values of its labels, or none if its
/// part of the process is not in use.
#[derive(Clone, Debug)]
pub struct MetricSeries(Option<Vec<(Vec<String>, MetricNumber)>>);

impl MetricSeries {
    /// A number for each value of one label.
    pub fn by_label<L: ToString, N: Into<MetricNumber>>(numbers: impl IntoIterator<Item = (L, N)>) -> Self {
        Self::by_labels(numbers.into_iter().map(|(label, number)| ([label.to_string()], number)))
    }

    /// A number for each combination of values of several labels.
    pub fn by_labels<const LABELS: usize, N: Into<MetricNumber>>(
        numbers: impl IntoIterator<Item = ([String; LABELS], N)>,
    ) -> Self {
        Self::with_labels(numbers.into_iter().map(|(labels, number)| (labels.to_vec(), number)))
    }

    /// The same, for a number of labels that is not known to the type.
    pub fn with_labels<N: Into<MetricNumber>>(numbers: impl IntoIterator<Item = (Vec<String>, N)>) -> Self {
        Self(Some(numbers.into_iter().map(|(labels, number)| (labels, number.into())).collect()))
    }
}

impl From<MetricNumber> for MetricSeries {
    fn from(number: MetricNumber) -> Self {
        Self(Some(vec![(Vec::new(), number)]))
    }
}

impl<S: Into<Self>> From<Option<S>> for MetricSeries {
    fn from(series: Option<S>) -> Self {
        series.map_or(Self(None), Into::into)
    }
}

macro_rules! numbers {
    ($($from:ty, $value:ident => $number:expr;)*) => { $(
        impl From<$from> for MetricNumber {
            fn from($value: $from) -> Self {
                $number
            }
        }

        impl From<$from> for MetricSeries {
            fn from(value: $from) -> Self {
                MetricNumber::from(value).into()
            }
        }
    )* };
}

numbers! {
    u64, count => Self::Count(count);
    usize, count => Self::Count(count as u64);
    bool, is_so => Self::Count(is_so.into());
    f64, number => Self::Fraction(number);
}

/// A metric, and the function that reads its value from `S`.
#[derive(Clone, Debug)]
pub struct Metric<S> {
    /// The metric.
    pub row: MetricRow,
    /// Reads its value.
    pub read: fn(&S) -> MetricSeries,
}

/// The rows of a table of metrics.
pub fn rows<S>(table: Vec<Metric<S>>) -> Vec<MetricRow> {
    table.into_iter().map(|metric| metric.row).collect()
}

/// A counter that any thread may increment.
#[derive(Debug, Default)]
pub struct EventCounter(AtomicU64);

impl EventCounter {
    /// Adds one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `count`.
    pub fn add_many(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Collects metrics with their values, and writes them as OpenMetrics text.
#[derive(Debug, Default)]
pub struct MetricsText(Registry);

impl MetricsText {
    /// Adds a metric with its values.
    pub fn add(&mut self, row: MetricRow, values: impl Into<MetricSeries>) {
        let MetricSeries(Some(series)) = values.into() else { return };
        // The registry adds the last full stop.
        let help = row.help.trim_end_matches('.').replace('`', "");
        let (name, kind) = (row.name, row.kind);
        self.0.register(name, help, EncodedMetric { kind, labels: row.labels, series });
    }

    /// Adds metrics with one value each.
    pub fn add_all(
        &mut self,
        rows: Vec<MetricRow>,
        values: impl IntoIterator<Item = impl Into<MetricSeries>>,
    ) {
        rows.into_iter().zip(values).for_each(|(row, value)| self.add(row, value));
    }

    /// Adds all metrics of `table`, read from `source`.
    pub fn add_table<S>(&mut self, table: Vec<Metric<S>>, source: &S) {
        table.into_iter().for_each(|metric| self.add(metric.row, (metric.read)(source)));
    }

    /// The text.
    ///
    /// # Errors
    /// When the library refuses a metric.
    pub fn finish(self) -> Result<String, String> {
        let mut text = String::new();
        encode(&mut text, &self.0).map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// A metric with its values, as the library encodes it.
#[derive(Debug)]
struct EncodedMetric {
    kind: MetricKind,
    labels: Vec<&'static str>,
    series: Vec<(Vec<String>, MetricNumber)>,
}

/// Labels of one series.
type LabelPairs<'l> = Vec<(&'static str, &'l str)>;

impl EncodeMetric for EncodedMetric {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (values, number) in &self.series {
            debug_assert_eq!(values.len(), self.labels.len(), "{:?}", self.labels);
            let labels: LabelPairs<'_> =
                self.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            if self.kind == MetricKind::Info {
                encoder.encode_info(&labels)?;
            } else if labels.is_empty() {
                encode_number(&mut encoder, self.kind, number)?;
            } else {
                encode_number(&mut encoder.encode_family(&labels)?, self.kind, number)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Histogram => MetricType::Histogram,
            MetricKind::Info => MetricType::Info,
        }
    }
}

fn encode_number(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricKind,
    number: &MetricNumber,
) -> Result<(), fmt::Error> {
    match (kind, number) {
        (MetricKind::Counter, MetricNumber::Count(count)) => {
            encoder.encode_counter::<LabelPairs<'_>, _, f64>(count, None)
        }
        (MetricKind::Counter, MetricNumber::Fraction(number)) => {
            encoder.encode_counter::<LabelPairs<'_>, _, f64>(number, None)
        }
        (MetricKind::Gauge, MetricNumber::Count(count)) => encoder.encode_gauge(count),
        (MetricKind::Gauge, MetricNumber::Fraction(number)) => encoder.encode_gauge(number),
        (MetricKind::Histogram, MetricNumber::Durations { sum_s, count, buckets }) => {
            encoder.encode_histogram::<LabelPairs<'_>>(*sum_s, *count, buckets, None)
        }
        _ => Err(fmt::Error),
    }
}

/// The [`MetricKind`] that a declaration calls `counter`, `gauge`, `histogram` or `info`.
#[macro_export]
macro_rules! metric_kind {
    (counter) => {
        $crate::metrics::MetricKind::Counter
    };
    (gauge) => {
        $crate::metrics::MetricKind::Gauge
    };
    (histogram) => {
        $crate::metrics::MetricKind::Histogram
    };
    (info) => {
        $crate::metrics::MetricKind::Info
    };
}

/// Declares a function that returns a table of metrics.
///
/// A line has the kind of the metric, its name without the prefix of the table and the suffix of
/// its kind, its labels in brackets, and an expression for its value. Its doc comment is the help.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])* $vis:vis fn $table:ident<$life:lifetime>($source:ty), $prefix:literal {
            $(
                $(#[doc = $doc:literal])+
                $kind:ident $name:ident $([$($label:ident),+])? = |$source_name:ident| $value:expr;
            )*
        }
    ) => {
        $(#[$meta])*
        $vis fn $table<$life>() -> ::std::vec::Vec<$crate::metrics::Metric<$source>> {
            ::std::vec![$($crate::metrics::Metric {
                row: $crate::metrics::MetricRow::new(
                    $crate::metric_kind!($kind),
                    concat!($prefix, stringify!($name)),
                    &[$($(stringify!($label)),+)?],
                    concat!($($doc),+),
                ),
                read: |$source_name: &$source| $crate::metrics::MetricSeries::from($value),
            },)*]
        }
    };
}

/// Declares a struct of counters, each of which is a metric; its doc comment is the help.
///
/// The type behind `of` is that of each counter: it has `Default`, `Debug` and `get`. Fields that
/// are not plain counters follow `with`.
#[macro_export]
macro_rules! event_counters {
    (
        $(#[$meta:meta])* $vis:vis struct $counters:ident of $counter:ty, $prefix:literal {
            $($(#[doc = $doc:literal])+ $name:ident,)*
        } $(with { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $counters {
            $($(#[doc = $doc])+ pub $name: $counter,)*
            $($($(#[$field_meta])* pub $field: $type,)*)?
        }

        impl $counters {
            /// The name of every counter.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The counts, in the order of [`NAMES`](Self::NAMES).
            #[must_use]
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name.get(),)*]
            }

            /// The metrics, in the order of [`NAMES`](Self::NAMES).
            #[must_use]
            pub fn rows() -> ::std::vec::Vec<$crate::metrics::MetricRow> {
                ::std::vec![$($crate::metrics::MetricRow::new(
                    $crate::metrics::MetricKind::Counter,
                    concat!($prefix, stringify!($name)),
                    &[],
                    concat!($($doc),+),
                ),)*]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Reading {
        is_on: bool,
        answers: [(&'static str, u64); 2],
    }

    crate::metrics! {
        /// Metrics of every kind.
        fn table<'s>(Reading), "test_" {
            /// Answers by their
            /// `kind`.
            counter answers [kind] = |reading| MetricSeries::by_label(reading.answers);
            /// Only there while it is on.
            gauge on = |reading| reading.is_on.then_some(true);
            /// Seconds.
            counter cpu_seconds = |_it| 1.5;
            /// Times.
            histogram times [kind, way] = |_it| MetricSeries::by_labels([(
                ["a", "b"].map(str::to_owned),
                MetricNumber::Durations { sum_s: 0.5, count: 3, buckets: vec![(0.25, 1), (f64::INFINITY, 2)] },
            )]);
            /// What runs.
            info build [version] = |_it| MetricSeries::by_label([("1", MetricNumber::Labels)]);
        }
    }

    #[test]
    fn every_kind_is_written_with_its_help_and_labels() {
        let text = |is_on| {
            let mut text = MetricsText::default();
            text.add_table(table(), &Reading { is_on, answers: [("good", 3), ("bad", 0)] });
            text.finish().unwrap()
        };
        let expected = "\
            # HELP test_answers Answers by their kind.\n\
            # TYPE test_answers counter\n\
            test_answers_total{kind=\"good\"} 3\n\
            test_answers_total{kind=\"bad\"} 0\n\
            # HELP test_on Only there while it is on.\n\
            # TYPE test_on gauge\n\
            test_on 1\n\
            # HELP test_cpu_seconds Seconds.\n\
            # TYPE test_cpu_seconds counter\n\
            test_cpu_seconds_total 1.5\n\
            # HELP test_times Times.\n\
            # TYPE test_times histogram\n\
            test_times_sum{kind=\"a\",way=\"b\"} 0.5\n\
            test_times_count{kind=\"a\",way=\"b\"} 3\n\
            test_times_bucket{le=\"0.25\",kind=\"a\",way=\"b\"} 1\n\
            test_times_bucket{le=\"+Inf\",kind=\"a\",way=\"b\"} 3\n\
            # HELP test_build What runs.\n\
            # TYPE test_build info\n\
            test_build_info{version=\"1\"} 1\n\
            # EOF\n";
        assert_eq!(text(true), expected);
        let without = text(false);
        assert!(!without.contains("test_on") && without.contains("test_cpu_seconds"), "{without}");
    }

    #[test]
    fn a_value_of_another_kind_is_an_error() {
        let mut text = MetricsText::default();
        text.add(MetricRow::new(MetricKind::Histogram, "test", &[], "Times."), 1u64);
        assert!(text.finish().is_err());
    }
}
