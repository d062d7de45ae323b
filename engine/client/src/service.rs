//! The sites that a record names, and the further records with sites. RFC 3651 sections 3.2.2,
//! 3.2.3 and 3.2.4.

use handle_proto::data::kind;
use handle_proto::data::site::{Address, InterfaceKind, InterfaceProtocol, Server, Site, SiteBuf};
use handle_proto::limit::TTL_MAX_S;
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A shared site record.
pub type SharedSite = Arc<SiteBuf>;

/// The kinds of values that name a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// The service of the handles under a prefix.
    Service,
    /// The service of the records of derived prefixes.
    Delegation,
}

impl Kinds {
    /// The types of values that hold sites.
    #[must_use]
    pub const fn sites(self) -> &'static [&'static [u8]] {
        match self {
            Self::Service => &[kind::HS_SITE, kind::HS_SITE_6],
            Self::Delegation => &[kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE],
        }
    }

    /// The type of values that name another record with sites.
    #[must_use]
    pub const fn services(self) -> &'static [u8] {
        match self {
            Self::Service => kind::HS_SERV,
            Self::Delegation => kind::HS_SERV_PREFIX,
        }
    }

    /// The types to ask for; for a prefix record with its namespace.
    #[must_use]
    pub fn types(self, with_namespace: bool) -> Vec<Vec<u8>> {
        let mut types: Vec<_> =
            self.sites().iter().chain([&self.services()]).map(|kind| kind.to_vec()).collect();
        if with_namespace {
            types.push(kind::HS_NAMESPACE.to_vec());
        }
        types
    }
}

/// The sites and further records that a record names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSites {
    /// Sites, in the order of their values.
    pub sites: Vec<SharedSite>,
    /// Handles of further records, each once.
    pub services: Vec<Vec<u8>>,
}

/// Most sites of one service. Further ones are left out.
pub const SITES_MAX: usize = 64;

impl ServiceSites {
    /// Gathers the sites from the values of a record. Types are case-sensitive, as in deployed
    /// software. A site is left out if it does not decode, has no server, or has several servers
    /// and an unknown hash option.
    pub fn gather<'a>(values: impl IntoIterator<Item = Value<'a>>, kinds: Kinds) -> Self {
        let mut found = Self::default();
        for value in values {
            if kinds.sites().contains(&value.kind) {
                if let Ok(site) = SiteBuf::from_bytes(value.data.to_vec()) {
                    found.add(site);
                }
            } else if value.kind == kinds.services()
                && !value.data.is_empty()
                && !found.services.iter().any(|known| known == value.data)
                && found.services.len() < SITES_MAX
            {
                found.services.push(value.data.to_vec());
            }
        }
        found
    }

    /// Adds a usable site, and the same site at its other addresses.
    pub fn add(&mut self, site: SiteBuf) {
        if is_usable(&site.view()) {
            at_all_addresses(site).into_iter().for_each(|site| add_once(&mut self.sites, site));
        }
    }

    /// Whether there are no sites and no further records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.services.is_empty()
    }
}

/// Adds a site unless it is in the list, or the list is full.
pub(crate) fn add_once(sites: &mut Vec<SharedSite>, site: SharedSite) {
    if sites.len() < SITES_MAX && !sites.iter().any(|known| known.as_bytes() == site.as_bytes()) {
        sites.push(site);
    }
}

/// The addresses of each server of a site on which it answers over `protocol` for `kind`, those
/// that `alt_addr` names last. Names that would have to be looked up are left out.
#[must_use]
pub fn site_addresses(
    site: &SiteBuf,
    protocol: InterfaceProtocol,
    kind: InterfaceKind,
) -> Vec<Vec<SocketAddr>> {
    let mut all = vec![Vec::new(); site.view().servers.len()];
    for site in at_all_addresses(site.clone()) {
        for (addresses, server) in all.iter_mut().zip(site.view().servers.iter()) {
            let ports = server.interfaces.iter().filter(|one| one.protocol == protocol && one.kind.has(kind));
            let ports = ports.filter_map(|one| one.port()).filter(|_| !server.address.is_unspecified());
            for address in ports.map(|port| SocketAddr::new(server.address.ip(), port)) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
    }
    all
}

/// Most alternative addresses of a server.
const ALTERNATES_MAX: usize = 4;

/// The site, followed by the same site at the addresses that `alt_addr` names, each as a separate
/// site. Servers with fewer addresses keep their own there. A name replaces `domain`, and is looked
/// up when it is needed.
pub(crate) fn at_all_addresses(site: SiteBuf) -> Vec<SharedSite> {
    let view = site.view();
    let others = |server: &Server<'_>| -> Vec<String> {
        let text = view.attribute_of("alt_addr", server.id).and_then(|text| str::from_utf8(text).ok());
        let words = text.unwrap_or_default().split([' ', ',', ';']).filter(|word| !word.is_empty());
        words.take(ALTERNATES_MAX).map(str::to_owned).collect()
    };
    let others: Vec<Vec<String>> = view.servers.iter().map(|server| others(&server)).collect();
    let count = others.iter().map(Vec::len).max().unwrap_or_default();
    let alternates: Vec<SiteBuf> = (0..count).map(|number| at_others(&site, &others, number)).collect();
    [site].into_iter().chain(alternates).map(Arc::new).collect()
}

/// The site with each server at its alternative address of this number.
fn at_others(site: &SiteBuf, others: &[Vec<String>], number: usize) -> SiteBuf {
    let mut site = site.edit();
    for (position, addresses) in others.iter().enumerate() {
        let Some(address) = addresses.get(number) else { continue };
        match address.parse::<IpAddr>() {
            Ok(ip) => site.servers[position].address = ip.into(),
            Err(_) => {
                site.servers[position].address = Address::UNSPECIFIED;
                let name = format!("domain.{position}").into_bytes();
                site.attributes.retain(|(known, _)| *known != name);
                site.attributes.push((name, address.clone().into_bytes()));
            }
        }
    }
    site.build()
}

fn is_usable(site: &Site<'_>) -> bool {
    site.server_at(Handle(b"0.NA/0.NA")).is_some()
}

/// Seconds for which a value received now may be kept. RFC 3651 section 3.1, with the deployed cap
/// of two days.
///
/// The reference implementation does not keep values with an absolute time; this one keeps them
/// until then.
#[must_use]
pub fn keeps_s(ttl: Ttl, now_unix_s: u32) -> u32 {
    let seconds = match ttl.kind {
        Ttl::RELATIVE => ttl.seconds.into(),
        _ => i64::from(ttl.seconds) - i64::from(now_unix_s),
    };
    u32::try_from(seconds.clamp(0, TTL_MAX_S.into())).expect("at most two days")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::site_of;

    fn site(servers: u8, hash_option_number: u8) -> SiteBuf {
        let mut site = site_of(&Vec::from_iter(1..=servers)).edit();
        site.hash_option_number = hash_option_number;
        site.build()
    }

    #[test]
    fn a_record_names_the_union_of_its_sites_and_services() {
        let (one, two) = (site(1, 2), site(2, 2));
        let (empty, odd, odd_alone) = (site(0, 2), site(2, 9), site(1, 9));
        let values = [
            Value::new(1, b"HS_SITE", one.as_bytes()),
            Value::new(2, b"HS_SITE.6", two.as_bytes()),
            Value::new(3, b"HS_SITE", one.as_bytes()),
            Value::new(4, b"HS_SITE", b"not a site"),
            Value::new(5, b"HS_SITE", empty.as_bytes()),
            Value::new(6, b"HS_SITE", odd.as_bytes()),
            Value::new(7, b"HS_SITE", odd_alone.as_bytes()),
            Value::new(8, b"hs_site", two.as_bytes()),
            Value::new(9, b"HS_SERV", b"10.SERV/A"),
            Value::new(10, b"HS_SERV", b"10.SERV/A"),
            Value::new(11, b"HS_SERV", b""),
            Value::new(12, b"HS_SITE.PREFIX", two.as_bytes()),
            Value::new(13, b"HS_SERV.PREFIX", b"10.SERV/B"),
            Value::new(14, b"HS_NA_DELEGATE", one.as_bytes()),
        ];
        let found = ServiceSites::gather(values, Kinds::Service);
        let sites: Vec<_> = found.sites.iter().map(|site| (**site).as_bytes()).collect();
        assert_eq!(sites, [one.as_bytes(), two.as_bytes(), odd_alone.as_bytes()]);
        assert_eq!(found.services, [b"10.SERV/A"]);
        let found = ServiceSites::gather(values, Kinds::Delegation);
        assert_eq!((found.sites.len(), found.services), (2, vec![b"10.SERV/B".to_vec()]));
    }

    #[test]
    fn a_site_is_also_at_its_other_addresses() {
        let mut site = site(3, 2).edit();
        site.attribute("alt_addr", "2001:db8::9").attribute("domain", "all.example");
        site.attribute("alt_addr.2", "192.0.2.22, second.example");
        let site = site.build();
        let found = ServiceSites::gather([Value::new(1, b"HS_SITE", site.as_bytes())], Kinds::Service);
        let addresses = |site: &SharedSite| {
            let view = site.view();
            let servers = view.servers.iter().enumerate().map(|(at, server)| {
                let name = view.attribute_of("domain", i32::try_from(at).unwrap()).unwrap();
                format!("{} {}", server.address.ip(), str::from_utf8(name).unwrap())
            });
            servers.collect::<Vec<_>>().join(", ")
        };
        let found: Vec<_> = found.sites.iter().map(addresses).collect();
        assert_eq!(
            found,
            [
                "192.0.2.1 all.example, 192.0.2.2 all.example, 192.0.2.3 all.example",
                "2001:db8::9 all.example, 192.0.2.22 all.example, 2001:db8::9 all.example",
                "192.0.2.1 all.example, 0.0.0.0 second.example, 192.0.2.3 all.example",
            ]
        );
        let mut many = site.edit();
        many.attributes.clear();
        many.attribute("alt_addr", "::2 ::3 ::4 ::5 ::6");
        let many = many.build();
        let found = ServiceSites::gather([Value::new(1, b"HS_SITE", many.as_bytes())], Kinds::Service);
        assert_eq!(found.sites.len(), 1 + ALTERNATES_MAX);
    }

    #[test]
    fn values_are_kept_for_two_days_at_most() {
        let now = 1_700_000_000;
        for (ttl, kept) in [
            (Ttl::relative(0), 0),
            (Ttl::relative(-5), 0),
            (Ttl::relative(60), 60),
            (Ttl::relative(172_800), 172_800),
            (Ttl::relative(172_801), 172_800),
            (Ttl::absolute(1_700_000_060), 60),
            (Ttl::absolute(1_700_000_000), 0),
            (Ttl::absolute(1), 0),
            (Ttl::absolute(i32::MAX), 172_800),
        ] {
            assert_eq!(keeps_s(ttl, now), kept, "{ttl:?}");
        }
        // A clock beyond the range of four signed bytes.
        assert_eq!(keeps_s(Ttl::absolute(-1), u32::MAX), 0);
    }
}
