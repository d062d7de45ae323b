mod codes;
mod sessions;

use super::world::{BEGIN, SITE_FAULTS, SimulatedWorld, WorldFault, ask, dice, signing_site, value};
use super::*;
use crate::administration::IdentityKey;
use crate::question::AnswerWants;
use crate::trace::AnswerOrigin;
use handle_proto::ResponseCode;
use handle_proto::data::site::{InterfaceProtocol, SiteFlags};
use handle_proto::{Handle, Permissions, Value, ValueBuf};

/// A global service of one site, and a service for the prefix 10.a with two sites: one of three
/// servers, and one of a single server.
fn world() -> (SimulatedWorld, Arc<Client>) {
    let mut world = SimulatedWorld::default();
    let (root, sites) = (signing_site(&[1]), [signing_site(&[11, 12, 13]), signing_site(&[21])]);
    let global = world.service(vec![root.clone()]);
    let local = world.service(sites.to_vec());
    world.record(
        global,
        "0.NA/10.A",
        vec![value(1, b"HS_SITE", sites[0].as_bytes()), value(2, b"HS_SITE", sites[1].as_bytes())],
    );
    world.record(
        local,
        "10.A/X",
        vec![value(1, b"URL", b"https://example.org/"), value(2, b"EMAIL", b"a@b")],
    );
    (world, Arc::new(Client::new(Root::of_sites([root]))))
}

fn resolve(
    world: &mut SimulatedWorld,
    client: &Arc<Client>,
    handle: &str,
) -> Result<LookupAnswer, LookupError> {
    ask(world, client, &Question::all(handle.as_bytes()), &LookupOptions::default())
}

fn certified(handle: &str) -> Question {
    Question {
        wants: AnswerWants { certified: true, ..AnswerWants::default() },
        ..Question::all(handle.as_bytes())
    }
}

fn data(answer: &LookupAnswer) -> Vec<String> {
    answer.values().iter().map(|value| String::from_utf8_lossy(value.data).into_owned()).collect()
}

fn at(number: u8) -> std::net::SocketAddr {
    ([192, 0, 2, number], 2641).into()
}

#[test]
fn a_handle_is_resolved_from_the_global_service_down() {
    let (mut world, client) = world();
    let answer = resolve(&mut world, &client, "10.a/x").unwrap();
    assert_eq!(data(&answer), ["https://example.org/", "a@b"]);
    assert_eq!((answer.handle.as_slice(), answer.cached), (&b"10.a/x"[..], false));
    assert_eq!(world.requests_sent.len(), 2, "{:?}", world.requests_sent);
    assert_eq!(world.requests_sent[0], "192.0.2.1/UDP");
    // The next handle of the prefix takes one request, and the same handle none.
    assert_eq!(resolve(&mut world, &client, "10.a/y").unwrap().code, ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(world.requests_sent.len(), 3, "{:?}", world.requests_sent);
    let again = resolve(&mut world, &client, "10.A/x").unwrap();
    assert_eq!((again.handle.as_slice(), again.cached, world.requests_sent.len()), (&b"10.A/x"[..], true, 3));
}

#[test]
fn a_service_is_found_without_asking_its_servers() {
    let (mut world, client) = world();
    let options = LookupOptions { service_only: true, ..LookupOptions::default() };
    for (handle, sites, requests) in [("10.a/x", 2, 1), ("10.a/none", 2, 1), ("0.NA/10.a", 1, 2)] {
        let question = Question::all(handle.as_bytes());
        let mut lookup = Lookup::new(Arc::clone(&client), question, options.clone(), dice(1), BEGIN);
        let (outcome, _) = world.run(&mut lookup, BEGIN);
        outcome.unwrap();
        assert_eq!((lookup.service().len(), world.requests_sent.len()), (sites, requests), "{handle}");
    }
    let mut lookup = Lookup::new(client, Question::all(b"10.b/x"), options, dice(1), BEGIN);
    let (outcome, _) = world.run(&mut lookup, BEGIN);
    assert!(matches!(outcome, Err(LookupError::NoService { .. })), "{outcome:?}");
    assert!(lookup.service().is_empty());
}

#[test]
fn a_record_cannot_lead_to_a_forbidden_network() {
    let (mut world, client) = world();
    let mut client = Arc::into_inner(client).unwrap();
    let all = handle_auth::source::SourceList::parse(&["192.0.2.0/24".to_owned()]).unwrap();
    client.preferences.forbidden = all;
    let client = Arc::new(client);
    let outcome = resolve(&mut world, &client, "10.a/x");
    assert!(matches!(outcome, Err(LookupError::NoServer { .. })), "{outcome:?}");
    assert_eq!(world.requests_sent, ["192.0.2.1/UDP"], "the global service is configured");
    let sites = vec![Arc::new(signing_site(&[21]))];
    let options = LookupOptions { target: LookupTarget::Sites(sites), ..LookupOptions::default() };
    let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &options).unwrap();
    assert_eq!(answer.code, ResponseCode::SUCCESS, "the caller knows what it asks for");
}

#[test]
fn the_server_is_the_one_that_the_hash_chooses() {
    let (mut world, client) = world();
    world.fail(21, WorldFault::Gone);
    for number in 0..20 {
        let handle = format!("10.a/{number}");
        let expected = Handle(handle.as_bytes()).server_at(handle_proto::HashOption::Handle, 3).unwrap();
        let answer = resolve(&mut world, &client, &handle).unwrap();
        assert_eq!(answer.code, ResponseCode::HANDLE_NOT_FOUND);
        assert_eq!(answer.from, Some(at(11 + u8::try_from(expected).unwrap())), "{handle}");
    }
}

#[test]
fn silent_servers_are_retried_then_passed_over_then_asked_over_tcp() {
    let (mut world, client) = world();
    (11..=13).for_each(|number| world.fail(number, WorldFault::Silent));
    world.no_datagrams.push(at(21));
    let mut lookup = Lookup::new(client, Question::all(b"10.a/x"), LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    assert_eq!(data(&outcome.unwrap()), ["https://example.org/", "a@b"]);
    // Three attempts at each site in datagrams, then over connections: 60 s for the silent one.
    let waited_ms = now.ms - BEGIN.ms;
    assert!([6_002, 66_002].contains(&waited_ms), "{waited_ms}");
    let over_tcp = world.requests_sent.iter().filter(|request| request.ends_with("TCP")).count();
    assert!((1..=2).contains(&over_tcp), "{:?}", world.requests_sent);
}

#[test]
fn a_faulty_site_does_not_affect_the_answer() {
    for fault in SITE_FAULTS {
        for seed in 0..4 {
            let (mut world, client) = world();
            (11..=13).for_each(|number| world.fail(number, fault));
            let mut lookup =
                Lookup::new(client, certified("10.a/x"), LookupOptions::default(), dice(seed), BEGIN);
            let (outcome, now) = world.run(&mut lookup, BEGIN);
            let answer = outcome.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert_eq!(data(&answer), ["https://example.org/", "a@b"], "{fault:?}");
            assert!(answer.certified && answer.from == Some(at(21)), "{fault:?}");
            assert!(now.ms - BEGIN.ms <= 3_002, "{fault:?} took {} ms", now.ms - BEGIN.ms);
        }
    }
}

#[test]
fn the_error_names_the_last_failed_server_and_the_cause() {
    let (mut world, client) = world();
    [11, 12, 13, 21].into_iter().for_each(|number| world.fail(number, WorldFault::OtherKey));
    let error = ask(&mut world, &client, &certified("10.a/x"), &LookupOptions::default()).unwrap_err();
    let LookupError::AllFailed { attempts: 4, last: AttemptError::Signature(_), .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("signature"), "{error}");
}

#[test]
fn an_answer_is_not_certified_by_a_site_without_a_key() {
    let (mut world, _) = world();
    let client = Arc::new(Client::new(Root::of_sites([crate::testing::site_at(1)])));
    let error = ask(&mut world, &client, &certified("10.a/x"), &LookupOptions::default()).unwrap_err();
    assert!(matches!(error, LookupError::AllFailed { last: AttemptError::NoKey, .. }), "{error}");
}

#[test]
fn services_are_named_by_reference_over_several_steps_and_in_circles() {
    let (mut world, client) = world();
    let site = signing_site(&[31]);
    let serv = |handle: &[u8]| vec![value(1, b"HS_SERV", handle)];
    world.record(0, "0.NA/10.B", serv(b"10.A/SERVICE"));
    world.record(1, "10.A/SERVICE", serv(b"10.A/NEXT"));
    world.record(
        1,
        "10.A/NEXT",
        vec![value(1, b"HS_SITE", site.as_bytes()), value(2, b"HS_SERV", b"10.a/service")],
    );
    let service = world.service(vec![site]);
    world.record(service, "10.B/X", vec![value(1, b"URL", b"here")]);
    assert_eq!(data(&resolve(&mut world, &client, "10.b/x").unwrap()), ["here"]);
    // The global service as the service of a prefix.
    world.record(0, "0.NA/10.C", serv(b"0.NA/0.NA"));
    world.record(0, "10.C/X", vec![value(1, b"URL", b"there")]);
    assert_eq!(data(&resolve(&mut world, &client, "10.c/x").unwrap()), ["there"]);
    // A service whose search requires the service itself.
    world.record(0, "0.NA/10.D", serv(b"10.D/SERVICE"));
    let error = resolve(&mut world, &client, "10.d/x").unwrap_err();
    assert_eq!(error, LookupError::Circle { record: b"0.NA/10.D".to_vec() });
    // The same through another service.
    world.record(0, "0.NA/10.E", serv(b"10.F/SERVICE"));
    world.record(0, "0.NA/10.F", serv(b"10.E/SERVICE"));
    let error = resolve(&mut world, &client, "10.e/x").unwrap_err();
    assert_eq!(error, LookupError::Circle { record: b"0.NA/10.E".to_vec() });
    // A branch may fail if the other leads to sites.
    let both = vec![value(1, b"HS_SERV", b"10.D/SERVICE"), value(2, b"HS_SERV", b"10.A/SERVICE")];
    world.record(0, "0.NA/10.B", both);
    let client = Arc::new(Client::new((*client.root.get()).clone()));
    assert_eq!(data(&resolve(&mut world, &client, "10.b/x").unwrap()), ["here"]);
}

#[test]
fn records_of_derived_prefixes_are_found_at_their_delegation() {
    let (mut world, client) = world();
    let (delegated, derived) = (signing_site(&[41]), signing_site(&[42, 43]));
    world.services[0].records.get_mut(&b"0.NA/10.A"[..]).unwrap().push(value(
        3,
        b"HS_SITE.PREFIX",
        delegated.as_bytes(),
    ));
    let registry = world.service(vec![delegated.clone()]);
    world.record(registry, "0.NA/10.A.SUB", vec![value(1, b"HS_SITE", derived.as_bytes())]);
    let service = world.service(vec![derived]);
    world.record(service, "10.A.SUB/X", vec![value(1, b"URL", b"sub")]);
    let options = LookupOptions { trace: true, ..LookupOptions::default() };
    let mut lookup = Lookup::new(Arc::clone(&client), certified("10.a.sub/x"), options, dice(1), BEGIN);
    let answer = world.run(&mut lookup, BEGIN).0.unwrap();
    assert_eq!((data(&answer), answer.certified), (vec!["sub".to_owned()], true));
    let origins: Vec<_> = lookup
        .events()
        .iter()
        .filter_map(|event| match event.step {
            LookupStep::Sites { from, ref sites } => Some((from, sites.len())),
            _ => None,
        })
        .collect();
    assert_eq!(origins, [(AnswerOrigin::Root, 1), (AnswerOrigin::Referral, 1), (AnswerOrigin::Prefix, 1)]);
    // By reference, to a service handle that has sites for prefixes.
    world.record(0, "0.NA/10.A", vec![value(3, b"HS_SERV.PREFIX", b"0.SERV/R")]);
    world.record(0, "0.SERV/R", vec![value(1, b"HS_SITE.PREFIX", delegated.as_bytes())]);
    let client = Arc::new(Client::new((*client.root.get()).clone()));
    assert_eq!(data(&resolve(&mut world, &client, "10.a.sub/x").unwrap()), ["sub"]);
}

#[test]
fn referrals_of_moved_services_are_followed() {
    let (mut world, client) = world();
    let moved = signing_site(&[51]);
    world.services[1].refers_to = Some(vec![value(1, b"HS_SITE", moved.as_bytes())]);
    let service = world.service(vec![moved]);
    world.record(service, "10.A/MOVED", vec![value(1, b"URL", b"moved")]);
    assert_eq!(data(&resolve(&mut world, &client, "10.a/moved").unwrap()), ["moved"]);
    // A caller that names the sites gets the referral.
    let sites = vec![Arc::new(signing_site(&[21]))];
    let options = LookupOptions { target: LookupTarget::Sites(sites), ..LookupOptions::default() };
    let answer = ask(&mut world, &client, &Question::all(b"10.a/other"), &options).unwrap();
    assert_eq!(answer.code, ResponseCode::SERVICE_REFERRAL);
    // A circle ends.
    world.fail(51, WorldFault::RefersToItself);
    let error = resolve(&mut world, &client, "10.a/elsewhere").unwrap_err();
    assert!(matches!(error, LookupError::TooManyIndirections { .. }), "{error}");
    assert!(world.sent_count < 100, "{}", world.sent_count);
    world.fail(51, WorldFault::Refers);
    let error = resolve(&mut world, &client, "10.a/nowhere").unwrap_err();
    assert!(matches!(error, LookupError::NoService { .. }), "{error}");
}

#[test]
fn an_unknown_prefix_is_requested_once_more_and_then_an_error() {
    let (mut world, client) = world();
    let error = resolve(&mut world, &client, "10.none/x").unwrap_err();
    let code = Some(ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(error, LookupError::NoService { record: b"0.NA/10.NONE".to_vec(), code });
    assert!(error.to_string().contains("check its spelling"), "{error}");
    assert_eq!(world.requests_sent.len(), 2, "the second time of a primary site: {:?}", world.requests_sent);
    world.record(0, "0.NA/10.EMPTY", vec![value(1, b"URL", b"x")]);
    let error = resolve(&mut world, &client, "10.empty/x").unwrap_err();
    assert!(matches!(error, LookupError::NoService { code: Some(ResponseCode::VALUES_NOT_FOUND), .. }));
    assert_eq!(
        resolve(&mut world, &Arc::new(Client::new(Root::default())), "10.a/x"),
        Err(LookupError::NoRoot)
    );
}

#[test]
fn authoritative_questions_go_to_primary_sites_past_the_cache() {
    let (mut world, client) = world();
    let mut mirror = signing_site(&[21]).edit();
    mirror.flags = SiteFlags(0);
    let mirror = mirror.build();
    world.services[1].sites[1] = mirror.clone();
    let primary = signing_site(&[11, 12, 13]);
    let sites = vec![value(1, b"HS_SITE", mirror.as_bytes()), value(2, b"HS_SITE", primary.as_bytes())];
    world.record(0, "0.NA/10.A", sites);
    let mut question = Question::all(b"10.a/x");
    question.wants.authoritative = true;
    for _ in 0..3 {
        let answer = ask(&mut world, &client, &question, &LookupOptions::default()).unwrap();
        assert_ne!(answer.from, Some(at(21)));
        assert!(!answer.cached);
    }
    world.record(0, "0.NA/10.A", vec![value(1, b"HS_SITE", mirror.as_bytes())]);
    let client = Arc::new(Client::new((*client.root.get()).clone()));
    let error = ask(&mut world, &client, &question, &LookupOptions::default()).unwrap_err();
    assert_eq!(error, LookupError::NoServer { handle: b"10.a/x".to_vec() });
}

#[test]
fn aliases_are_followed_up_to_the_limit() {
    let (mut world, client) = world();
    let alias = |to: &[u8]| vec![value(1, b"HS_ALIAS", to)];
    world.record(1, "10.A/ONE", alias(b"10.a/two"));
    world.record(1, "10.A/TWO", alias(b"10.a/x"));
    world.record(1, "10.A/LOOP", alias(b"10.a/loop"));
    let options = LookupOptions { aliases_max: 5, ..LookupOptions::default() };
    for question in [Question::all(b"10.a/one"), Question::of_types(b"10.a/one", &[b"URL"])] {
        let answer = ask(&mut world, &client, &question, &options).unwrap();
        assert_eq!((answer.handle.as_slice(), answer.aliases_count), (&b"10.a/x"[..], 2));
        assert_eq!(data(&answer)[0], "https://example.org/");
        assert_eq!(answer.values().len(), if question.is_for_all() { 2 } else { 1 });
    }
    let plain = Question::of_types(b"10.a/x", &[b"URL"]);
    assert_eq!(ask(&mut world, &client, &plain, &options).unwrap().aliases_count, 0);
    let error = ask(&mut world, &client, &Question::all(b"10.a/loop"), &options).unwrap_err();
    assert!(matches!(error, LookupError::TooManyIndirections { .. }), "{error}");
    let few = LookupOptions { aliases_max: 1, ..LookupOptions::default() };
    let error = ask(&mut world, &client, &Question::all(b"10.a/one"), &few).unwrap_err();
    assert!(matches!(error, LookupError::TooManyIndirections { .. }), "{error}");
    // Deployed clients follow none.
    let answer = resolve(&mut world, &client, "10.a/one").unwrap();
    assert_eq!((data(&answer), answer.aliases_count), (vec!["10.a/two".to_owned()], 0));
}

#[test]
fn private_values_require_authentication() {
    let (mut world, client) = world();
    let secret =
        ValueBuf::from(&Value { permissions: Permissions::ADMIN_READ, ..Value::new(3, b"X", b"hidden") });
    world.record(1, "10.A/P", vec![value(1, b"URL", b"shown"), secret]);
    world.services[1].secret = Some(b"open sesame".to_vec());
    let mut question = Question::all(b"10.a/p");
    question.wants.public_only = false;
    let identity = |secret: &[u8]| {
        let key = IdentityKey::Secret(secret.to_vec().into());
        Some(Arc::new(ClientIdentity { handle: b"10.A/ADMIN".to_vec(), index: 301, key }))
    };
    let options =
        |secret: &[u8]| LookupOptions { identity: identity(secret), trace: true, ..LookupOptions::default() };
    let answer = ask(&mut world, &client, &question, &options(b"open sesame")).unwrap();
    assert_eq!(data(&answer), ["shown", "hidden"]);
    let error = ask(&mut world, &client, &question, &options(b"open barley")).unwrap_err();
    assert_eq!(error, LookupError::Challenge("it repeats its challenge"));
    let answer = ask(&mut world, &client, &question, &LookupOptions::default()).unwrap();
    assert_eq!(answer.code, ResponseCode::AUTHENTICATION_NEEDED);
    // A server that fails after the challenge is passed over; the next server's challenge is about
    // another request.
    let hashed = Handle(b"10.a/p").server_at(handle_proto::HashOption::Handle, 3).unwrap();
    let next = at(11 + u8::try_from(hashed).unwrap());
    let servers = [at(21), next].map(|address| ServerTarget::at(address, InterfaceProtocol::TCP));
    world.fail(21, WorldFault::OtherHandle);
    let of_servers =
        LookupOptions { target: LookupTarget::Servers(servers.to_vec()), ..options(b"open sesame") };
    let answer = ask(&mut world, &client, &question, &of_servers).unwrap();
    assert_eq!((answer.from, data(&answer)), (Some(next), vec!["shown".to_owned(), "hidden".to_owned()]));
    world.faults.clear();
    // Private values are never cached.
    let answer = resolve(&mut world, &client, "10.a/p").unwrap();
    assert_eq!(data(&answer), ["shown"]);
}

#[test]
fn given_sites_need_no_global_service() {
    let (mut world, _) = world();
    let mut client = Client::new(Root::default());
    client.overrides.add(b"0.NA/10.a", signing_site(&[21]));
    let answer = resolve(&mut world, &Arc::new(client), "10.a/x").unwrap();
    assert_eq!((answer.from, world.requests_sent.len()), (Some(at(21)), 1));
}

#[test]
fn given_servers_are_asked_in_order() {
    let (mut world, client) = world();
    let servers = [at(99), at(21)].map(|address| ServerTarget::at(address, InterfaceProtocol::TCP));
    world.fail(99, WorldFault::Gone);
    let options =
        LookupOptions { target: LookupTarget::Servers(servers.to_vec()), ..LookupOptions::default() };
    let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &options).unwrap();
    assert_eq!(answer.from, Some(at(21)));
    assert_eq!(world.requests_sent, ["192.0.2.99/TCP", "192.0.2.21/TCP"]);
    // Answers of named servers are not shared with others, and others' answers are not used for
    // them.
    let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &LookupOptions::default()).unwrap();
    assert!(!answer.cached);
    let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &options).unwrap();
    assert_eq!((answer.from, answer.cached), (Some(at(21)), false));
}

#[test]
fn requests_indirections_and_time_are_bounded_at_their_edges() {
    let limited = |limits: LookupLimits| {
        let (world, client) = world();
        let mut client = Client::new((*client.root.get()).clone());
        client.limits = limits;
        (world, Arc::new(client))
    };
    let plain = LookupLimits::default();
    let (mut world, client) = limited(LookupLimits { requests_max: 2, ..plain });
    assert!(resolve(&mut world, &client, "10.a/x").is_ok());
    let (mut world, client) = limited(LookupLimits { requests_max: 1, ..plain });
    assert_eq!(resolve(&mut world, &client, "10.a/x"), Err(LookupError::TooManyRequests));
    // The service of the prefix, and the record that names it.
    let (mut world, client) = limited(LookupLimits { indirections_max: 2, ..plain });
    assert!(resolve(&mut world, &client, "10.a/x").is_ok());
    let (mut world, client) = limited(LookupLimits { indirections_max: 1, ..plain });
    let error = resolve(&mut world, &client, "10.a/x").unwrap_err();
    assert_eq!(error, LookupError::TooManyIndirections { handle: b"0.NA/10.A".to_vec() });
    let (mut world, client) = limited(LookupLimits { timeout_ms: 500, ..plain });
    (1..=99).for_each(|number| world.fail(number, WorldFault::Silent));
    let mut lookup = Lookup::new(client, Question::all(b"10.a/x"), LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    assert_eq!(outcome, Err(LookupError::TooSlow { handle: b"0.NA/10.A".to_vec() }));
    assert_eq!(now.ms - BEGIN.ms, 500);
}

#[test]
fn late_bytes_of_an_exchange_change_nothing() {
    let (mut world, client) = world();
    let mut lookup = Lookup::new(client, Question::all(b"10.a/x"), LookupOptions::default(), dice(1), BEGIN);
    let (number, _) = lookup.poll_transmit(BEGIN).unwrap();
    lookup.handle_datagram(BEGIN, number + 1, b"later");
    lookup.handle_failure(BEGIN, number + 1, AttemptError::Unreachable);
    lookup.handle_datagram(BEGIN, number, b"short");
    assert!(lookup.take_outcome().is_none());
    let (outcome, _) = world.run(&mut lookup, BEGIN);
    // The first answer was lost, so the request was sent again.
    assert!(outcome.is_ok());
}

/// The world of [`world`], with an additional IPv6 address for the second site of the service.
fn both_families() -> (SimulatedWorld, Arc<Client>, std::net::SocketAddr) {
    let (mut world, client) = world();
    let mut site = signing_site(&[21]).edit();
    site.attribute("alt_addr", "2001:db8::21");
    let site = site.build();
    world.record(0, "0.NA/10.A", vec![value(1, b"HS_SITE", site.as_bytes())]);
    let mut other = SimulatedWorld::default();
    other.service(vec![site]);
    world.services[1].sites = other.services.remove(0).sites;
    (world, client, "[2001:db8::21]:2641".parse().unwrap())
}

#[test]
fn ipv6_is_tried_first_and_raced_by_ipv4_when_slow() {
    let (mut world, client, six) = both_families();
    let question = Question::all(b"10.a/x");
    let answer = ask(&mut world, &client, &question, &LookupOptions::default()).unwrap();
    assert_eq!((answer.from, world.requests_sent.len()), (Some(six), 2), "{:?}", world.requests_sent);
    // Silent: after 300 ms the other server is asked as well, and the silent one is avoided for a
    // while.
    let fresh = |client: &Arc<Client>| Arc::new(Client::new((*client.root.get()).clone()));
    let client = fresh(&client);
    world.faults.insert(six, WorldFault::Silent);
    let mut lookup =
        Lookup::new(Arc::clone(&client), question.clone(), LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    assert_eq!((outcome.unwrap().from, now.ms - BEGIN.ms), (Some(at(21)), 302));
    client.cache.forget(b"10.a/x");
    world.requests_sent.clear();
    let answer = ask(&mut world, &client, &question, &LookupOptions::default()).unwrap();
    assert_eq!(
        (answer.from, world.requests_sent.as_slice()),
        (Some(at(21)), &["192.0.2.21/UDP".to_owned()][..])
    );
    // Slow, but not silent: the first answer wins.
    let client = fresh(&client);
    world.faults.clear();
    for (delay_ms, from) in [(299, six), (400, at(21))] {
        client.cache.forget(b"10.a/x");
        world.delay_ms.insert(six, delay_ms);
        let answer = ask(&mut world, &fresh(&client), &question, &LookupOptions::default()).unwrap();
        assert_eq!(answer.from, Some(from), "{delay_ms}");
    }
    // A refused connection is not waited for, and servers that do not race are asked in turn.
    world.delay_ms.clear();
    world.faults.insert(six, WorldFault::Gone);
    let mut lookup = Lookup::new(fresh(&client), question.clone(), LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    assert_eq!((outcome.unwrap().from, now.ms - BEGIN.ms), (Some(at(21)), 3));
    world.faults.insert(six, WorldFault::Silent);
    let mut client = Client::new((*client.root.get()).clone());
    client.preferences.fallback_ms = None;
    client.times.note(at(21), 1_000, BEGIN);
    let mut lookup = Lookup::new(Arc::new(client), question, LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    assert_eq!((outcome.unwrap().from, now.ms - BEGIN.ms), (Some(at(21)), 3_002));
}

#[test]
fn the_first_established_connection_ends_the_race() {
    let (mut world, known, six) = both_families();
    let mut client = Client::new((*known.root.get()).clone());
    client.preferences.protocols = vec![InterfaceProtocol::TCP];
    let question = Question::all(b"10.a/x");
    let mut lookup = Lookup::new(Arc::new(client), question, LookupOptions::default(), dice(1), BEGIN);
    // The record of the prefix.
    let (_, transmit) = lookup.poll_transmit(BEGIN).unwrap();
    assert_eq!(transmit.target.address, at(1));
    world.faults.insert(six, WorldFault::Ends);
    world.faults.insert(at(21), WorldFault::Silent);
    let number =
        |lookup: &mut Lookup, now| lookup.poll_transmit(now).map(|(number, it)| (number, it.target.address));
    let reply = world.message(&transmit, BEGIN);
    lookup.handle_stream(BEGIN, 1, &reply);
    let (first, address) = number(&mut lookup, BEGIN).unwrap();
    assert_eq!(address, six);
    let now = ClockReading { ms: BEGIN.ms + 300, ..BEGIN };
    assert_eq!(lookup.poll_timeout(), Some(now.ms));
    lookup.handle_timeout(now);
    let (second, address) = number(&mut lookup, now).unwrap();
    assert_eq!(address, at(21));
    assert!(lookup.is_under_way(first) && lookup.is_under_way(second));
    lookup.handle_connected(second);
    assert!(!lookup.is_under_way(first) && lookup.is_under_way(second));
    // The server that lost the race is asked again if the winner fails.
    lookup.handle_failure(now, second, AttemptError::Ended);
    assert_eq!(number(&mut lookup, now).map(|(_, address)| address), Some(six));
}

#[test]
fn servers_without_an_address_are_found_by_name() {
    let (mut world, client) = world();
    let mut site = signing_site(&[21]).edit();
    site.servers[0].address = handle_proto::data::site::Address::UNSPECIFIED;
    site.attribute("domain", "hdl.example");
    world.record(0, "0.NA/10.A", vec![value(1, b"HS_SITE", site.build().as_bytes())]);
    let question = Question::all(b"10.a/x");
    // The name is not answered: the lookup waits for the timeout once, and not again for each
    // protocol.
    let mut lookup =
        Lookup::new(Arc::clone(&client), question.clone(), LookupOptions::default(), dice(1), BEGIN);
    let (outcome, now) = world.run(&mut lookup, BEGIN);
    let error = outcome.unwrap_err();
    assert!(matches!(error, LookupError::AllFailed { last: AttemptError::NoAddress, .. }), "{error}");
    assert_eq!((now.ms - BEGIN.ms, world.named.len()), (5_001, 1));
    // Of its addresses the first that answers is used.
    let client = Arc::new(Client::new((*client.root.get()).clone()));
    let addresses = ["192.0.2.22", "2001:db8::1", "192.0.2.21"].map(|text| text.parse().unwrap());
    world.names.insert("hdl.example".to_owned(), addresses.to_vec());
    world.faults.insert("[2001:db8::1]:2641".parse().unwrap(), WorldFault::Gone);
    world.fail(22, WorldFault::Gone);
    let options = LookupOptions { trace: true, ..LookupOptions::default() };
    let mut lookup = Lookup::new(Arc::clone(&client), question.clone(), options, dice(1), BEGIN);
    assert_eq!(world.run(&mut lookup, BEGIN).0.unwrap().from, Some(at(21)));
    let steps: Vec<String> = lookup.events().iter().map(ToString::to_string).collect();
    let named = "hdl.example is at 192.0.2.22, 2001:db8::1, 192.0.2.21";
    assert!(steps.iter().any(|step| step == named), "{steps:?}");
    assert_eq!(
        world.requests_sent[world.requests_sent.len() - 3..],
        ["2001:db8::1/UDP", "192.0.2.22/UDP", "192.0.2.21/UDP"]
    );
    client.cache.forget(b"10.a/x");
    world.named.clear();
    assert!(ask(&mut world, &client, &question, &LookupOptions::default()).is_ok());
    assert_eq!(world.named.len(), 0, "known for a while");
}

#[test]
fn http_is_the_last_way() {
    let (mut world, client) = world();
    let mut site = signing_site(&[21]).edit();
    let http = handle_proto::data::site::Interface::new(
        handle_proto::data::site::InterfaceKind::QUERY,
        InterfaceProtocol::HTTP,
        8000,
    );
    site.servers[0].interfaces.push(http);
    world.record(0, "0.NA/10.A", vec![value(1, b"HS_SITE", site.build().as_bytes())]);
    world.fail(21, WorldFault::Gone);
    for _ in 0..3 {
        let client = Arc::new(Client::new((*client.root.get()).clone()));
        let answer = ask(&mut world, &client, &certified("10.a/x"), &LookupOptions::default()).unwrap();
        assert_eq!(data(&answer), ["https://example.org/", "a@b"]);
        assert_eq!(answer.from, Some(([192, 0, 2, 21], 8000).into()));
        let last = &world.requests_sent[world.requests_sent.len() - 3..];
        assert_eq!(last, ["192.0.2.21/UDP", "192.0.2.21/TCP", "192.0.2.21/HTTP"]);
        // The body has another form each time.
        world.sent_count += 1;
    }
}

#[test]
fn a_newer_serial_or_a_refusal_for_it_makes_the_global_service_due() {
    for (serial, fault, is_due) in [
        (Some(0), None, false),
        (Some(1), None, true),
        (None, Some(WorldFault::Code(ResponseCode::OUT_OF_DATE_SITE_INFO)), true),
        (None, Some(WorldFault::Code(ResponseCode::SERVER_BUSY)), false),
    ] {
        let (mut world, client) = world();
        let root =
            Root { trusted_keys: vec![super::world::server_key().to_vec()], ..(*client.root.get()).clone() };
        let client = Arc::new(Client::new(root));
        world.serial = serial;
        if let Some(fault) = fault {
            (11..=13).for_each(|number| world.fail(number, fault));
            world.fail(21, fault);
        }
        let _ = resolve(&mut world, &client, "10.a/x");
        let renewing = crate::refresh::RenewalGuard::begin(&client, BEGIN);
        assert_eq!(renewing.is_some(), is_due, "{serial:?} {fault:?}");
    }
    // Serials of other services do not concern the global service.
    let (mut world, client) = world();
    let root =
        Root { trusted_keys: vec![super::world::server_key().to_vec()], ..(*client.root.get()).clone() };
    let client = Arc::new(Client::new(root));
    assert!(resolve(&mut world, &client, "10.a/x").is_ok());
    client.cache.forget(b"10.a/x");
    world.serial = Some(7);
    assert!(resolve(&mut world, &client, "10.a/x").is_ok());
    assert!(crate::refresh::RenewalGuard::begin(&client, BEGIN).is_none());
}

#[test]
fn the_namespace_of_a_prefix_is_known_when_its_service_is() {
    let (mut world, client) = world();
    let document = value(9, b"HS_NAMESPACE", b"<namespace/>");
    world.services[0].records.get_mut(&b"0.NA/10.A"[..]).unwrap().push(document);
    assert!(resolve(&mut world, &client, "10.a/x").is_ok());
    let questions = crate::namespace::questions(Handle(b"10.a/y"), AnswerWants::default());
    let answer = client.cache.get(&questions[1], BEGIN).expect("asked for with the sites");
    assert_eq!(crate::namespace::documents(&answer), [b"<namespace/>"]);
}
