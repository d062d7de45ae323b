//! The choice of one location: the methods of `chooseby`, one after the other.

use super::{Location, LocationSet};
use crate::accept::AcceptTypes;
use std::net::IpAddr;

/// The methods, unless a document names others.
pub(super) const METHODS_DEFAULT: &str = "locatt,address,country,score,weighted";

/// Larger weights count as this one, so that no sum overflows.
const WEIGHT_MAX: f64 = 1e12;

/// What a choice depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocationCriteria<'a> {
    /// Name and value of an attribute that the location should have.
    pub locatt: Option<(&'a str, &'a str)>,
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The country of the client: two letters of ISO 3166.
    pub country: Option<&'a str>,
    /// What the client accepts.
    pub accept: Option<&'a AcceptTypes>,
    /// A random number, of which all 64 bits count.
    pub random: u64,
}

impl LocationSet {
    /// Chooses one of the locations that have a target; `None` if there are none.
    ///
    /// A method that leaves no location has no effect. If several are left after the last method,
    /// the weights decide.
    #[must_use]
    pub fn choose(&self, criteria: &LocationCriteria<'_>) -> Option<&Location> {
        let mut left: Vec<&Location> = self.candidates().filter(|location| location.has_target()).collect();
        if criteria.accept.is_some_and(AcceptTypes::prefers_machine_type) {
            keep(&mut left, Location::is_for_machines);
        }
        for method in self.methods() {
            if left.len() <= 1 {
                break;
            }
            match method {
                "locatt" => {
                    if let Some((name, value)) = criteria.locatt {
                        keep(&mut left, |location| location.attribute(name) == Some(value));
                    }
                }
                "address" => {
                    if let Some(address) = criteria.address {
                        keep(&mut left, |location| is_addressed(location, address.to_canonical()));
                    }
                }
                "country" => by_country(&mut left, criteria.country),
                "ctype" | "media-type" => by_media_type(&mut left, method, criteria.accept),
                "score" => by_score(&mut left),
                "weighted" => left = weighted(&left, criteria.random).into_iter().collect(),
                // Unknown methods have no effect.
                _ => {}
            }
        }
        weighted(&left, criteria.random)
    }
}

/// Keeps the locations for which `is_kept` returns true, if there are any. Returns whether there
/// are.
fn keep(left: &mut Vec<&Location>, is_kept: impl Fn(&Location) -> bool) -> bool {
    let is_any = left.iter().any(|location| is_kept(location));
    if is_any {
        left.retain(|location| is_kept(location));
    }
    is_any
}

fn by_country(left: &mut Vec<&Location>, country: Option<&str>) {
    let country_of =
        |location: &Location| location.attribute("country").map(|name| name.trim().to_ascii_lowercase());
    let country = country.map(str::to_ascii_lowercase);
    let is_there = |location: &Location| country.is_some() && country_of(location) == country;
    if !keep(left, is_there) {
        keep(left, |location| country_of(location).is_none());
    }
}

/// Keeps the locations whose attribute `name` is the most preferred of the types that any has.
fn by_media_type(left: &mut Vec<&Location>, name: &str, accept: Option<&AcceptTypes>) {
    let has = |location: &Location, accepted: &str| {
        location.attribute(name).is_some_and(|kind| kind.trim().eq_ignore_ascii_case(accepted))
    };
    for accepted in accept.into_iter().flat_map(AcceptTypes::iter) {
        if keep(left, |location| has(location, accepted)) {
            return;
        }
    }
}

fn by_score(left: &mut Vec<&Location>) {
    let score = |location: &Location| {
        let score = location.attribute("score").and_then(|text| text.trim().parse::<f64>().ok());
        score.filter(|score| !score.is_nan()).unwrap_or(0.0)
    };
    let highest = left.iter().map(|location| score(location)).fold(f64::NEG_INFINITY, f64::max);
    keep(left, |location| score(location) >= highest);
}

/// The weight of a location: 1 if it is missing or not a number, 0 if it is negative.
fn weight(location: &Location) -> f64 {
    let weight = location.attribute("weight").and_then(|text| text.trim().parse::<f64>().ok());
    weight.filter(|weight| !weight.is_nan()).unwrap_or(1.0).clamp(0.0, WEIGHT_MAX)
}

/// One location at random, with a probability proportional to its weight. If all weights are 0, all
/// are equally likely.
fn weighted<'a>(left: &[&'a Location], random: u64) -> Option<&'a Location> {
    let total: f64 = left.iter().map(|location| weight(location)).sum();
    if total <= 0.0 {
        let at = (u128::from(random) * left.len() as u128) >> 64;
        return usize::try_from(at).ok().and_then(|at| left.get(at).copied());
    }
    // The upper 53 bits, which a float of 64 bits has exactly.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let fraction = (random >> 11) as f64 / (1_u64 << 53) as f64;
    let mut rest = fraction * total;
    let mut last = None;
    for location in left {
        let weight = weight(location);
        if weight > 0.0 {
            last = Some(*location);
            if rest < weight {
                break;
            }
            rest -= weight;
        }
    }
    last
}

/// Whether one of the networks in `addresses` contains `address`.
fn is_addressed(location: &Location, address: IpAddr) -> bool {
    let networks = location.attribute("addresses").unwrap_or_default();
    networks.split(',').any(|network| contains(network.trim(), address).unwrap_or(false))
}

/// Whether a network, such as `192.0.2.0/24`, contains `address`; `None` if it is not a network.
fn contains(network: &str, address: IpAddr) -> Option<bool> {
    let (base, len) = match network.split_once('/') {
        Some((base, len)) => (base, Some(len.parse::<u32>().ok()?)),
        None => (network, None),
    };
    let (base, address, bits) = match (base.parse::<IpAddr>().ok()?, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            (u128::from(base.to_bits()), u128::from(address.to_bits()), 32)
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => (base.to_bits(), address.to_bits(), 128),
        _ => return Some(false),
    };
    let host_bits = bits - len.filter(|len| *len <= bits).or(len.is_none().then_some(bits))?;
    Some(u128::checked_shr(base ^ address, host_bits).unwrap_or(0) == 0)
}
