//! Proxies in front of this process, and the client addresses that they report.
//!
//! Only headers of listed proxies are used, because every client can send such headers.

use handle_auth::source::SourceList;
use handle_daemon::settings;
use handle_daemon::settings::{NETWORKS, SettingType};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

settings! {
    /// Proxies in front, such as load balancers. Limits, logs and `10320/loc` use the client
    /// address that they report.
    pub struct ProxiesConfig {
        /// Set this when proxies stand in front: their addresses and networks. Headers of other
        /// peers are ignored.
        live trusted: Vec<String> = Vec::new(), NETWORKS;
        /// Set this when they do not send `X-Forwarded-For`: the header with the client address.
        /// Proxies must remove or extend one that the client sends.
        live header: ClientHeader = ClientHeader::XForwardedFor;
        /// Set this when they serve `https` and ask this process over plain HTTP: the header with
        /// the scheme of the client's URL, `X-Forwarded-Proto`, or `proto` in `Forwarded`, for URLs
        /// of this gateway in answers. Proxies must replace one that the client sends.
        live scheme: SchemeHeader = SchemeHeader::Off;
        /// Set this when callers authenticate through proxies whose network you trust: accept
        /// credentials of clients whose scheme is `https` also over unencrypted connections of
        /// these proxies. Whoever can read or change this traffic can then read and use them.
        live credentials: bool = false;
        /// Set this when they begin connections with a header of the PROXY protocol, version 1 or
        /// 2: expect it. Connections without it are refused.
        live proxy_protocol: bool = false;
    }
}

/// The header with the address of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientHeader {
    /// None of them.
    Off,
    /// `Forwarded`, RFC 7239.
    Forwarded,
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
}

/// The header with the scheme of the client's URL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchemeHeader {
    /// None of them.
    #[default]
    Off,
    /// `Forwarded`, RFC 7239.
    Forwarded,
    /// `X-Forwarded-Proto`.
    XForwardedProto,
}

impl SettingType for SchemeHeader {
    fn type_name() -> String {
        "`off`, `forwarded`, `x-forwarded-proto`".to_owned()
    }
}

impl SettingType for ClientHeader {
    fn type_name() -> String {
        "`off`, `forwarded`, `x-forwarded-for`".to_owned()
    }
}

/// Maximum number of proxies between a client and this process.
const HOPS_MAX: usize = 32;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The address of the client whose request came from `peer`, which is trusted. Each proxy appends
/// the address from which it got the request, so the client is the last one that is not trusted.
#[must_use]
pub fn client_address(
    peer: IpAddr,
    headers: &HeaderMap,
    header: ClientHeader,
    trusted: &SourceList,
) -> IpAddr {
    let (name, address_of): (_, fn(&str) -> Option<IpAddr>) = match header {
        ClientHeader::Off => return peer,
        ClientHeader::Forwarded => (header::FORWARDED, forwarded_for),
        ClientHeader::XForwardedFor => (X_FORWARDED_FOR, node_address),
    };
    // Each part by itself: what a client has written must not spoil what its proxy has appended.
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let hops = lines.iter().rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
    let mut client = peer;
    for hop in hops.take(HOPS_MAX) {
        // Entries before a malformed one are not trusted.
        let hop = str::from_utf8(hop).ok().and_then(|hop| address_of(hop.trim()));
        let Some(address) = hop else { break };
        client = address;
        if !trusted.contains(client) {
            break;
        }
    }
    client
}

/// Whether the client of a trusted proxy uses `https`; `None` if the header does not say so in a
/// known way.
///
/// The scheme in `Forwarded` is that of the element about the client, the last one whose address is
/// not trusted. Of several values of `X-Forwarded-Proto`, the last one counts, which is that of the
/// nearest proxy.
#[must_use]
pub fn client_is_https(headers: &HeaderMap, header: SchemeHeader, trusted: &SourceList) -> Option<bool> {
    let name = match header {
        SchemeHeader::Off => return None,
        SchemeHeader::Forwarded => header::FORWARDED,
        SchemeHeader::XForwardedProto => X_FORWARDED_PROTO,
    };
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let mut elements = lines.iter().rev().flat_map(|line| line.rsplit(|&byte| byte == b',')).take(HOPS_MAX);
    let scheme = match header {
        SchemeHeader::Forwarded => elements.find_map(|element| {
            let element = str::from_utf8(element).unwrap_or_default();
            let address = forwarded_parameter(element, "for").and_then(node_address);
            // An element without a known address ends what proxies have appended.
            let is_client = address.is_none_or(|address| !trusted.contains(address));
            is_client.then(|| forwarded_parameter(element, "proto").filter(|_| address.is_some()))
        })??,
        _ => str::from_utf8(elements.next()?).ok()?,
    };
    match scheme.trim() {
        scheme if scheme.eq_ignore_ascii_case("https") => Some(true),
        scheme if scheme.eq_ignore_ascii_case("http") => Some(false),
        _ => None,
    }
}

/// The address in the parameter `for` of one element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    forwarded_parameter(element, "for").and_then(node_address)
}

/// A parameter of one element of `Forwarded`.
fn forwarded_parameter<'e>(element: &'e str, wanted: &str) -> Option<&'e str> {
    let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
    named.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// An address, which may have a port, and brackets around IPv6.
fn node_address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse().ok().or_else(bracketed);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    Some(address.or_else(with_port)?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(header: ClientHeader, lines: &[&'static str]) -> String {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        found_in(header, &lines)
    }

    fn found_in(header: ClientHeader, lines: &[&[u8]]) -> String {
        let name = if header == ClientHeader::Forwarded { header::FORWARDED } else { X_FORWARDED_FOR };
        let headers =
            lines.iter().map(|line| (name.clone(), HeaderValue::from_bytes(line).unwrap())).collect();
        let trusted = SourceList::parse(&["10.0.0.0/8".to_owned(), "2001:db8::/32".to_owned()]).unwrap();
        client_address([10, 0, 0, 1].into(), &headers, header, &trusted).to_string()
    }

    #[test]
    fn the_client_is_the_last_address_that_no_proxy_has() {
        for (lines, client) in [
            (&[][..], "10.0.0.1"),
            (&["192.0.2.1"], "192.0.2.1"),
            (&["198.51.100.9, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            (&["198.51.100.9", "192.0.2.1 ,10.0.0.2"], "192.0.2.1"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["192.0.2.1, unknown, 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.1:4711"], "192.0.2.1"),
            (&["[2001:db9::1]:80"], "2001:db9::1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1"),
            (&["2001:db9::1, 2001:db8::1"], "2001:db9::1"),
            (&["192.0.2.1, "], "10.0.0.1"),
        ] {
            assert_eq!(found(ClientHeader::XForwardedFor, lines), client, "{lines:?}");
        }
        assert_eq!(found(ClientHeader::Off, &["192.0.2.1"]), "10.0.0.1");
    }

    #[test]
    fn bytes_of_a_client_do_not_hide_the_address_that_its_proxy_appends() {
        for line in
            [&b"\xff, 192.0.2.1"[..], b"\xff,192.0.2.1, 10.0.0.2", b"198.51.100.9, \xc3\xa4, 192.0.2.1"]
        {
            assert_eq!(found_in(ClientHeader::XForwardedFor, &[line]), "192.0.2.1", "{line:?}");
        }
        assert_eq!(found_in(ClientHeader::XForwardedFor, &[b"192.0.2.1, \xff"]), "10.0.0.1");
        assert_eq!(found_in(ClientHeader::XForwardedFor, &[b"\xff", b"192.0.2.1"]), "192.0.2.1");
        assert_eq!(found_in(ClientHeader::Forwarded, &[b"for=\xff, for=192.0.2.1"]), "192.0.2.1");
    }

    #[test]
    fn the_scheme_is_that_of_the_client_and_not_of_what_it_has_written() {
        let trusted = SourceList::parse(&["10.0.0.0/8".to_owned()]).unwrap();
        let of = |header, name: HeaderName, lines: &[&'static str]| {
            let values = lines.iter().map(|line| (name.clone(), HeaderValue::from_static(line))).collect();
            client_is_https(&values, header, &trusted)
        };
        for (lines, expected) in [
            (&[][..], None),
            (&["https"], Some(true)),
            (&["HTTPS"], Some(true)),
            (&["http"], Some(false)),
            (&["https, http"], Some(false)),
            (&["http", " https "], Some(true)),
            (&["wss"], None),
            (&["https,"], None),
        ] {
            let found = of(SchemeHeader::XForwardedProto, X_FORWARDED_PROTO, lines);
            assert_eq!(found, expected, "{lines:?}");
            assert_eq!(of(SchemeHeader::Off, X_FORWARDED_PROTO, lines), None);
            assert_eq!(of(SchemeHeader::Forwarded, X_FORWARDED_PROTO, lines), None);
        }
        for (lines, expected) in [
            (&[][..], None),
            (&["for=192.0.2.1;proto=https"], Some(true)),
            (&["for=192.0.2.1; Proto=\"http\""], Some(false)),
            (&["for=192.0.2.1"], None),
            (&["for=192.0.2.1;proto=https, for=10.0.0.2;proto=http"], Some(true)),
            (&["for=192.0.2.1;proto=https", "for=192.0.2.2;proto=http"], Some(false)),
            (&["proto=https"], None),
            (&["for=192.0.2.1;proto=https, proto=http"], None),
            (&["for=192.0.2.1;proto=https, for=_hidden;proto=http"], None),
            (&["for=10.0.0.3;proto=https"], None),
        ] {
            assert_eq!(of(SchemeHeader::Forwarded, header::FORWARDED, lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_is_read_as_its_rfc_writes_it() {
        for (line, client) in [
            ("for=192.0.2.1", "192.0.2.1"),
            ("For=\"[2001:db9:cafe::17]:4711\"", "2001:db9:cafe::17"),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("proto=https; for = \"192.0.2.60:80\"", "192.0.2.60"),
            ("for=192.0.2.43, for=10.1.2.3", "192.0.2.43"),
            ("for=192.0.2.43, for=_hidden", "10.0.0.1"),
            ("by=192.0.2.43", "10.0.0.1"),
        ] {
            assert_eq!(found(ClientHeader::Forwarded, &[line]), client, "{line}");
        }
    }
}
