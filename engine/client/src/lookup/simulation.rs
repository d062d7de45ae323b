//! A thousand random worlds with random faults: every lookup ends within its limits, and no
//! certified answer is false.

use super::world::{BEGIN, SITE_FAULTS, SimulatedWorld, WorldFault, dice, signing_site, value};
use super::*;
use crate::question::AnswerWants;
use handle_proto::ResponseCode;
use handle_proto::ValueBuf;
use handle_proto::data::site::{Address, Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::ServerBuilder;
use proptest::prelude::*;
use std::net::SocketAddr;

/// Random numbers below a bound.
struct DiceSource(RandomSource);

impl DiceSource {
    fn below(&mut self, bound: usize) -> usize {
        (self.0)() as usize % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

const PREFIXES: [&str; 6] = ["10.A", "10.A.B", "10.A.B.C", "10.B", "10.B.X", "11"];
const SUFFIXES: [&str; 3] = ["X", "SERVICE", "ALIAS"];
const TRUTH: &[u8] = b"the truth";

/// Faults that lead to other servers, in addition to those that lead nowhere.
const MORE_FAULTS: [WorldFault; 3] =
    [WorldFault::Code(ResponseCode::INVALID_HANDLE), WorldFault::Refers, WorldFault::RefersToItself];

/// The site as its records show it: some over HTTP too, some at addresses of the other family, some
/// by name.
fn published(dice: &mut DiceSource, world: &mut SimulatedWorld, site: &SiteBuf) -> SiteBuf {
    let mut published = site.edit();
    if dice.one_in(3) {
        let http = Interface::new(InterfaceKind::QUERY, InterfaceProtocol::HTTP, 2641);
        published.servers.iter_mut().for_each(|server| server.interfaces.push(http));
    }
    if dice.one_in(3) {
        for server in published.servers.clone() {
            published.attribute(format!("alt_addr.{}", server.id), six_of(&server).to_string());
        }
    }
    if dice.one_in(5) {
        for (at, server) in published.servers.clone().iter().enumerate() {
            let name = format!("s{}.example", server.id);
            let addresses = [six_of(server), server.address.ip()];
            if !dice.one_in(3) {
                world.names.insert(name.clone(), addresses[dice.below(2)..].to_vec());
            }
            published.attribute(format!("domain.{at}"), name);
            published.servers[at].address = Address::UNSPECIFIED;
        }
    }
    published.build()
}

fn six_of(server: &ServerBuilder) -> IpAddr {
    six(u8::try_from(server.id).unwrap()).ip()
}

/// The IPv6 address of a server.
fn six(number: u8) -> SocketAddr {
    SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()], 2641))
}

/// A world in which any record may refer to any other.
fn world(dice: &mut DiceSource) -> (SimulatedWorld, Root) {
    let mut world = SimulatedWorld::default();
    let mut servers_count = 0;
    let sites: Vec<Vec<SiteBuf>> =
        (0..5).map(|_| add_service(dice, &mut world, &mut servers_count)).collect();
    for service in 0..sites.len() {
        add_records(dice, &mut world, service, &sites);
    }
    for server in 0..servers_count {
        add_faults(dice, &mut world, server);
    }
    (world, Root::of_sites(sites[0].clone()))
}

/// Adds a service to the world. Returns its sites as records show them.
fn add_service(dice: &mut DiceSource, world: &mut SimulatedWorld, servers_count: &mut u8) -> Vec<SiteBuf> {
    let (mut service, mut shown) = (vec![], vec![]);
    for _ in 0..1 + dice.below(3) {
        let numbers: Vec<u8> =
            (0..1 + dice.below(3)).map(|at| *servers_count + u8::try_from(at).unwrap()).collect();
        *servers_count += 3;
        let site = signing_site(&numbers);
        shown.push(published(dice, world, &site));
        // The actual servers, whatever the records say: at both addresses.
        let mut both = site.edit();
        both.servers.iter_mut().for_each(|server| server.address = six_of(server).into());
        service.extend([site, both.build()]);
    }
    world.service(service);
    shown
}

fn any_handle(dice: &mut DiceSource) -> String {
    match dice.below(8) {
        0 => "0.NA/0.NA".to_owned(),
        _ => format!("{}/{}", PREFIXES[dice.below(PREFIXES.len())], SUFFIXES[dice.below(SUFFIXES.len())]),
    }
}

/// Values that name any services, as sites or by reference.
fn service_values(dice: &mut DiceSource, sites: &[Vec<SiteBuf>], count: usize) -> Vec<ValueBuf> {
    let any_site = |dice: &mut DiceSource| {
        let service = dice.below(sites.len());
        sites[service][dice.below(sites[service].len())].as_bytes().to_vec()
    };
    (1..=count)
        .map(|index| {
            let index = i32::try_from(index).unwrap();
            match dice.below(6) {
                0 | 1 => value(index, b"HS_SITE", &any_site(dice)),
                2 | 3 => value(index, b"HS_SERV", any_handle(dice).as_bytes()),
                4 => value(index, b"HS_SITE.PREFIX", &any_site(dice)),
                _ => value(index, b"HS_SERV.PREFIX", any_handle(dice).as_bytes()),
            }
        })
        .collect()
}

/// Gives a service its records, and perhaps a referral.
fn add_records(dice: &mut DiceSource, world: &mut SimulatedWorld, service: usize, sites: &[Vec<SiteBuf>]) {
    for prefix in PREFIXES {
        if !dice.one_in(4) {
            let count = 1 + dice.below(4);
            let values = service_values(dice, sites, count);
            world.record(service, &format!("0.NA/{prefix}"), values);
        }
        world.record(service, &format!("{prefix}/X"), vec![value(1, b"URL", TRUTH)]);
        let values = service_values(dice, sites, 3);
        world.record(service, &format!("{prefix}/SERVICE"), values);
        let alias = any_handle(dice);
        world.record(service, &format!("{prefix}/ALIAS"), vec![value(1, b"HS_ALIAS", alias.as_bytes())]);
    }
    if dice.one_in(4) {
        world.services[service].refers_to = Some(service_values(dice, sites, 2));
    }
}

/// Gives a server faults and a delay, or none.
fn add_faults(dice: &mut DiceSource, world: &mut SimulatedWorld, server: u8) {
    if dice.one_in(3) {
        let at = dice.below(SITE_FAULTS.len() + MORE_FAULTS.len());
        let fault = SITE_FAULTS.get(at).or_else(|| MORE_FAULTS.get(at - SITE_FAULTS.len()));
        let fault = *fault.expect("one of both");
        world.fail(server, fault);
    }
    for fault in [WorldFault::Silent, WorldFault::Gone] {
        if dice.one_in(4) {
            world.faults.insert(six(server), fault);
        }
    }
    if dice.one_in(5) {
        let delay_ms = u64::try_from(dice.below(5000)).unwrap();
        world.delay_ms.insert(([192, 0, 2, server], 2641).into(), delay_ms);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_lookup_ends_within_its_bounds_and_no_certified_answer_is_false(seed: u64) {
        let mut chance = DiceSource(dice(seed));
        let (mut world, root) = world(&mut chance);
        let mut client = Client::new(root);
        client.timeout.tcp_ms = 5_000;
        client.limits = LookupLimits { requests_max: 64, timeout_ms: 60_000, ..LookupLimits::default() };
        let (requests_max, timeout_ms) = (client.limits.requests_max, client.limits.timeout_ms);
        let client = Arc::new(client);
        let suffix = SUFFIXES[chance.below(SUFFIXES.len())];
        let handle = format!("{}/{suffix}", PREFIXES[chance.below(PREFIXES.len())]);
        // Signing takes most of the time, so only some questions are certified.
        let certified = chance.one_in(4);
        let question = Question {
            wants: AnswerWants { certified, ..AnswerWants::default() },
            ..Question::all(handle.as_bytes())
        };
        let options = LookupOptions { aliases_max: 5, trace: true, ..LookupOptions::default() };
        let mut lookup = Lookup::new(client, question, options, dice(seed ^ 1), BEGIN);
        let (outcome, now) = world.run(&mut lookup, BEGIN);
        prop_assert!(lookup.requests_count() <= requests_max, "{handle}: {} requests", lookup.requests_count());
        prop_assert!(world.sent_count <= 3 * requests_max);
        prop_assert!(now.ms - BEGIN.ms <= timeout_ms, "{handle}: {} ms", now.ms - BEGIN.ms);
        prop_assert!(!lookup.events().is_empty());
        match outcome {
            Ok(answer) => {
                let is_false = answer.values().iter().any(|value| value.kind == b"URL" && value.data != TRUTH);
                prop_assert!(!certified || !is_false, "{handle}: a lie");
                prop_assert!(!certified || answer.certified);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
