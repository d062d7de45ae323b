//! The head of a plain request: one without a body, which everybody reads alike.
//!
//! The reader accepts much less than HTTP allows: only headers of a list, none of which is about a
//! body, an upgrade or the end of the connection; only printable ASCII; only line ends with both
//! characters. hyper reads whatever it does not accept.

use crate::admission::is_host;
use crate::reply::{BodyRequest, names_html};
use crate::request_log::LoggedRequest;
use crate::route::Route;
use hyper::{Method, Version};
use memchr::memchr;

/// Maximum number of headers. hyper refuses more than 100.
const HEADERS_MAX: usize = 64;

/// The head of a plain request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHead<'b> {
    /// Its length, with the empty line.
    pub len: usize,
    /// Whether the method is HEAD; otherwise it is GET.
    pub is_head: bool,
    /// The target.
    pub target: &'b str,
    /// Whether `Accept` names HTML.
    pub names_html: bool,
    /// The value of `Accept-Encoding`.
    pub accept_encoding: Option<&'b str>,
    /// The value of `Origin`.
    pub origin: Option<&'b str>,
    /// The value of `Referer`.
    pub referer: Option<&'b str>,
    /// The value of `User-Agent`.
    pub user_agent: Option<&'b str>,
}

/// Why bytes are not the head of a plain request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadHead {
    /// They may be the start of one.
    Incomplete,
    /// They are something else, whatever follows.
    NotPlain,
}

/// What the reader does with a header.
#[derive(Clone, Copy)]
enum HeaderUse {
    Host,
    Connection,
    Accept,
    AcceptEncoding,
    Origin,
    Referer,
    UserAgent,
    /// Neither the answer nor its line in the log depends on it.
    Ignored,
}

/// All headers of plain requests, the most frequent first.
const HEADERS: [(&str, HeaderUse); 21] = [
    ("host", HeaderUse::Host),
    ("connection", HeaderUse::Connection),
    ("user-agent", HeaderUse::UserAgent),
    ("accept", HeaderUse::Accept),
    ("accept-encoding", HeaderUse::AcceptEncoding),
    ("accept-language", HeaderUse::Ignored),
    ("referer", HeaderUse::Referer),
    ("origin", HeaderUse::Origin),
    ("cache-control", HeaderUse::Ignored),
    ("pragma", HeaderUse::Ignored),
    ("sec-fetch-site", HeaderUse::Ignored),
    ("sec-fetch-mode", HeaderUse::Ignored),
    ("sec-fetch-dest", HeaderUse::Ignored),
    ("sec-fetch-user", HeaderUse::Ignored),
    ("sec-ch-ua", HeaderUse::Ignored),
    ("sec-ch-ua-mobile", HeaderUse::Ignored),
    ("sec-ch-ua-platform", HeaderUse::Ignored),
    ("upgrade-insecure-requests", HeaderUse::Ignored),
    ("priority", HeaderUse::Ignored),
    ("dnt", HeaderUse::Ignored),
    ("from", HeaderUse::Ignored),
];

impl<'b> PlainHead<'b> {
    const EMPTY: Self = Self {
        len: 0,
        is_head: false,
        target: "",
        names_html: false,
        accept_encoding: None,
        origin: None,
        referer: None,
        user_agent: None,
    };

    /// Reads the head with which `bytes` begin.
    ///
    /// # Errors
    /// When they begin with no complete head of a plain request.
    pub fn read(bytes: &'b [u8]) -> Result<Self, UnreadHead> {
        let is_head = bytes.first() == Some(&b'H');
        let rest = after(if is_head { b"HEAD /" } else { b"GET /" }, bytes)?;
        let target_at = bytes.len() - rest.len() - 1;
        let Some(target_len) = memchr(b' ', rest) else {
            return Err(incomplete_target(rest));
        };
        let target = text(&bytes[target_at..=target_at + target_len])?;
        // The target of a complete head is checked with its lines.
        let mut rest = match after(b" HTTP/1.1\r\n", &rest[target_len..]) {
            Err(UnreadHead::Incomplete) => return Err(incomplete_target(target.as_bytes())),
            read => read?,
        };
        let mut head = Self { is_head, target, ..Self::EMPTY };
        let (mut headers_count, mut has_host) = (0, false);
        loop {
            let Some(line_len) = memchr(b'\n', rest) else {
                let is_text = has_lines(bytes, 1 + headers_count);
                return Err(if is_text { UnreadHead::Incomplete } else { UnreadHead::NotPlain });
            };
            let line = rest[..line_len].strip_suffix(b"\r").ok_or(UnreadHead::NotPlain)?;
            rest = &rest[line_len + 1..];
            if line.is_empty() {
                break;
            }
            headers_count += 1;
            let is_plain = headers_count <= HEADERS_MAX && head.add(line, &mut has_host).is_some();
            if !is_plain {
                return Err(UnreadHead::NotPlain);
            }
        }
        head.len = bytes.len() - rest.len();
        let is_plain = has_host && has_lines(&bytes[..head.len], 2 + headers_count);
        if is_plain { Ok(head) } else { Err(UnreadHead::NotPlain) }
    }

    /// Adds a header; `None` if plain requests do not have it.
    fn add(&mut self, line: &'b [u8], has_host: &mut bool) -> Option<()> {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let is_trimmed = value.first() != Some(&b' ') && value.last() != Some(&b' ');
        let (_, header_use) =
            HEADERS.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))?;
        let is_plain = is_trimmed
            && match header_use {
                HeaderUse::Host => !std::mem::replace(has_host, true) && is_host(value),
                HeaderUse::Connection => value.eq_ignore_ascii_case(b"keep-alive"),
                HeaderUse::Accept => {
                    self.names_html |= names_html(value);
                    true
                }
                HeaderUse::AcceptEncoding => self.accept_encoding.replace(text(value).ok()?).is_none(),
                HeaderUse::Origin => self.origin.replace(text(value).ok()?).is_none(),
                // Of several, the log has the first.
                HeaderUse::Referer => {
                    self.referer = self.referer.or(Some(text(value).ok()?));
                    true
                }
                HeaderUse::UserAgent => {
                    self.user_agent = self.user_agent.or(Some(text(value).ok()?));
                    true
                }
                HeaderUse::Ignored => true,
            };
        is_plain.then_some(())
    }
}

impl PlainHead<'_> {
    /// What the log has of the request.
    #[must_use]
    pub fn logged(&self, route: Route) -> LoggedRequest<'_> {
        LoggedRequest {
            method: self.method(),
            path: self.target,
            route,
            version: Version::HTTP_11,
            referer: self.referer.map(str::as_bytes),
            user_agent: self.user_agent.map(str::as_bytes),
        }
    }
}

impl BodyRequest for PlainHead<'_> {
    fn method(&self) -> &Method {
        if self.is_head { &Method::HEAD } else { &Method::GET }
    }

    fn accepted_codings(&self) -> impl Iterator<Item = &str> {
        self.accept_encoding.into_iter()
    }

    fn known_tags(&self) -> impl Iterator<Item = &str> {
        // A request with any is not plain.
        std::iter::empty()
    }
}

/// What follows `expected` in `bytes`.
fn after<'b>(expected: &[u8], bytes: &'b [u8]) -> Result<&'b [u8], UnreadHead> {
    match bytes.strip_prefix(expected) {
        Some(rest) => Ok(rest),
        None if expected.starts_with(bytes) => Err(UnreadHead::Incomplete),
        None => Err(UnreadHead::NotPlain),
    }
}

/// Why a head is not read that has ended in or soon after this part of a target.
fn incomplete_target(target: &[u8]) -> UnreadHead {
    let is_path = target.iter().all(u8::is_ascii_graphic);
    if is_path { UnreadHead::Incomplete } else { UnreadHead::NotPlain }
}

fn text(bytes: &[u8]) -> Result<&str, UnreadHead> {
    str::from_utf8(bytes).map_err(|_| UnreadHead::NotPlain)
}

/// Whether `bytes` are printable ASCII but for the ends of so many lines, and for half of a further
/// one at their end.
///
/// Each end of a line has been seen to have both characters, so any other one makes a difference to
/// the count. Counting takes less time than looking at each line.
fn has_lines(bytes: &[u8], count: usize) -> bool {
    let others = bytes.iter().filter(|byte| !matches!(byte, b' '..=b'~')).count();
    others == 2 * count + usize::from(bytes.last() == Some(&b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "GET /10.1/a HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\r\n";

    fn read(text: &str) -> Result<PlainHead<'_>, UnreadHead> {
        PlainHead::read(text.as_bytes())
    }

    #[test]
    fn a_plain_head_is_read_however_much_of_it_has_arrived() {
        let method = HEAD.replace("GET", "HEAD");
        for (text, is_head) in [(HEAD, false), (&method, true)] {
            for len in 0..text.len() {
                assert_eq!(read(&text[..len]), Err(UnreadHead::Incomplete), "{:?}", &text[..len]);
            }
            for more in ["", "GET", "\r\n", "\0"] {
                let followed = format!("{text}{more}");
                let head = read(&followed).unwrap();
                assert_eq!((head.len, head.is_head, head.target), (text.len(), is_head, "/10.1/a"));
            }
        }
    }

    #[test]
    fn headers_that_matter_are_found() {
        let head = |headers: &str| format!("GET / HTTP/1.1\r\nHost:\r\n{headers}\r\n");
        let full =
            head("oRIGIN: https://b.example\r\nAccept-encoding:gzip, br\r\nCONNECTION: Keep-Alive\r\n");
        let full = read(&full).unwrap();
        assert_eq!(full.origin, Some("https://b.example"));
        assert_eq!((full.accept_encoding, full.names_html), (Some("gzip, br"), false));
        assert!(read(&head("Accept: */*\r\nAccept: text/html,*/*\r\n")).unwrap().names_html);
        for (name, _) in HEADERS {
            let line = format!("{name}: keep-alive\r\n");
            assert_eq!(read(&head(&line)).is_ok(), name != "host", "{line:?}");
        }
        let many = |count| head(&"DNT: 1\r\n".repeat(count));
        assert!(read(&many(HEADERS_MAX - 1)).is_ok());
        assert_eq!(read(&many(HEADERS_MAX)), Err(UnreadHead::NotPlain));
    }

    #[test]
    fn whatever_readers_could_disagree_about_is_not_plain() {
        let host = "GET / HTTP/1.1\r\nHost: x\r\n";
        let mut heads: Vec<String> = [
            "GET / HTTP/1.1\r\n\r\n",
            "GET /1\x10 HT",
            "GET / HTTP/1.0\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\n",
            "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /  HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /\tHTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
            "get / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: x\r\n\r\n",
        ]
        .map(str::to_owned)
        .to_vec();
        heads.extend(
            [
                "Content-Length: 0",
                "Transfer-Encoding: chunked",
                "Expect: 100-continue",
                "Upgrade: h2c",
                "Connection: close",
                "Connection: keep-alive, upgrade",
                "Authorization: Basic x",
                "If-None-Match: *",
                "Unknown: x",
                "Accept : x",
                "Accept",
                ": x",
                " folded",
                "Accept:  x",
                "Accept: x ",
                "Accept:\tx",
                "Accept: \u{e9}",
                "Accept: a\rb",
                "Accept: a\0b",
                "Accept: a\u{7f}b",
                "Accept: a\r",
                "Accept: a\nDNT: 1",
                "Origin: a\r\nOrigin: a",
                "Accept-Encoding: gzip\r\nAccept-Encoding: br",
            ]
            .map(|line| format!("{host}{line}\r\n\r\n")),
        );
        for head in heads {
            assert_eq!(read(&head), Err(UnreadHead::NotPlain), "{head:?}");
        }
    }
}
