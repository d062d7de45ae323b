use super::*;
use handle_proto::ValueBuf;
use handle_proto::json::record_from_json;
use proptest::prelude::*;

const BASE: &str = "http://localhost:4680/";

fn value(index: i32, kind: &'static [u8], data: &'static str) -> Value<'static> {
    Value::new(index, kind, data.as_bytes())
}

/// The answer to a request about `handle`, from records of their names and values.
fn answer(records: &[(&str, &[Value<'_>])], handle: &str, query: &str) -> ProxyDecision {
    let (parameters, rules) = (ProxyParameters::parse(query), RedirectRules::default());
    let request = ProxyRequest { query, ..ProxyRequest::new(BASE, &parameters, &rules) };
    let values_of = |name: &[u8]| {
        records
            .iter()
            .find(|(known, _)| fold::eq(known.as_bytes(), name))
            .map_or(&[][..], |(_, values)| values)
    };
    let mut chain = AliasChain::new(handle.as_bytes());
    loop {
        match next_step(&request, values_of(chain.handle().0), &mut chain) {
            ProxyStep::FollowAlias(name) => assert_eq!(chain.handle(), Handle(&name)),
            ProxyStep::Answer(decision) => return decision,
            ProxyStep::Locate(mut locations) => {
                for name in locations.further_records(chain.handle()) {
                    locations.inherit(values_of(&name).iter().copied());
                }
                return choose(&request, &locations, chain.handle());
            }
        }
    }
}

/// What a decision amounts to, in one line.
fn shown(decision: &ProxyDecision) -> String {
    match decision {
        ProxyDecision::Redirect(redirect) => {
            let vary = if redirect.vary_accept { " by type" } else { "" };
            format!("{} {} {} s{vary}", redirect.status, redirect.location, redirect.cache_s)
        }
        ProxyDecision::ShowLocations(xml) => format!("{} locations", xml.matches("<location ").count()),
        other => format!("{other:?}"),
    }
}

#[test]
fn parameters_choose_the_answer() {
    let one = [
        value(1, b"DESC", "x"),
        value(2, b"url", " https://example.org/one "),
        value(3, b"URL", "https://b/"),
    ];
    let mail = [value(1, b"EMAIL", "a@example.org")];
    let loc = [
        value(1, b"URL", "https://example.org/u"),
        value(
            5,
            b"10320/loc",
            "<locations><location id='0' href='https://example.org/0' http_sc='303'/>\
            <location id='1' href='https://example.org/1' weight='0' http_role='conneg'/></locations>",
        ),
    ];
    let records: &[(&str, &[Value<'_>])] =
        &[("a/one", &one), ("a/mail", &mail), ("a/loc", &loc), ("a/none", &[])];
    let show = "ShowRecord(Requested)";
    let no_location = "ShowRecord(NoLocation)";
    for (handle, query, expected) in [
        ("a/one", "", "302 https://example.org/one 86400 s"),
        ("a/one", "callback=f&unknown", "302 https://example.org/one 86400 s"),
        ("a/one", "noredirect", show),
        ("a/one", "noredirect=false", show),
        ("a/one", "noredirect=no&x=y", show),
        ("a/one", "NOREDIRECT", "302 https://example.org/one 86400 s"),
        ("a/one", "action=redirect&noredirect", "302 https://example.org/one 86400 s"),
        ("a/one", "action=nonsense&noredirect", "302 https://example.org/one 86400 s"),
        ("a/one", "action=showvalues", show),
        ("a/one", "action=api", "ShowJson"),
        ("a/one", "action=showurls", "2 locations"),
        ("a/one", "type=URL", "302 https://example.org/one 86400 s"),
        ("a/one", "type=url.", "302 https://example.org/one 86400 s"),
        ("a/one", "type=DESC", no_location),
        ("a/one", "type=EMAIL", "NotFound(NoSuchValues)"),
        ("a/one", "index=3", "302 https://b/ 86400 s"),
        ("a/one", "index=x", "302 https://example.org/one 86400 s"),
        ("a/one", "index=1", no_location),
        ("a/one", "index=1&type=URL", "302 https://example.org/one 86400 s"),
        ("a/one", "urlappend=%2Fmore%3Fa%3D1", "302 https://example.org/one/more?a=1 86400 s"),
        ("a/one", "urlappend=%0D%0AX:+y", "302 https://example.org/one%0D%0AX:%20y 86400 s"),
        ("a/one", "urlappend=%E6%97%A5%FF", "302 https://example.org/one%E6%97%A5%FF 86400 s"),
        ("a/one", "urlappend=a&urlappend=b", "302 https://example.org/onea 86400 s"),
        ("a/one", "redirectionHeaders", "200 https://example.org/one 86400 s"),
        ("a/one", "auth=true", "302 https://example.org/one 86400 s"),
        ("a/mail", "", no_location),
        ("a/mail", "noredirect", show),
        ("a/none", "", "NotFound(NoPublicValues)"),
        ("a/loc", "", "303 https://example.org/0 86400 s by type"),
        ("a/loc", "locatt=id:1", "302 https://example.org/1 86400 s by type"),
        ("a/loc", "locatt=id%3A1&locatt=id:0", "302 https://example.org/1 86400 s by type"),
        ("a/loc", "locatt=", "303 https://example.org/0 86400 s by type"),
        ("a/loc", "locatt=id", "303 https://example.org/0 86400 s by type"),
        ("a/loc", "type=URL", "302 https://example.org/u 86400 s"),
        ("a/loc", "type=10320/LOC", "303 https://example.org/0 86400 s by type"),
        ("a/loc", "action=showurls", "3 locations"),
        ("a/loc", "locatt=id:1&urlappend=%23p", "302 https://example.org/1#p 86400 s by type"),
    ] {
        assert_eq!(shown(&answer(records, handle, query)), expected, "{handle}?{query}");
    }
}

#[test]
fn aliases_are_followed_to_the_url_of_the_last_handle() {
    let url = [value(1, b"URL", "https://example.org/"), value(9, b"HS_ALIAS.x", "no alias")];
    let alias = [url[0], value(2, b"HS_ALIAS", " a/target "), value(3, b"HS_ALIAS", "a/other")];
    let chain = [value(1, b"hs_alias", "A/Alias"), value(2, b"DESC", "x")];
    let looped = [value(1, b"HS_ALIAS", "a/LOOP")];
    let missing = [value(1, b"HS_ALIAS", "a/missing")];
    let empty = [Value::new(1, b"HS_ALIAS", b" "), Value::new(2, b"HS_ALIAS", b"a/x")];
    let odd = [value(1, b"HS_ALIAS", "a/日 本?")];
    let bytes = [Value::new(1, b"HS_ALIAS", b"a/\xff")];
    let records: &[(&str, &[Value<'_>])] = &[
        ("a/target", &url),
        ("a/alias", &alias),
        ("a/chain", &chain),
        ("a/loop", &looped),
        ("a/missing-target", &missing),
        ("a/empty", &empty),
        ("a/odd", &odd),
        ("a/日 本?", &url),
        ("a/bytes", &bytes),
    ];
    for (handle, query, expected) in [
        ("a/alias", "", "301 http://localhost:4680/a/target 86400 s"),
        ("a/chain", "", "301 http://localhost:4680/a/target 86400 s"),
        ("a/chain", "urlappend=x&a=b", "301 http://localhost:4680/a/target?urlappend=x&a=b 86400 s"),
        ("a/chain", "a=\"<日>", "301 http://localhost:4680/a/target?a=%22%3C%E6%97%A5%3E 86400 s"),
        ("a/odd", "", "301 http://localhost:4680/a/%E6%97%A5%20%E6%9C%AC%3F 86400 s"),
        ("a/chain", "noredirect", "ShowRecord(Requested)"),
        ("a/chain", "redirectionHeaders", "200 http://localhost:4680/a/target?redirectionHeaders 86400 s"),
        ("a/alias", "ignore_aliases", "302 https://example.org/ 86400 s"),
        ("a/chain", "ignore_aliases=no", "ShowRecord(NoLocation)"),
        ("a/alias", "type=URL", "302 https://example.org/ 86400 s"),
        ("a/alias", "type=HS_ALIAS", "ShowRecord(NoLocation)"),
        ("a/alias", "index=2", "NotFound(NoSuchValues)"),
        ("a/alias", "index=1", "302 https://example.org/ 86400 s"),
        ("a/alias", "action=showvalues", "ShowRecord(Requested)"),
        ("a/alias", "action=api", "ShowJson"),
        ("a/loop", "", "NotFound(AliasLoop)"),
        ("a/missing-target", "", "NotFound(NoPublicValues)"),
        ("a/empty", "", "Refused(AliasWithoutHandle)"),
        ("a/bytes", "", "Refused(AliasWithoutHandle)"),
    ] {
        assert_eq!(shown(&answer(records, handle, query)), expected, "{handle}?{query}");
    }
}

#[test]
fn twenty_aliases_are_followed_and_not_one_more() {
    let rules = RedirectRules::default();
    let parameters = ProxyParameters::default();
    let request = ProxyRequest { now_unix_s: 1000, ..ProxyRequest::new(BASE, &parameters, &rules) };
    let mut chain = AliasChain::new(b"a/0");
    for at in 1..=20 {
        let name = format!("a/{at}");
        let mut alias = Value::new(1, b"HS_ALIAS", name.as_bytes());
        alias.ttl = if at == 7 { Ttl::absolute(1077) } else { Ttl::DEFAULT };
        let step = next_step(&request, &[alias], &mut chain);
        assert!(matches!(step, ProxyStep::FollowAlias(next) if next == name.as_bytes()), "{at}");
    }
    assert_eq!((chain.aliases_count(), chain.handles().count()), (20, 21));
    let mut end = chain.clone();
    let step = next_step(&request, &[value(1, b"HS_ALIAS", "a/21")], &mut end);
    assert!(matches!(step, ProxyStep::Answer(ProxyDecision::NotFound(MissingReason::AliasChainTooLong))));
    // The answer may be kept as long as the alias with the shortest time to live.
    let ProxyStep::Answer(decision) = next_step(&request, &[value(1, b"URL", "https://a/")], &mut chain)
    else {
        panic!("no alias");
    };
    assert_eq!(shown(&decision), "301 http://localhost:4680/a/20 77 s");
}

#[test]
fn a_redirect_is_kept_as_long_as_its_value_and_at_most_two_days() {
    let rules = RedirectRules::default();
    let parameters = ProxyParameters::default();
    let request = ProxyRequest { now_unix_s: 1_700_000_000, ..ProxyRequest::new(BASE, &parameters, &rules) };
    for (ttl, expected) in [
        (Ttl::relative(0), 0),
        (Ttl::relative(-1), 0),
        (Ttl::relative(60), 60),
        (Ttl::relative(172_801), 172_800),
        (Ttl::relative(i32::MAX), 172_800),
        (Ttl::absolute(1_700_000_060), 60),
        (Ttl::absolute(1_600_000_000), 0),
        (Ttl::absolute(i32::MAX), 172_800),
    ] {
        assert_eq!(request.cache_s(ttl), expected, "{ttl:?}");
    }
}

#[test]
fn only_absolute_urls_of_allowed_schemes_are_targets() {
    let schemes = RedirectRules::default().schemes;
    let target = |text: &str| redirect_target(text, b"", &schemes).map(String::from);
    for (text, expected) in [
        ("https://example.org/a b", "https://example.org/a%20b"),
        ("\n\t HTTPS://Example.org/ ", "HTTPS://Example.org/"),
        ("https://example.org/a\r\nX: y", "https://example.org/a%0D%0AX:%20y"),
        ("https://example.org/\"<>{}|^`\\[]", "https://example.org/%22%3C%3E%7B%7D%7C%5E%60%5C[]"),
        ("https://example.org/100%&%zz%41", "https://example.org/100%&%zz%41"),
        ("https://例え.jp/日本#ä", "https://xn--r8jz45g.jp/%E6%97%A5%E6%9C%AC#%C3%A4"),
        ("mailto:a@example.org", "mailto:a@example.org"),
        ("hdl:20.500.1/x", "hdl:20.500.1/x"),
        ("doi:10.1000/182", "doi:10.1000/182"),
        ("info:doi/10.1000/182", "info:doi/10.1000/182"),
        ("urn:nbn:de:101:1", "urn:nbn:de:101:1"),
        ("ftp://example.org", "ftp://example.org"),
        ("magnet:?xt=urn:btih:x", "magnet:?xt=urn:btih:x"),
        ("git://example.org/x", "git://example.org/x"),
        ("tel:+1", "tel:+1"),
    ] {
        assert_eq!(target(text).as_deref(), Some(expected), "{text:?}");
    }
    for text in [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        " \u{1}javascript:alert(1)",
        "java\tscript:alert(1)",
        "java\nscript:x",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "blob:x",
        "about:blank",
        "view-source:https://a",
        "",
        " ",
        "/relative",
        "relative",
        "//example.org/",
        "?a",
        "#a",
        ":",
        "://a",
        "https",
        "https:",
        "https:/",
        "https://",
        "https:///x",
        "http:example.org",
        "http://?x",
        "1http://a",
        "ht tp://a",
        "\u{202e}https://a",
        "data of URL",
    ] {
        assert_eq!(target(text), None, "{text:?}");
    }
}

#[test]
fn an_appended_text_changes_neither_the_host_nor_the_scheme() {
    let schemes = RedirectRules::default().schemes;
    let target =
        |text: &str, appended: &str| redirect_target(text, appended.as_bytes(), &schemes).map(String::from);
    for (text, appended, expected) in [
        ("https://example.org/a", ".b/c", "https://example.org/a.b/c"),
        ("https://example.org", ".evil.example", "https://example.org/.evil.example"),
        ("https://example.org", "@evil.example", "https://example.org/@evil.example"),
        ("https://example.org:1", "2/", "https://example.org:1/2/"),
        ("https://example.org", "/a", "https://example.org/a"),
        ("https://example.org", "?a", "https://example.org?a"),
        ("https://example.org", "#a", "https://example.org#a"),
        ("https://example.org/a#b", "c?d", "https://example.org/a#bc?d"),
        ("https://example.org", "\\@evil", "https://example.org/%5C@evil"),
    ] {
        assert_eq!(target(text, appended).as_deref(), Some(expected), "{text} {appended}");
    }
    assert_eq!(target("https:", "//evil.example"), None);
    assert_eq!(target("java", "script:x"), None);
}

#[test]
fn a_location_that_is_not_safe_is_shown() {
    let record = [value(1, b"URL", "javascript:alert(1)"), value(2, b"URL", "https://example.org/")];
    let expected = ProxyDecision::ShowRecord(ShowReason::UnsafeLocation("javascript:alert(1)".to_owned()));
    assert_eq!(answer(&[("a/b", &record)], "a/b", "urlappend=x"), expected);
}

#[test]
fn options_of_a_reference_count_like_parameters() {
    let mut parameters = ProxyParameters::parse("index=1&cert=yes");
    let rules = crate::input::InputRules::new(&[], false, &[]);
    let reference = rules.handle_of_field("hdl:a/b?type=URL&index=2&auth&locatt=id:1&noredirect").unwrap();
    parameters.add(&reference);
    let expected = ProxyParameters::parse("index=1&cert=1&index=2&type=URL&auth&locatt=id:1&noredirect=x");
    assert_eq!(parameters, expected);
    assert!(parameters.authoritative && parameters.certified);
    assert!(!ProxyParameters::parse("auth=false&cert=no").authoritative);
}

/// One line of the captured exchanges with a deployed server.
#[derive(Debug)]
struct Exchange {
    target: String,
    status: u64,
    location: Option<String>,
}

/// The captured exchanges of the category `page`, and the records behind them.
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");

fn exchanges() -> Vec<Exchange> {
    let text = std::fs::read_to_string(format!("{VECTORS}/http.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let exchange = |json: serde_json::Value| {
        let headers = json["response_headers"].as_array().unwrap();
        let location = headers.iter().find(|header| header[0] == "Location");
        Exchange {
            target: json["target"].as_str().unwrap().to_owned(),
            status: json["status"].as_u64().unwrap(),
            location: location.map(|header| header[1].as_str().unwrap().to_owned()),
        }
    };
    lines.filter(|json| json["category"] == "page").map(exchange).collect()
}

#[test]
fn captured_exchanges_are_answered_as_by_the_deployed_server() {
    let records = std::fs::read_to_string(format!("{VECTORS}/records.json")).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&records).unwrap();
    let records: Vec<(String, Vec<ValueBuf>)> = records
        .iter()
        .filter_map(|json| record_from_json(json).ok())
        .filter_map(|record| Some((String::from_utf8(record.handle).ok()?, record.values)))
        .collect();
    let values: Vec<(&str, Vec<Value<'_>>)> = records
        .iter()
        .map(|(handle, values)| (handle.as_str(), values.iter().map(ValueBuf::view).collect()))
        .collect();
    let records: Vec<(&str, &[Value<'_>])> =
        values.iter().map(|(name, values)| (*name, values.as_slice())).collect();
    let rules = crate::input::InputRules::new(&["localhost:4680".to_owned()], false, &[]);
    let mut count = 0;
    for exchange in exchanges() {
        let (path, query) = exchange.target.split_once('?').unwrap_or((&exchange.target, ""));
        let Ok(reference) = rules.handle_of_path(path.as_bytes()) else {
            assert_eq!((path, exchange.status), ("/", 200), "the form");
            continue;
        };
        let (status, location) = match answer(&records, &reference.handle, query) {
            ProxyDecision::Redirect(redirect) => (redirect.status, Some(redirect.location)),
            ProxyDecision::ShowRecord(_) => (200, None),
            ProxyDecision::NotFound(_) => (404, None),
            other => panic!("{exchange:?}: {other:?}"),
        };
        assert_eq!(
            (u64::from(status), location),
            (exchange.status, exchange.location),
            "{}",
            exchange.target
        );
        count += 1;
    }
    assert!(count >= 9, "{count} exchanges");
}

proptest! {
    #[test]
    fn no_target_has_another_scheme_or_host_than_its_value(
        text in "(https?:|javascript:|data:|//)?[ -~\\n\\t日]{0,16}|\\PC{0,16}", appended: Vec<u8>,
    ) {
        let rules = RedirectRules::default();
        if let Some(target) = redirect_target(&text, &appended, &rules.schemes) {
            let url = target.as_str();
            prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()), "{}", url);
            let (scheme, rest) = url.split_once(':').unwrap();
            prop_assert!(SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()), "{}", url);
            let plain = redirect_target(&text, b"", &rules.schemes).unwrap();
            prop_assert!(url.starts_with(plain.as_str()));
            let host = |rest: &str| rest.split(['/', '?', '#']).nth(2).map(str::to_owned);
            if rest.starts_with("//") {
                prop_assert_eq!(host(rest), host(plain.as_str().split_once(':').unwrap().1));
            }
        }
    }

    #[test]
    fn arbitrary_records_and_queries_have_a_safe_answer(
        values: Vec<(u8, Vec<u8>)>, query in "([a-zA-Z_]{0,10}(=[ -~]{0,8})?&?){0,4}\\PC{0,6}", handle: Vec<u8>,
    ) {
        let kinds: [&[u8]; 4] = [b"URL", b"10320/loc", b"HS_ALIAS", b"DESC"];
        let values: Vec<_> =
            values.iter().map(|(kind, data)| Value::new(1, kinds[usize::from(kind % 4)], data)).collect();
        let handle = String::from_utf8_lossy(&handle).into_owned();
        if let ProxyDecision::Redirect(redirect) = answer(&[(&handle, &values)], &handle, &query) {
            prop_assert!(redirect.location.bytes().all(|byte| byte.is_ascii_graphic()), "{}", redirect.location);
            prop_assert!(redirect.location.contains(':'));
        }
    }
}

#[test]
fn a_plain_redirect_is_the_choice_among_all_locations() {
    let rules = RedirectRules::default();
    let plain = |values: &[Value<'_>], query: &str| {
        let parameters = ProxyParameters::parse(query);
        plain_redirect(&ProxyRequest::new(BASE, &parameters, &rules), values.iter().copied())
    };
    let mut hidden = value(1, b"URL", "https://hidden.example/");
    hidden.permissions = handle_proto::Permissions(0xc);
    let url = value(2, b"url.x", " https://example.org/\u{e9} ");
    let other = value(3, b"URL", "https://other.example/");
    for values in [&[url][..], &[hidden, url, other], &[value(9, b"DESC", "x"), other, url]] {
        let expected = answer(&[("a/b", values)], "a/b", "");
        assert_eq!(plain(values, "x=y").map(ProxyDecision::Redirect), Some(expected));
        assert_eq!(plain(values, "index=2"), None);
    }
    for special in [
        value(4, b"hs_alias", "a/c"),
        value(4, b"10320/LOC", "<locations/>"),
        value(1, b"URL", "javascript:alert(1)"),
    ] {
        assert_eq!(plain(&[special, url], ""), None);
    }
    assert_eq!(plain(&[hidden], ""), None);
}
