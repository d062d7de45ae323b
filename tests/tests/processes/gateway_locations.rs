//! 10320/loc from outside: which location `handle-gateway` chooses for a request.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_proxy::{Text, gateway_of};
use handle_tests::country_file::country_file;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, get};
use std::net::Ipv4Addr;

const LOC: &str = "10320/loc";

/// Records under the prefix 1234, in ascending order. Each location has the name of its host.
const RECORDS: &[(&str, &[Text])] = &[
    (
        "0.na/1234",
        &[
            (LOC, "<locations><location href='https://ns.example/' view='ns' weight='0'/></locations>"),
            ("URL", "https://no-url-of-the-prefix.example/"),
        ],
    ),
    (
        "1234/address",
        &[(
            LOC,
            "<locations><location href='https://v4.example/' addresses='203.0.113.0/24, 198.51.100.7' weight='0'/>\
             <location href='https://v6.example/' addresses='2001:db8::/32' weight='0'/>\
             <location href='https://any.example/'/></locations>",
        )],
    ),
    (
        "1234/bom",
        &[
            (LOC, "\u{feff}<locations><x><y/></x><location href='https://bom.example/'/></locations>"),
            ("URL", "https://url.example/"),
        ],
    ),
    (
        "1234/choose-by",
        &[(
            LOC,
            "<locations choose_by=' no-such-method , score '><location href='https://a.example/' score='1' weight='0'/>\
             <location href='https://b.example/'/></locations>",
        )],
    ),
    (
        "1234/conneg",
        &[(
            LOC,
            "<locations><location href='https://people.example/'/>\
             <location href='https://machines.example/' http_role='conneg' weight='0'/></locations>",
        )],
    ),
    (
        "1234/country",
        &[(
            LOC,
            "<locations><location href='https://gb.example/' country='gb' weight='0'/>\
             <location href='https://de.example/' country='DE' weight='0'/>\
             <location href='https://none.example/'/></locations>",
        )],
    ),
    (
        "1234/ctype",
        &[(
            LOC,
            "<locations chooseby='ctype'><location href='https://json.example/' ctype='application/json' weight='0'/>\
             <location href='https://xml.example/' ctype='text/xml' weight='0'/>\
             <location href='https://rest.example/'/></locations>",
        )],
    ),
    (
        "1234/doctype",
        &[
            (
                LOC,
                "<!DOCTYPE locations [<!ENTITY a 'https://entity.example/'>]>\
                 <locations><location href='&a;'/></locations>",
            ),
            ("URL", "https://url.example/"),
        ],
    ),
    (
        "1234/include",
        &[(
            LOC,
            "<locations no_nslocs='yes' include='1234/target'><location href='https://own.example/'/></locations>",
        )],
    ),
    (
        "1234/media",
        &[(
            LOC,
            "<locations chooseby='media-type,weighted'>\
             <location href='https://turtle.example/' media-type='text/turtle' weight='0'/>\
             <location href='https://rest.example/'/></locations>",
        )],
    ),
    (
        "1234/no-legacy-true",
        &[
            ("URL", "https://url.example/"),
            (
                LOC,
                "<locations no_legacy='true' urlWeight='1e9'><location href='https://loc.example/'/></locations>",
            ),
        ],
    ),
    ("1234/no-ns", &[(LOC, "<locations no_nslocs='1'><location href='https://own.example/'/></locations>")]),
    (
        "1234/none-left",
        &[(
            LOC,
            "<locations no_nslocs='1' chooseby='country,score'><location href='https://a.example/' country='gb'/></locations>",
        )],
    ),
    (
        "1234/score",
        &[(
            LOC,
            "<locations><location href='https://missing.example/' weight='9'/>\
             <location href='https://high.example/' score='2' weight='0'/>\
             <location href='https://low.example/' score='-3' weight='9'/></locations>",
        )],
    ),
    (
        "1234/status",
        &[(
            LOC,
            "<locations><location href='https://s301.example/' id='301' http_sc='301' weight='0'/>\
             <location href='https://s303.example/' id='303' http_sc='303' weight='0'/>\
             <location href='https://s307.example/' id='307' http_sc='307' weight='0'/>\
             <location href='https://s308.example/' id='308' http_sc='308' weight='0'/>\
             <location href='https://s200.example/' id='200' http_sc='200'/></locations>",
        )],
    ),
    (
        "1234/target",
        &[(
            LOC,
            "<locations><location href='https://included.example/' view='included' weight='0'/></locations>",
        )],
    ),
    (
        "1234/template x",
        &[(
            LOC,
            "<locations><location href_template='https://whole.example/{hdl}' id='whole' weight='0'/>\
             <location href_template='https://path.example/{hdl:path}' id='path' weight='0'/>\
             <location href='https://plain.example/a%20b' href_template='https://never.example/' id='both'/></locations>",
        )],
    ),
    (
        "1234/two",
        &[
            (LOC, "<locations><location href='https://first.example/' id='1' weight='0'/></locations>"),
            ("URL", "https://url.example/"),
            ("10320/LOC", "<locations><location href='https://second.example/' id='2'/></locations>"),
        ],
    ),
    (
        "1234/unclosed",
        &[(LOC, "<locations><location href='https://a.example/'>"), ("URL", "https://url.example/")],
    ),
    ("1234/url", &[("URL", "https://one.example/"), ("URL", "https://two.example/")]),
    (
        "1234/url-weight",
        &[
            ("URL", "https://url.example/"),
            (LOC, "<locations urlWeight='1'><location href='https://loc.example/' weight='0'/></locations>"),
        ],
    ),
    (
        "1234/weights",
        &[(
            LOC,
            "<locations no_nslocs='1'><location href='https://one.example/' weight='1'/>\
             <location href='https://three.example/' weight='3'/>\
             <location href='https://negative.example/' weight='-2'/></locations>",
        )],
    ),
    (
        "1234/zero",
        &[(
            LOC,
            "<locations no_nslocs='1'><location href='https://one.example/' weight='0'/>\
             <location href='https://two.example/' weight='0'/></locations>",
        )],
    ),
];

fn serve() -> GatewayServer {
    // The file is read at the start.
    let directory = tempfile::tempdir().unwrap();
    let countries = directory.path().join("countries.mmdb");
    let networks = [(Ipv4Addr::new(192, 0, 2, 0), 24, "GB"), (Ipv4Addr::new(198, 18, 0, 0), 15, "de")];
    std::fs::write(&countries, country_file(&networks)).unwrap();
    gateway_of(RECORDS, &["1234", "0.NA"], |config| {
        config.country_database = Some(countries.clone());
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
    })
}

/// The status, and the host of the location without `.example/`.
fn chosen(answer: &HttpAnswer) -> (u16, String) {
    let location = answer.header("location").unwrap_or_default();
    (answer.status, location.trim_start_matches("https://").trim_end_matches(".example/").to_owned())
}

#[test]
fn attributes_of_locations_and_of_requests_choose_the_location() {
    let served = serve();
    for (target, headers, expected) in [
        // The candidates: of all values, of the prefix, of other records, and URL values.
        ("two", "", "second"),
        ("two?locatt=id:1", "", "first"),
        ("two?locatt=view:ns", "", "ns"),
        ("no-ns?locatt=view:ns", "", "own"),
        ("include", "", "own"),
        ("include?locatt=view:included", "", "included"),
        ("url", "", "one"),
        ("url-weight", "", "url"),
        ("no-legacy-true", "", "loc"),
        // Documents that do not count.
        ("bom", "", "bom"),
        ("unclosed", "", "url"),
        ("doctype", "", "url"),
        // The methods.
        ("two?locatt=ID:1", "", "second"),
        ("two?locatt=id:1&locatt=id:2", "", "first"),
        ("two?locatt=id", "", "second"),
        ("two?locatt=", "", "second"),
        ("two?locatt=id:7", "", "second"),
        ("address", "", "any"),
        ("address", "X-Forwarded-For: 203.0.113.9\r\n", "v4"),
        ("address", "X-Forwarded-For: 198.51.100.7\r\n", "v4"),
        ("address", "X-Forwarded-For: 198.51.100.8\r\n", "any"),
        ("address", "X-Forwarded-For: 2001:db8:7::1\r\n", "v6"),
        ("country", "X-Forwarded-For: 192.0.2.1\r\n", "gb"),
        ("country", "X-Forwarded-For: 198.19.0.1\r\n", "de"),
        ("country", "X-Forwarded-For: 203.0.113.9\r\n", "none"),
        ("none-left", "X-Forwarded-For: 198.19.0.1\r\n", "a"),
        ("ctype", "Accept: application/json\r\n", "json"),
        ("ctype", "Accept: application/json;q=0.2, TEXT/xml\r\n", "xml"),
        ("ctype", "Accept: */*\r\n", "rest"),
        ("ctype", "", "rest"),
        ("media", "Accept: text/turtle\r\n", "turtle"),
        ("score", "", "high"),
        ("choose-by", "", "a"),
        // Content negotiation.
        ("conneg", "", "people"),
        ("conneg", "Accept: */*\r\n", "people"),
        ("conneg", "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n", "people"),
        ("conneg", "Accept: image/png\r\n", "people"),
        ("conneg", "Accept: application/json\r\n", "machines"),
        ("conneg", "Accept: text/turtle\r\n", "machines"),
        ("conneg", "Accept: application/rdf+xml;q=0.5, text/html;q=0.4\r\n", "machines"),
        ("conneg", "Accept: application/json;q=0, text/html\r\n", "people"),
    ] {
        let answer = get(served.address(), &format!("/1234/{target}"), headers);
        assert_eq!(chosen(&answer), (302, expected.to_owned()), "{target} {headers}");
        let depends = ["conneg", "ctype", "media"].iter().any(|name| target.starts_with(name));
        let vary = answer.list("vary");
        assert_eq!(vary.split(", ").any(|name| name == "Accept"), depends, "{target}: {vary}");
    }
}

#[test]
fn targets_have_templates_statuses_and_appended_texts() {
    let served = serve();
    for (target, status, location) in [
        ("template%20x", 302, "https://plain.example/a%20b"),
        ("template%20x?locatt=id:whole", 302, "https://whole.example/1234%2Ftemplate%20x"),
        ("template%20x?locatt=id:path", 302, "https://path.example/1234/template%20x"),
        ("template%20x?locatt=id:path&urlappend=%3Fa%3Db", 302, "https://path.example/1234/template%20x?a=b"),
        ("status", 302, "https://s200.example/"),
        ("status?locatt=id:301", 301, "https://s301.example/"),
        ("status?locatt=id:303", 303, "https://s303.example/"),
        ("status?locatt=id:307", 307, "https://s307.example/"),
        ("status?locatt=id:308", 308, "https://s308.example/"),
    ] {
        let answer = get(served.address(), &format!("/1234/{target}"), "");
        assert_eq!((answer.status, answer.header("location")), (status, Some(location)), "{target}");
    }
    // All candidates in their order, with their attributes.
    let list = get(served.address(), "/1234/two?action=showurls", "").text();
    let hosts = ["first", "second", "ns", "url"].map(|host| list.find(&format!("https://{host}.example/")));
    assert!(hosts.iter().all(Option::is_some) && hosts.is_sorted(), "{list}");
    assert!(list.contains("mode=\"legacy\" ") && list.contains("view=\"ns\""), "{list}");
}

#[test]
fn weights_are_shares_of_the_requests() {
    let served = serve();
    // Each count is within four standard deviations.
    for (name, one, expected, deviation) in [("weights", "one", 50, 25), ("zero", "one", 100, 29)] {
        let mut count = 0;
        for _ in 0..200 {
            let (status, host) = chosen(&get(served.address(), &format!("/1234/{name}"), ""));
            assert_eq!(status, 302);
            assert_ne!(host, "negative");
            count += i32::from(host == one);
        }
        assert!((count - expected).abs() <= deviation, "{name}: {count} of 200");
    }
}

#[test]
fn documents_beyond_the_limits_do_not_count() {
    let location = "<location href='https://loc.example/'/>";
    let document = |inside: &str| -> &'static str { format!("<locations>{inside}</locations>").leak() };
    let most = document(&location.repeat(256));
    let many = document(&location.repeat(257));
    let longest = 65_536 - "<locations></locations>".len() - location.len();
    let long = document(&format!("{location}{}", " ".repeat(longest)));
    let too_long = document(&format!("{location}{}", " ".repeat(longest + 1)));
    let url = ("URL", "https://url.example/");
    let served = gateway_of(
        &[
            ("1234/long", &[(LOC, long), url]),
            ("1234/many", &[(LOC, many), url]),
            ("1234/most", &[(LOC, most), url]),
            ("1234/too-long", &[(LOC, too_long), url]),
        ],
        &["1234"],
        |_| (),
    );
    for (name, expected) in [("most", "loc"), ("many", "url"), ("long", "loc"), ("too-long", "url")] {
        let answer = get(served.address(), &format!("/1234/{name}"), "");
        assert_eq!(chosen(&answer), (302, expected.to_owned()), "{name}");
    }
}
