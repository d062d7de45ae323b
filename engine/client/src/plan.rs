//! The order in which servers are asked: by protocol, then by site; one server of each site, chosen
//! by the hash of the handle. RFC 3652 section 3.1.3.

use crate::ClockReading;
use crate::service::SharedSite;
use crate::times::ServerTimes;
use crate::trace::AnswerOrigin;
use handle_auth::source::SourceList;
use handle_proto::data::site::{InterfaceKind, InterfaceProtocol, Site};
use handle_proto::limit::IPV4_DELAY_MS;
use handle_proto::{Handle, Version};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// A server, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTarget {
    /// Its address; unspecified if its name has to be looked up first.
    pub address: SocketAddr,
    /// Its name, if the site record has one.
    pub domain: Option<String>,
    /// The part of the path of its URLs before the handle.
    pub path: String,
    /// The protocol.
    pub protocol: InterfaceProtocol,
    /// The record of the key that its signatures are checked with; empty if the site record has
    /// none.
    pub public_key: Vec<u8>,
    /// Serial number of its site record.
    pub site_serial: i16,
    /// The version of requests to it.
    pub version: Version,
    /// Its position in the site, and the number of servers there.
    pub position: (usize, usize),
    /// Whether its site is a primary one.
    pub is_primary: bool,
}

impl ServerTarget {
    /// A server that is known by its address alone. Without its site record, its version is
    /// unknown.
    #[must_use]
    pub const fn at(address: SocketAddr, protocol: InterfaceProtocol) -> Self {
        Self {
            address,
            domain: None,
            path: String::new(),
            protocol,
            public_key: vec![],
            site_serial: handle_proto::wire::Header::NO_SITE_SERIAL,
            version: Version::COMPATIBLE,
            position: (0, 1),
            is_primary: true,
        }
    }

    /// The server of `site` at a position; `None` if it has no address, or a forbidden one, or no
    /// interface for this purpose.
    #[must_use]
    pub fn of(
        site: &Site<'_>,
        at: usize,
        protocol: InterfaceProtocol,
        kind: InterfaceKind,
        preferences: &Preferences,
    ) -> Option<Self> {
        let server = site.servers.iter().nth(at)?;
        let interface = server.interface(protocol, kind)?;
        let text = |name| {
            let value = site.attribute_of(name, i32::try_from(at).ok()?)?;
            str::from_utf8(value).ok().filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let domain = text("domain");
        let is_named = server.address.is_unspecified() && domain.is_some();
        if !is_named && (server.address.is_unspecified() || !preferences.allows(server.address.ip())) {
            return None;
        }
        Some(Self {
            address: SocketAddr::new(preferences.reached(server.address.ip()), interface.port()?),
            domain,
            path: text("path").unwrap_or_default(),
            protocol,
            public_key: server.public_key.to_vec(),
            site_serial: site.serial,
            version: site.protocol.clamp(Version::LOWEST, Version::CURRENT),
            position: (at, site.servers.len()),
            is_primary: site.is_primary(),
        })
    }

    /// The name that has to be looked up before the server can be asked.
    #[must_use]
    pub fn unresolved(&self) -> Option<&str> {
        self.address.ip().is_unspecified().then_some(self.domain.as_deref()).flatten()
    }

    /// The same server at each reachable and allowed address of its name, IPv6 first.
    #[must_use]
    pub fn at_each(&self, addresses: &[IpAddr], preferences: &Preferences) -> Vec<Self> {
        let at = |&ip: &IpAddr| {
            let address = SocketAddr::new(preferences.reached(ip), self.address.port());
            Self { address, ..self.clone() }
        };
        let mut targets: Vec<Self> = addresses.iter().filter(|ip| preferences.allows(**ip)).map(at).collect();
        let families = &preferences.families;
        targets.retain(|target| !target.address.ip().is_unspecified() && is_reachable(target, families));
        targets.sort_by_key(|target| target.address.is_ipv4());
        targets.truncate(ADDRESSES_MAX);
        targets
    }
}

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Networks of the machine itself, of its link and of private use, and those without a single host.
/// An address of a translator or tunnel counts as the IPv4 address that it stands for.
/// A program that asks for others leaves them out of what it believes ([`Preferences::forbidden`]):
/// the owner of any prefix could otherwise make it talk to hosts that only it can reach.
pub const PRIVATE_NETWORKS: [&str; 17] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "64:ff9b:1::/48",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// The address families that can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

/// Preferences among servers.
#[derive(Clone, Debug)]
pub struct Preferences {
    /// Protocols, in order of preference.
    pub protocols: Vec<InterfaceProtocol>,
    /// The address families that can be reached.
    pub families: Families,
    /// If there are sites whose keywords (`site_filter_keywords`) contain one of these, only they
    /// are asked.
    pub keywords: Vec<String>,
    /// Addresses that replace those in site records, for example to reach servers behind the same
    /// NAT.
    pub addresses: HashMap<IpAddr, IpAddr>,
    /// Networks in which no server is asked that a record or a referral names. Servers that are
    /// configured, those of the global service and [replacement addresses](Self::addresses) may be
    /// in them.
    pub forbidden: SourceList,
    /// Milliseconds without an answer from a server with IPv6 after which one with IPv4 is asked as
    /// well, and the other way round. IPv6 is preferred by the same time. `None` to ask one after
    /// the other.
    pub fallback_ms: Option<u32>,
}

impl Default for Preferences {
    fn default() -> Self {
        let mut protocols = vec![InterfaceProtocol::UDP, InterfaceProtocol::TCP, InterfaceProtocol::HTTP];
        if cfg!(feature = "tls") {
            protocols.push(InterfaceProtocol::HTTPS);
        }
        Self {
            protocols,
            families: Families { ipv4: true, ipv6: true },
            keywords: vec![],
            addresses: HashMap::new(),
            forbidden: SourceList::default(),
            fallback_ms: Some(IPV4_DELAY_MS),
        }
    }
}

impl Preferences {
    /// The address at which a server with the address `ip` in its site record is reached.
    #[must_use]
    pub fn reached(&self, ip: IpAddr) -> IpAddr {
        self.addresses.get(&ip).copied().unwrap_or(ip)
    }

    /// Whether a server with the address `ip` may be asked.
    fn allows(&self, ip: IpAddr) -> bool {
        !self.forbidden.reaches(ip) || self.addresses.contains_key(&ip)
    }

    /// The preferences among servers of this origin: no networks are forbidden if somebody has
    /// named them to this program.
    #[must_use]
    pub fn of_origin(&self, origin: AnswerOrigin) -> Cow<'_, Self> {
        match origin {
            AnswerOrigin::Root | AnswerOrigin::Override | AnswerOrigin::Caller => {
                Cow::Owned(Self { forbidden: SourceList::default(), ..self.clone() })
            }
            AnswerOrigin::Prefix | AnswerOrigin::Referral => Cow::Borrowed(self),
        }
    }
}

/// The purpose of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfacePurpose {
    /// Resolution or administration.
    pub kind: InterfaceKind,
    /// Whether only primary sites are suitable.
    pub primary_only: bool,
}

/// The servers to ask for `handle`, in order: all sites over the first protocol before any over the
/// second.
///
/// Sites are ordered by the response time of their server with a jitter from `random`. A site with
/// IPv6 precedes one with IPv4 unless it was slower by more than the fallback delay. If only
/// primary sites are suitable, the one that answered last comes first for an hour. Servers without
/// a usable address are left out.
pub fn plan(
    sites: &[SharedSite],
    handle: Handle<'_>,
    purpose: InterfacePurpose,
    preferences: &Preferences,
    times: &ServerTimes,
    now: ClockReading,
    random: &mut dyn FnMut() -> u32,
) -> VecDeque<ServerTarget> {
    let usable = |site: &&SharedSite| !purpose.primary_only || site.view().is_primary();
    let mut chosen: Vec<&SharedSite> = sites.iter().filter(usable).collect();
    let matches = |site: &&SharedSite| {
        let keywords =
            site.view().attribute("site_filter_keywords").and_then(|bytes| str::from_utf8(bytes).ok());
        let mut keywords = keywords.unwrap_or_default().split_whitespace();
        keywords.any(|word| preferences.keywords.iter().any(|wanted| wanted == word))
    };
    if chosen.iter().any(matches) {
        chosen.retain(matches);
    }
    let mut plan = VecDeque::new();
    for &protocol in &preferences.protocols {
        let mut round: Vec<(Reverse<Option<u64>>, u32, ServerTarget)> = vec![];
        for site in &chosen {
            let view = site.view();
            let Some(at) = view.server_at(handle) else { continue };
            let target = ServerTarget::of(&view, at, protocol, purpose.kind, preferences);
            if let Some(target) = target.filter(|target| is_reachable(target, &preferences.families)) {
                let behind_ms = match target.address {
                    SocketAddr::V4(_) => preferences.fallback_ms.unwrap_or_default(),
                    SocketAddr::V6(_) => 0,
                };
                let rank = times.rank(target.address, random(), now).saturating_add(behind_ms);
                let as_primary =
                    purpose.primary_only.then(|| times.primary_ms(target.address, now)).flatten();
                round.push((Reverse(as_primary), rank, target));
            }
        }
        round.sort_by_key(|(as_primary, rank, _)| (*as_primary, *rank));
        plan.extend(round.into_iter().map(|(.., target)| target));
    }
    plan
}

fn is_reachable(target: &ServerTarget, families: &Families) -> bool {
    match target.address {
        _ if target.unresolved().is_some() => true,
        SocketAddr::V4(_) => families.ipv4,
        SocketAddr::V6(_) => families.ipv6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{site_at, site_of};
    use std::sync::Arc;

    const NOW: ClockReading = ClockReading { ms: 0, unix_s: 0 };
    const ANY: InterfacePurpose = InterfacePurpose { kind: InterfaceKind::QUERY, primary_only: false };

    fn shared(sites: impl IntoIterator<Item = handle_proto::data::site::SiteBuf>) -> Vec<SharedSite> {
        sites.into_iter().map(Arc::new).collect()
    }

    fn order(
        sites: &[SharedSite],
        purpose: InterfacePurpose,
        preferences: &Preferences,
        times: &ServerTimes,
    ) -> Vec<String> {
        let targets =
            plan(sites, Handle(b"10.1045/july95-arms"), purpose, preferences, times, NOW, &mut || 0);
        let shown =
            |target: ServerTarget| format!("{}/{}", target.address.ip(), target.protocol.name().unwrap());
        targets.into_iter().map(shown).collect()
    }

    #[test]
    fn all_sites_are_asked_over_udp_before_any_over_tcp() {
        let times = ServerTimes::new(8);
        times.note(([192, 0, 2, 1], 2641).into(), 700, NOW);
        let sites = shared([site_at(1), site_at(2)]);
        let preferences = Preferences::default();
        let expected = ["192.0.2.2/UDP", "192.0.2.1/UDP", "192.0.2.2/TCP", "192.0.2.1/TCP"];
        assert_eq!(order(&sites, ANY, &preferences, &times), expected);
    }

    #[test]
    fn the_primary_that_answered_last_is_asked_again_for_an_hour() {
        let primary = |number| {
            let mut site = site_at(number).edit();
            site.flags = handle_proto::data::site::SiteFlags::PRIMARY;
            site.build()
        };
        let sites = shared([primary(1), primary(2)]);
        let preferences = Preferences { protocols: vec![InterfaceProtocol::UDP], ..Preferences::default() };
        let times = ServerTimes::new(8);
        let slow = ([192, 0, 2, 2], 2641).into();
        times.note(slow, 700, NOW);
        times.note_primary(slow, NOW);
        let order = |primary_only, ms| {
            let (now, purpose) = (ClockReading { ms, ..NOW }, InterfacePurpose { primary_only, ..ANY });
            let plan = plan(&sites, Handle(b"10.1/x"), purpose, &preferences, &times, now, &mut || 0);
            plan[0].address == slow
        };
        assert!(order(true, 3_599_999) && !order(true, 3_600_000));
        assert!(!order(false, 0), "others are asked by their speed");
    }

    #[test]
    fn the_hash_chooses_the_server() {
        // 2053237461 is the hash of the handle: of three servers the first, of four the second.
        let sites = shared([site_of(&[1, 2, 3]), site_of(&[4, 5, 6, 7])]);
        let preferences = Preferences { protocols: vec![InterfaceProtocol::UDP], ..Preferences::default() };
        assert_eq!(
            order(&sites, ANY, &preferences, &ServerTimes::new(8)),
            ["192.0.2.1/UDP", "192.0.2.5/UDP"]
        );
    }

    #[test]
    fn roles_keywords_and_families_leave_sites_out() {
        let mut secondary = site_at(2).edit();
        secondary.flags = handle_proto::data::site::SiteFlags(0);
        secondary.attribute("site_filter_keywords", "europe fast");
        let mut six = site_at(3).edit();
        six.servers[0].address = std::net::IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]).into();
        let mut primary = site_at(1).edit();
        primary.flags = handle_proto::data::site::SiteFlags::PRIMARY;
        let sites = shared([primary.build(), secondary.build(), six.build()]);
        let mut preferences =
            Preferences { protocols: vec![InterfaceProtocol::UDP], ..Preferences::default() };
        let times = ServerTimes::new(8);
        assert_eq!(order(&sites, ANY, &preferences, &times).len(), 3);
        let primary = InterfacePurpose { primary_only: true, ..ANY };
        assert_eq!(order(&sites, primary, &preferences, &times), ["192.0.2.1/UDP"]);
        preferences.families.ipv4 = false;
        assert_eq!(order(&sites, ANY, &preferences, &times), ["2001:db8::1/UDP"]);
        preferences.families.ipv4 = true;
        preferences.keywords = vec!["asia".to_owned(), "europe".to_owned()];
        assert_eq!(order(&sites, ANY, &preferences, &times), ["192.0.2.2/UDP"]);
        preferences.keywords = vec!["asia".to_owned(), "europ".to_owned()];
        assert_eq!(order(&sites, ANY, &preferences, &times).len(), 3, "no server matches, so all remain");
    }

    #[test]
    fn a_server_is_reached_at_the_address_that_takes_the_place_of_its_own() {
        let sites = shared([site_at(1), site_at(2)]);
        let inner: IpAddr = [10, 0, 0, 1].into();
        let mut preferences =
            Preferences { protocols: vec![InterfaceProtocol::UDP], ..Preferences::default() };
        preferences.addresses.insert([192, 0, 2, 1].into(), inner);
        let times = ServerTimes::new(8);
        assert_eq!(order(&sites, ANY, &preferences, &times), ["10.0.0.1/UDP", "192.0.2.2/UDP"]);
        // The family of the actual address decides whether it can be reached.
        preferences.addresses.insert([192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into());
        preferences.families.ipv6 = false;
        assert_eq!(order(&sites, ANY, &preferences, &times), ["192.0.2.2/UDP"]);
    }

    #[test]
    fn servers_in_forbidden_networks_are_left_out_unless_somebody_has_configured_them() {
        let at = |address: &str| {
            let mut site = site_at(1).edit();
            site.servers[0].address = address.parse::<IpAddr>().unwrap().into();
            site.build()
        };
        let forbidden = [
            "10.1.2.3",
            "127.0.0.1",
            "192.168.1.1",
            "172.31.0.1",
            "fe80::1",
            "::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:a00:1::1",
        ];
        let sites = shared(forbidden.into_iter().chain(["192.0.2.7"]).map(at));
        let texts = PRIVATE_NETWORKS.map(str::to_owned);
        let mut preferences = Preferences {
            protocols: vec![InterfaceProtocol::UDP],
            forbidden: SourceList::parse(&texts).unwrap(),
            ..Preferences::default()
        };
        let times = ServerTimes::new(8);
        assert_eq!(order(&sites, ANY, &preferences, &times), ["192.0.2.7/UDP"]);
        for origin in [AnswerOrigin::Root, AnswerOrigin::Override, AnswerOrigin::Caller] {
            assert_eq!(order(&sites, ANY, &preferences.of_origin(origin), &times).len(), 12, "{origin:?}");
        }
        for origin in [AnswerOrigin::Prefix, AnswerOrigin::Referral] {
            assert_eq!(order(&sites, ANY, &preferences.of_origin(origin), &times).len(), 1, "{origin:?}");
        }
        let named = ServerTarget::at(([0, 0, 0, 0], 2641).into(), InterfaceProtocol::UDP);
        let found: Vec<IpAddr> = ["10.1.2.3", "192.0.2.7", "::1"].map(|ip| ip.parse().unwrap()).to_vec();
        assert_eq!(named.at_each(&found, &preferences).len(), 1, "also by their names");
        preferences.addresses.insert([10, 1, 2, 3].into(), [192, 168, 0, 9].into());
        assert_eq!(order(&sites, ANY, &preferences, &times).len(), 2, "the replacement is configured");
    }

    #[test]
    fn a_named_server_is_reached_at_its_replacement_address() {
        let [outer, other, inner]: [IpAddr; 3] =
            [[192, 0, 2, 1], [192, 0, 2, 2], [10, 0, 0, 1]].map(Into::into);
        let mut preferences = Preferences::default();
        preferences.addresses.insert(outer, inner);
        let named = ServerTarget::at(([0, 0, 0, 0], 2641).into(), InterfaceProtocol::UDP);
        let at: Vec<IpAddr> =
            named.at_each(&[outer, other], &preferences).iter().map(|target| target.address.ip()).collect();
        assert_eq!(at, [inner, other]);
    }
}
