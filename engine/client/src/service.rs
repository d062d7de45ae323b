//! Which sites a record names, and which other records name more. RFC 3651 section 3.2.2 and the two behind it.

use handle_proto::data::kind;
use handle_proto::data::site::{Site, SiteBuf};
use handle_proto::limit::TTL_MAX_S;
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value};
use std::sync::Arc;

/// A site record, shared by all that use it.
pub type SharedSite = Arc<SiteBuf>;

/// Which values name the service that is looked for.
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

    /// The types to ask for; of a prefix record with its namespace.
    #[must_use]
    pub fn asked(self, with_namespace: bool) -> Vec<Vec<u8>> {
        let mut types: Vec<_> =
            self.sites().iter().chain([&self.services()]).map(|kind| kind.to_vec()).collect();
        if with_namespace {
            types.push(kind::HS_NAMESPACE.to_vec());
        }
        types
    }
}

/// What a record says about where a service is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Sites, in the order of their values.
    pub sites: Vec<SharedSite>,
    /// Handles of further records, each once.
    pub services: Vec<Vec<u8>>,
}

/// Most sites that one service is taken to have; what a record names beyond them is left out.
pub const SITES_MAX: usize = 64;

impl Found {
    /// Gathers from the values of a record. Types count in their spelling, as deployed; what does not decode,
    /// has no server, or has several and an unknown hash option, is left out.
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

    /// Adds a site that can be used.
    pub fn add(&mut self, site: SiteBuf) {
        if is_usable(&site.view()) {
            add_once(&mut self.sites, Arc::new(site));
        }
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.services.is_empty()
    }
}

/// Adds a site unless it is there already, or there are enough.
pub(crate) fn add_once(sites: &mut Vec<SharedSite>, site: SharedSite) {
    if sites.len() < SITES_MAX && !sites.iter().any(|known| known.as_bytes() == site.as_bytes()) {
        sites.push(site);
    }
}

fn is_usable(site: &Site<'_>) -> bool {
    site.server_at(Handle(b"0.NA/0.NA")).is_some()
}

/// How long a value received now may be kept, in seconds. RFC 3651 section 3.1, with the deployed cap of two days.
///
/// The reference keeps values with an absolute time not at all; we keep them until then.
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
        let found = Found::gather(values, Kinds::Service);
        let sites: Vec<_> = found.sites.iter().map(|site| (**site).as_bytes()).collect();
        assert_eq!(sites, [one.as_bytes(), two.as_bytes(), odd_alone.as_bytes()]);
        assert_eq!(found.services, [b"10.SERV/A"]);
        let found = Found::gather(values, Kinds::Delegation);
        assert_eq!((found.sites.len(), found.services), (2, vec![b"10.SERV/B".to_vec()]));
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
        // A clock far ahead of what four bytes with a sign can say.
        assert_eq!(keeps_s(Ttl::absolute(-1), u32::MAX), 0);
    }
}
