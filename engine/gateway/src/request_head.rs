//! What the checks and the fast path need to know about the headers of a request, found in one
//! pass.

use crate::reply::names_html;
use hyper::header::{self, HeaderMap, HeaderValue};

/// Facts about the headers of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderFacts<'r> {
    /// The first `Host`.
    pub host: Option<&'r HeaderValue>,
    /// Number of `Host` headers.
    pub hosts_count: usize,
    /// Whether `Accept` names HTML.
    pub names_html: bool,
    /// Whether there are credentials.
    pub has_credentials: bool,
    /// The first `Origin`.
    pub origin: Option<&'r HeaderValue>,
}

impl<'r> HeaderFacts<'r> {
    /// The facts about `headers`.
    #[must_use]
    pub fn of(headers: &'r HeaderMap) -> Self {
        let mut facts = Self::default();
        for (name, value) in headers {
            match *name {
                header::HOST => {
                    facts.host = facts.host.or(Some(value));
                    facts.hosts_count += 1;
                }
                header::ACCEPT => facts.names_html |= names_html(value),
                header::AUTHORIZATION => facts.has_credentials = true,
                header::ORIGIN => facts.origin = facts.origin.or(Some(value)),
                _ => {}
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_header_is_seen_wherever_it_stands() {
        let list = [
            ("host", "a"),
            ("accept", "*/*"),
            ("host", "b"),
            ("origin", "https://a.example"),
            ("accept", "text/html"),
            ("origin", "https://b.example"),
        ];
        let headers: HeaderMap = list
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect();
        let facts = HeaderFacts::of(&headers);
        assert_eq!((facts.hosts_count, facts.names_html), (2, true));
        assert_eq!(facts.origin, headers.get(header::ORIGIN));
        assert_eq!(facts.host, headers.get(header::HOST));
        assert!(!facts.has_credentials);
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("x"))]);
        assert!(HeaderFacts::of(&headers).has_credentials);
    }
}
