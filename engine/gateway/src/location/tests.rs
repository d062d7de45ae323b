use super::*;
use crate::accept::AcceptTypes;
use proptest::prelude::*;

fn value(index: i32, kind: &'static [u8], data: &'static str) -> Value<'static> {
    Value::new(index, kind, data.as_bytes())
}

/// The candidates of a record whose only value is this document.
fn set(xml: &str) -> LocationSet {
    let set = LocationSet::of_record([Value::new(1, kind::LOCATIONS, xml.as_bytes())]);
    assert_eq!(set.invalid(), [], "{xml}");
    set
}

/// The ids of the locations that are chosen, over many random numbers.
fn chosen(set: &LocationSet, criteria: LocationCriteria<'_>) -> String {
    let mut ids = std::collections::BTreeSet::new();
    for at in 0..64 {
        let criteria = LocationCriteria { random: u64::MAX / 64 * at, ..criteria };
        if let Some(location) = set.choose(&criteria) {
            ids.insert(location.attribute("id").unwrap_or("?"));
        }
    }
    Vec::from_iter(ids).join(" ")
}

#[test]
fn each_method_keeps_the_locations_that_it_names() {
    let any = LocationCriteria::default();
    let locatt = |pair| LocationCriteria { locatt: Some(pair), ..any };
    let country = |name| LocationCriteria { country: Some(name), ..any };
    let address = |text: &str| LocationCriteria { address: text.parse().ok(), ..any };
    let two = "<locations><location id='0' href='a' country='gb' weight='0'/><location id='1' href='b'/></locations>";
    let networks = "<locations>\
        <location id='4' href='a' addresses='192.0.2.0/24, 2001:db8::/32' weight='0'/>\
        <location id='1' href='b' addresses='198.51.100.7, 300.1.1.1/8, 10.0.0.0/33' weight='0'/>\
        <location id='any' href='c'/></locations>";
    let scores = "<locations><location id='0' href='a'/><location id='-1' href='b' score='-1'/>\
        <location id='2' href='c' score='2' weight='0'/><location id='x' href='d' score='x'/></locations>";
    for (xml, criteria, expected) in [
        (two, any, "1"),
        (two, country("gb"), "0"),
        (two, country("GB"), "0"),
        // Without a location for the country, those without a country.
        (two, country("de"), "1"),
        (two, locatt(("id", "0")), "0"),
        (two, locatt(("id", "2")), "1"),
        (two, locatt(("ID", "0")), "1"),
        (two, locatt(("country", "GB")), "1"),
        (networks, any, "any"),
        (networks, address("192.0.2.255"), "4"),
        (networks, address("192.0.3.1"), "any"),
        (networks, address("2001:db8:1::1"), "4"),
        (networks, address("::ffff:192.0.2.1"), "4"),
        (networks, address("198.51.100.7"), "1"),
        (networks, address("198.51.100.8"), "any"),
        (scores, any, "2"),
    ] {
        assert_eq!(chosen(&set(xml), criteria), expected, "{xml} {criteria:?}");
    }
}

#[test]
fn weights_decide_last_and_other_methods_where_they_are_named() {
    let any = LocationCriteria::default();
    let country = |name| LocationCriteria { country: Some(name), ..any };
    for (xml, criteria, expected) in [
        ("<locations/>", any, ""),
        // A location without a target cannot be chosen.
        ("<locations><location id='0'/></locations>", any, ""),
        ("<locations><location id='0' href='a' weight='-1'/></locations>", any, "0"),
        // Weights that are not numbers count as 1, and negative ones as 0.
        (
            "<locations><location id='0' href='a' weight='x'/><location id='1' href='b' weight='-3'/>\
             <location id='2' href='c'/></locations>",
            any,
            "0 2",
        ),
        // With no weight at all, every location is as likely.
        (
            "<locations><location id='0' href='a' weight='0'/><location id='1' href='b' weight='0'/></locations>",
            any,
            "0 1",
        ),
        // Only the named methods apply, and the weights at the end.
        (
            "<locations chooseby='country'><location id='0' href='a' score='1' weight='0'/>\
             <location id='1' href='b'/></locations>",
            any,
            "1",
        ),
        (
            "<locations choose_by=' nothing , score '><location id='0' href='a' score='1' weight='0'/>\
             <location id='1' href='b'/></locations>",
            any,
            "0",
        ),
        (
            "<locations chooseby='weighted,country'><location id='0' href='a' country='gb' weight='0'/>\
             <location id='1' href='b'/></locations>",
            country("gb"),
            "1",
        ),
    ] {
        assert_eq!(chosen(&set(xml), criteria), expected, "{xml} {criteria:?}");
    }
}

#[test]
fn the_type_that_a_client_accepts_decides_where_it_is_named() {
    let conneg = "<locations><location id='h' href='a'/>\
        <location id='m' href='b' http_role='conneg' weight='0'/></locations>";
    let ctype = "<locations chooseby='ctype'><location id='j' href='a' ctype='application/json'/>\
        <location id='x' href='b' ctype='text/xml'/><location id='h' href='c'/></locations>";
    let plain = "<locations><location id='j' href='a' ctype='application/json'/>\
        <location id='h' href='c'/></locations>";
    for (xml, accept, expected) in [
        (conneg, "", "h"),
        (conneg, "*/*", "h"),
        (conneg, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "h"),
        (conneg, "application/xhtml+xml", "h"),
        (conneg, "image/png", "h"),
        (conneg, "application/*", "h"),
        (conneg, "application/json", "m"),
        (conneg, "application/vnd.citationstyles.csl+json", "m"),
        (conneg, "text/turtle", "m"),
        (conneg, "text/x-bibliography; style=apa", "m"),
        (conneg, "application/json;q=0, text/html", "h"),
        (conneg, "text/html;q=0.5, application/json;q=0.9", "m"),
        (conneg, "text/html, application/json", "h"),
        (ctype, "application/json", "j"),
        (ctype, "application/json;q=0.1, TEXT/XML", "x"),
        (ctype, "*/*", "h j x"),
        (ctype, "image/png", "h j x"),
        (plain, "application/json", "h j"),
    ] {
        let (set, accept) = (set(xml), AcceptTypes::parse(accept));
        let criteria = LocationCriteria { accept: Some(&accept), ..LocationCriteria::default() };
        assert_eq!(chosen(&set, criteria), expected, "{xml} {accept:?}");
        assert_eq!(set.depends_on_accept(), xml != plain);
    }
}

#[test]
fn locations_are_drawn_by_their_weights() {
    let set = set(
        "<locations><location id='1' href='a' weight='1'/><location id='3' href='b' weight='3'/></locations>",
    );
    let mut state = 4711_u64;
    let mut count = 0;
    for _ in 0..2000 {
        // An ordinary generator of 64 bits, SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let criteria = LocationCriteria { random: random ^ random >> 31, ..LocationCriteria::default() };
        count += i32::from(set.choose(&criteria).unwrap().attribute("id") == Some("1"));
    }
    // 500 are expected, with a standard deviation of 19.4.
    assert!((count - 500).abs() < 78, "{count}");
}

#[test]
fn url_values_are_the_last_candidates() {
    let loc = "<locations><location id='0' href='https://example.org/0' weight='0'/></locations>";
    let urls = [value(1, b"URL", "https://example.org/1"), value(2, b"url.x", "https://example.org/2")];
    let hrefs = |set: &LocationSet| {
        let set: Vec<_> = set
            .candidates()
            .map(|l| (l.attribute("href").unwrap().to_owned(), l.attribute("weight").map(str::to_owned)))
            .collect();
        set.into_iter()
            .map(|(href, weight)| format!("{} {}", &href[20..], weight.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    assert_eq!(hrefs(&LocationSet::of_record(urls)), ["1 1", "2 0"]);
    let with = |xml| LocationSet::of_record([urls[0], value(9, b"10320/LOC", xml), urls[1]]);
    assert_eq!(hrefs(&with(loc)), ["0 0", "1 0", "2 0"]);
    for no in ["1", "true", "yes", "YES"] {
        let xml = format!("<locations no_legacy='{no}'><location href='https://example.org/0'/></locations>");
        let values = [urls[0], Value::new(9, b"10320/loc", xml.as_bytes())];
        assert_eq!(hrefs(&LocationSet::of_record(values)), ["0 "], "{no}");
    }
    assert_eq!(hrefs(&with("<locations urlWeight='0.5' no_legacy='no'/>")), ["1 0.5", "2 0.5"]);
    // An invalid document does not count, and values that are not public neither.
    let broken = with("<locations><location></locations>");
    assert_eq!((hrefs(&broken), broken.invalid().len()), (vec!["1 1".to_owned(), "2 0".to_owned()], 1));
    let mut hidden = urls[0];
    hidden.permissions = handle_proto::Permissions(0x0c);
    assert_eq!(hrefs(&LocationSet::of_record([hidden, urls[1]])), ["2 1"]);
    assert_eq!(LocationSet::of_record([value(1, b"URLX", "https://example.org/")]).candidates().count(), 0);
}

#[test]
fn locations_are_inherited_from_the_prefix_and_from_named_records() {
    let records = |xml: &str| {
        let names = set(xml).further_records(Handle(b"20.500.1/x"));
        names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(records("<locations/>"), ["0.NA/20.500.1"]);
    assert_eq!(records("<locations no_nslocs='1'/>"), [""; 0]);
    assert_eq!(records("<locations include='20.500.1/y'/>"), ["0.NA/20.500.1", "20.500.1/y"]);
    assert_eq!(records("<locations nshdl='a/b' includeNamespace=' c/d ' include='A/B'/>"), ["a/b", "c/d"]);
    assert_eq!(records("<locations overridePrefix='20.9'/>"), ["0.NA/20.9"]);
    assert_eq!(
        records("<locations overridePrefix=' 0.na/20.9 ' nshdl='a/b' include='c/d'/>"),
        ["0.NA/20.9", "c/d"]
    );
    assert_eq!(records("<locations overridePrefix='20.9' no_nslocs='1'/>"), [""; 0]);
    for none in ["", "0.NA/", "a/b", "0.NA/a/b"] {
        assert_eq!(records(&format!("<locations overridePrefix='{none}'/>")), ["0.NA/20.500.1"], "{none}");
    }
    let [one, other] = ["<locations overridePrefix='20.9'/>", "<locations overridePrefix='20.8'/>"];
    let two = LocationSet::of_record([value(1, b"10320/loc", one), value(2, b"10320/loc", other)]);
    assert_eq!(two.further_records(Handle(b"20.500.1/x")), [b"0.NA/20.9", b"0.NA/20.8"]);
    // A record includes itself already.
    assert_eq!(records("<locations no_nslocs='yes' include='20.500.1/X'/>"), [""; 0]);
    assert_eq!(LocationSet::default().further_records(Handle(b"0.NA/0.NA")), [b""; 0]);

    let mut all = LocationSet::of_record([value(1, b"URL", "https://example.org/u")]);
    let conneg = "<locations chooseby='score'><location href_template='https://data.example.org/{hdl}' \
         http_role='conneg' weight='0'/></locations>";
    all.inherit([value(1, b"10320/loc", conneg), value(2, b"URL", "https://example.org/not-inherited")]);
    let origins: Vec<_> = all.candidates().map(|location| location.origin).collect();
    assert_eq!(origins, [LocationOrigin::Inherited, LocationOrigin::UrlValue]);
    assert!(all.depends_on_accept());
    let machine = AcceptTypes::parse("application/json");
    let criteria = LocationCriteria { accept: Some(&machine), ..LocationCriteria::default() };
    let location = all.choose(&criteria).unwrap();
    assert_eq!(
        location.target(Handle(b"20.500.1/x y")).unwrap(),
        "https://data.example.org/20.500.1%2Fx%20y"
    );
    let location = all.choose(&LocationCriteria::default()).unwrap();
    assert_eq!(location.target(Handle(b"20.500.1/x")).unwrap(), "https://example.org/u");
}

#[test]
fn the_number_of_inherited_records_and_documents_is_limited() {
    let values: Vec<String> = (0..40)
        .map(|at| format!("<locations include='a/{at}'><location href='{at}'/></locations>"))
        .collect();
    let values = || values.iter().map(|xml| Value::new(1, b"10320/loc", xml.as_bytes()));
    let mut set = LocationSet::of_record(values());
    assert_eq!(set.further_records(Handle(b"b/x")).len(), RECORDS_MAX);
    (0..20).for_each(|_| set.inherit(values()));
    assert!(set.candidates().count() <= DOCUMENTS_MAX * (1 + RECORDS_MAX));
}

#[test]
fn templates_are_expanded_and_href_is_not() {
    let target = |attributes: &str, handle: &str| {
        let set = set(&format!("<locations><location {attributes}/></locations>"));
        let location = set.candidates().next().unwrap().clone();
        location.target(Handle(handle.as_bytes())).map(Cow::into_owned)
    };
    for (attributes, handle, expected) in [
        ("href_template='https://a/{hdl}'", "20.500.1/x y", "https://a/20.500.1%2Fx%20y"),
        ("href_template='https://a/{hdl:path}'", "20.500.1/x y", "https://a/20.500.1/x%20y"),
        ("href_template='https://a/{hdl}/{hdl:path}?{hdlx}{'", "a/b", "https://a/a%2Fb/a/b?{hdlx}{"),
        ("href_template='https://a/{hdl:path}'", "a/日本?#%", "https://a/a/%E6%97%A5%E6%9C%AC%3F%23%25"),
        ("href_template='https://a/{hdl}'", "a/&=+;/..", "https://a/a%2F%26%3D%2B%3B%2F.."),
        ("href='https://a/{hdl}' href_template='b'", "a/b", "https://a/{hdl}"),
    ] {
        assert_eq!(target(attributes, handle).as_deref(), Some(expected), "{attributes} {handle}");
    }
    assert_eq!(target("id='0'", "a/b"), None);
    assert_eq!(handle_url(Handle(b"a/\xff b"), "https://a/"), "https://a/a/%FF%20b");
}

#[test]
fn a_location_names_the_status_of_its_redirect() {
    for (code, status) in
        [("301", 301), ("302", 302), ("303", 303), (" 307 ", 307), ("308", 308), ("200", 302), ("x", 302)]
    {
        let set = set(&format!("<locations><location href='a' http_sc='{code}'/></locations>"));
        assert_eq!(set.candidates().next().unwrap().status(), status, "{code}");
    }
}

#[test]
fn xml_that_is_not_a_list_of_locations_is_refused() {
    let bomb = "<!DOCTYPE locations [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]>\
        <locations><location href='&b;'/></locations>";
    let deep = format!("<locations>{}{}</locations>", "<a>".repeat(20), "</a>".repeat(20));
    let very_deep = "<locations>".to_owned() + &"<a>".repeat(20_000);
    let many = format!("<locations>{}</locations>", "<location href='a'/>".repeat(257));
    let wide = format!("<locations>{}</locations>", "<a/>".repeat(5000));
    let attributes: String = (0..257).map(|number| format!(" a{number}='1'")).collect();
    let crowded = format!("<locations><location{attributes}/></locations>");
    let long = format!("<locations>{}</locations>", " ".repeat(XML_LEN_MAX));
    for (xml, expected) in [
        (bomb, "NotXml"),
        ("<locations><location href='&undefined;'/></locations>", "NotXml"),
        ("<locations><location></locations>", "NotXml"),
        ("<locations><location a='1' a='2'/></locations>", "NotXml"),
        ("", "NotXml"),
        ("https://example.org/", "NotXml"),
        ("<location href='a'/>", "NotLocations"),
        (&deep, "TooDeep"),
        (&very_deep, "NotXml"),
        (&many, "TooMany("),
        (&crowded, "TooManyAttributes"),
        (&wide, "NotXml"),
        (&long, "TooLong"),
    ] {
        let error = LocationDocument::parse(xml.as_bytes()).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{expected} {error:?}");
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(LocationDocument::parse(b"<locations \xff/>"), Err(LocationError::NotUtf8));
    // A byte order mark, a declaration, other elements and character references are in order.
    let fine = "\u{feff}<?xml version='1.0'?><!-- x --><locations a='b' xmlns:n='n'><x><location href='no'/></x>\
        <location n:href='c' href='&#x41;&amp;&lt;'/></locations>\n";
    let document = LocationDocument::parse(fine.as_bytes()).unwrap();
    assert_eq!(document.locations, [[("href".to_owned(), "A&<".to_owned())]]);
}

#[test]
fn all_locations_are_shown_as_xml_that_reads_back() {
    let values = [
        value(1, b"URL", "https://example.org/?a=1&b=\"<2>\""),
        value(2, b"10320/loc", "<locations><location id='0' href='a&#10;b' view='x'/></locations>"),
    ];
    let xml = LocationSet::of_record(values).to_xml();
    let expected = "<locations>\n<location id=\"0\" href=\"a&#10;b\" view=\"x\" />\n\
        <location href=\"https://example.org/?a=1&amp;b=&quot;&lt;2&gt;&quot;\" weight=\"0\" mode=\"legacy\" />\n\
        </locations>\n";
    assert_eq!(xml, expected);
    let odd = LocationSet::of_record([Value::new(1, b"URL", b"https://a/\x00\xff\x1b")]).to_xml();
    assert!(odd.contains("https://a/%00%FF%1B"), "{odd}");
    assert!(LocationDocument::parse(odd.as_bytes()).is_ok());
}

#[test]
fn qualities_have_three_decimals() {
    let types = |header| Vec::from_iter(AcceptTypes::parse(header).iter().map(str::to_owned)).join(" ");
    assert_eq!(types("a/b;q=0.5, c/d;q=0.75,e/f;x=y;q=1.000, g/h ; Q=0.001"), "e/f c/d a/b g/h");
    assert_eq!(types("a/b;q=0, c/d;q=0.000, e/f;q=x, g/h;q=2, i/j;q=0.0001"), "");
    assert_eq!(types("text, /x, x/, ,;q=1, a b/c"), "");
}

proptest! {
    #[test]
    fn what_is_chosen_is_a_candidate(
        xml in "<locations( chooseby='[a-z,-]{0,20}')?>(<location( (href|weight|country|score|addresses|id)='[ -%(-;=-~]{0,6}'){0,3}/>){0,4}</locations>",
        random: u64, country in proptest::option::of("[a-z]{2}"), accept in "[ -~]{0,30}", address: [u8; 4],
    ) {
        let set = LocationSet::of_record([Value::new(1, b"10320/loc", xml.as_bytes())]);
        let accept = AcceptTypes::parse(&accept);
        let criteria = LocationCriteria {
            locatt: Some(("id", "0")),
            address: Some(address.into()),
            country: country.as_deref(),
            accept: Some(&accept),
            random,
        };
        let count = set.candidates().filter(|location| location.target(Handle(b"a/b")).is_some()).count();
        prop_assert_eq!(set.choose(&criteria).is_some(), count > 0);
        if let Some(location) = set.choose(&criteria) {
            prop_assert!(set.candidates().any(|candidate| candidate == location));
        }
        prop_assert!(LocationDocument::parse(set.to_xml().as_bytes()).is_ok());
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let set = LocationSet::of_record([Value::new(1, b"10320/loc", &bytes), Value::new(2, b"URL", &bytes)]);
        prop_assert!(set.choose(&LocationCriteria::default()).is_some());
    }
}
