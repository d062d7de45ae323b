//! Tests of the effect of each response code on a lookup, and of the search from the records of a
//! service.

use super::*;

/// Two servers in this order, of which the first will fail, and a question that the second answers.
fn two_servers() -> (SimulatedWorld, LookupOptions) {
    let (world, _) = world();
    let hashed = Handle(b"10.a/x").server_at(handle_proto::HashOption::Handle, 3).unwrap();
    let servers = [at(21), at(11 + u8::try_from(hashed).unwrap())];
    let servers = servers.map(|address| ServerTarget::at(address, InterfaceProtocol::TCP));
    (world, LookupOptions { target: LookupTarget::Servers(servers.to_vec()), ..LookupOptions::default() })
}

#[test]
fn every_code_ends_the_lookup_or_leads_to_the_next_server() {
    let passed = [2, 3, 4, 300, 301];
    let codes = (2..=7).chain(100..=102).chain(200..=202).chain(300..=303).chain(400..=406).chain(500..=505);
    for code in codes.chain([77, 999, -1]) {
        let (mut world, options) = two_servers();
        let client = Arc::new(Client::new(Root::default()));
        world.fail(21, WorldFault::Code(ResponseCode(code)));
        let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &options).unwrap();
        let expected = if passed.contains(&code) { 1 } else { code };
        assert_eq!(
            (answer.code.0, world.requests_sent.len()),
            (expected, 1 + usize::from(expected == 1)),
            "{code}"
        );
        // The last server's answer is better than none.
        let (mut world, options) = two_servers();
        let LookupTarget::Servers(servers) = options.target.clone() else { panic!("servers") };
        servers.iter().for_each(|target| {
            world.faults.insert(target.address, WorldFault::Code(ResponseCode(code)));
        });
        let answer = ask(&mut world, &client, &Question::all(b"10.a/x"), &options).unwrap();
        assert_eq!(answer.code.0, code);
    }
}

#[test]
fn a_prefix_without_sites_is_requested_again_at_a_primary_site() {
    let (mut world, client) = world();
    let nowhere = world.service(vec![signing_site(&[31])]);
    world.fail(31, WorldFault::Silent);
    world.record(0, "0.NA/10.SERV", vec![value(1, b"HS_SITE", signing_site(&[31]).as_bytes())]);
    world.record(nowhere, "10.SERV/S", vec![]);
    // The record names nothing, does not exist, or names a service that does not exist or does not
    // answer.
    for (prefix, values, requests) in [
        ("10.B", Some(vec![value(1, b"URL", b"x")]), 2),
        ("10.C", None, 2),
        ("10.D", Some(vec![value(1, b"HS_SERV", b"0.SERV/NONE")]), 3),
        ("10.E", Some(vec![value(1, b"HS_SERV", b"10.serv/s")]), 5),
    ] {
        if let Some(values) = values {
            world.record(0, &format!("0.NA/{prefix}"), values);
        }
        world.requests_sent.clear();
        let error = resolve(&mut world, &client, &format!("{prefix}/x")).unwrap_err();
        assert_eq!(world.requests_sent.len(), requests, "{prefix}: {error}: {:?}", world.requests_sent);
        assert_eq!(
            world.requests_sent.last().unwrap(),
            "192.0.2.1/UDP",
            "{prefix}: the record itself comes last"
        );
    }
}

#[test]
fn a_failing_branch_is_ignored_and_a_circle_of_services_ends() {
    let (mut world, client) = world();
    let site = signing_site(&[21]);
    world.record(
        0,
        "0.NA/10.A",
        vec![
            value(1, b"HS_SERV", b"0.SERV/NONE"),
            value(2, b"HS_SERV", b"0.SERV/ONE"),
            value(3, b"HS_SERV", b"0.na/0.na"),
        ],
    );
    world.record(0, "0.SERV/ONE", vec![value(1, b"HS_SERV", b"0.SERV/TWO")]);
    world.record(
        0,
        "0.SERV/TWO",
        vec![value(1, b"HS_SERV", b"0.serv/one"), value(2, b"HS_SITE", site.as_bytes())],
    );
    let options = LookupOptions { service_only: true, ..LookupOptions::default() };
    let mut lookup = Lookup::new(Arc::clone(&client), Question::all(b"10.a/x"), options, dice(1), BEGIN);
    world.run(&mut lookup, BEGIN).0.unwrap();
    // The sites include those of the global service, because the root is one of the services.
    let mut found: Vec<_> = lookup.service().iter().map(|site| site.as_bytes().to_vec()).collect();
    let mut expected = vec![signing_site(&[1]).into_bytes(), site.into_bytes()];
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_referral_for_prefixes_counts_for_their_records_alone() {
    let (mut world, client) = world();
    let site = signing_site(&[21]);
    world.record(0, "0.NA/20", vec![value(1, b"HS_SITE.PREFIX", site.as_bytes())]);
    world.record(1, "0.NA/20.1", vec![value(7, b"URL", b"of the prefix")]);
    for name in ["0.NA/20.1", "0.na/20.1", "20.1"] {
        let answer = resolve(&mut world, &client, name).unwrap();
        assert_eq!(
            (data(&answer), answer.handle.as_slice()),
            (vec!["of the prefix".to_owned()], name.as_bytes())
        );
    }
    // A server that refers for another handle is not followed.
    [11, 12, 13, 21].into_iter().for_each(|number| {
        world.fail(number, WorldFault::Code(ResponseCode::PREFIX_REFERRAL));
    });
    let answer = resolve(&mut world, &client, "10.a/other").unwrap();
    assert_eq!(answer.code, ResponseCode::PREFIX_REFERRAL);
}
