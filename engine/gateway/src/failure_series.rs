//! Log lines about a service that does not answer: one for a series of failures, one for its end.
//!
//! Everybody can make requests that need the service, so lines do not grow with requests.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between the starts of two series that are logged. A failure that lasts longer is
/// logged after this time.
const PAUSE: Duration = Duration::from_secs(60);

/// Texts of the log for a series.
#[derive(Clone, Copy, Debug)]
pub struct SeriesTexts {
    /// Text for its start.
    pub failed: &'static str,
    /// Text for its end.
    pub recovered: &'static str,
}

/// The texts about `handle-admin`.
const ADMIN_TEXTS: SeriesTexts =
    SeriesTexts { failed: "handle-admin does not answer", recovered: "handle-admin answers again" };

/// The failures of one service since it answered last.
#[derive(Debug)]
pub struct FailureSeries {
    /// Where the service is.
    service: String,
    texts: SeriesTexts,
    series: Mutex<Series>,
}

#[derive(Debug, Default)]
struct Series {
    /// Whether this series was logged.
    is_logged: bool,
    /// When a series was logged last.
    logged_at: Option<Instant>,
}

impl Series {
    /// Notes a failure. Returns whether it is logged.
    fn fail(&mut self, now: Instant) -> bool {
        let may_log = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= PAUSE);
        if self.is_logged || !may_log {
            return false;
        }
        (self.is_logged, self.logged_at) = (true, Some(now));
        true
    }

    /// Notes an answer. Returns whether it is logged: it ends a series that was logged.
    const fn answer(&mut self) -> bool {
        std::mem::replace(&mut self.is_logged, false)
    }
}

impl FailureSeries {
    /// That of `handle-admin` at `service`, which answers as far as is known.
    #[must_use]
    pub fn new(service: impl Display) -> Self {
        Self::with_texts(service, ADMIN_TEXTS)
    }

    /// That of another service.
    #[must_use]
    pub fn with_texts(service: impl Display, texts: SeriesTexts) -> Self {
        Self { service: service.to_string(), texts, series: Mutex::default() }
    }

    /// Notes that the service answered, or why it did not, at `now`. Returns whether that was
    /// logged.
    pub fn note<E: Display>(&self, failure: Option<E>, now: Instant) -> bool {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let (service, texts) = (&self.service, self.texts);
        match failure {
            Some(error) => {
                let is_logged = series.fail(now);
                if is_logged {
                    tracing::warn!(%service, %error, "{}", texts.failed);
                }
                is_logged
            }
            None => {
                let is_logged = series.answer();
                if is_logged {
                    tracing::info!(%service, "{}", texts.recovered);
                }
                is_logged
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Option<&str> = Some("refused");
    const ANSWERED: Option<&str> = None;

    #[test]
    fn a_series_of_failures_is_logged_once_and_so_is_its_end() {
        let (series, start) = (FailureSeries::new("x"), Instant::now());
        assert!(!series.note(ANSWERED, start), "it has always answered");
        assert!(series.note(FAILED, start));
        for second in 1..300 {
            assert!(!series.note(FAILED, start + Duration::from_secs(second)), "{second}");
        }
        assert!(series.note(ANSWERED, start) && !series.note(ANSWERED, start));
        assert!(series.note(FAILED, start + Duration::from_secs(300)));
    }

    #[test]
    fn a_service_that_fails_at_times_has_few_lines() {
        let (series, start) = (FailureSeries::new("x"), Instant::now());
        let mut count = 0;
        for at in 0..600_u64 {
            let now = start + Duration::from_millis(100 * at);
            count += u32::from(series.note(FAILED, now)) + u32::from(series.note(ANSWERED, now));
        }
        assert_eq!(count, 2, "within a minute");
        let at = |second| start + Duration::from_secs(second);
        assert!(series.note(FAILED, at(60)) && series.note(ANSWERED, at(60)));
        assert!(!series.note(FAILED, at(61)) && !series.note(FAILED, at(119)));
        assert!(series.note(FAILED, at(120)), "a failure that lasts is logged");
    }
}
