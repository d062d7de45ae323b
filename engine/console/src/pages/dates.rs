//! Times and durations for people.

use super::{Messages, fill};
use handle_proto::value::Ttl;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A time, in ISO 8601 and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DateView {
    /// In ISO 8601.
    pub iso: String,
    /// In words.
    pub text: String,
}

/// A Unix time. Seconds are signed, as in deployed software.
#[must_use]
pub fn date(unix_s: i32, texts: &Messages) -> DateView {
    let time = Timestamp::from_second(unix_s.into()).expect("any 32 bits are in range");
    let civil = time.to_zoned(TimeZone::UTC).datetime();
    let month = texts.months[usize::from(civil.month().unsigned_abs()) - 1];
    let text = texts
        .date
        .replace("{day}", &civil.day().to_string())
        .replace("{month}", month)
        .replace("{year}", &civil.year().to_string())
        .replace("{time}", &format!("{:02}:{:02}", civil.hour(), civil.minute()));
    DateView { iso: time.to_string(), text }
}

/// A duration in its two largest units.
#[must_use]
pub fn duration(seconds: u32, texts: &Messages) -> String {
    let mut rest = seconds;
    let mut parts = vec![];
    for (unit_s, (one, many)) in [86_400, 3600, 60, 1].into_iter().zip(texts.units) {
        let count = rest / unit_s;
        rest %= unit_s;
        match count {
            0 => {}
            1 => parts.push(fill(one, 1)),
            count => parts.push(fill(many, count)),
        }
    }
    parts.truncate(2);
    if parts.is_empty() { fill(texts.units[3].1, 0) } else { parts.join(" ") }
}

/// A time to live.
#[must_use]
pub fn ttl(ttl: Ttl, texts: &Messages) -> String {
    match ttl.kind {
        Ttl::RELATIVE => duration(u32::try_from(ttl.seconds).unwrap_or(0), texts),
        _ => fill(texts.until, date(ttl.seconds, texts).text),
    }
}
