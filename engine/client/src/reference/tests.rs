mod grammar;

use super::*;
use proptest::prelude::*;

/// The table, in which blanks, tabs, line ends and zero bytes are written visibly.
fn cases() -> impl Iterator<Item = String> {
    let lines = include_str!("cases.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines
        .map(|line| line.replace("\\x20", " ").replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0"))
}

/// The parts of a reference besides its handle, as the table writes them.
fn rest(reference: &HandleReference) -> String {
    let mut rest_text: Vec<String> = reference.server.iter().map(|server| format!("@{server}")).collect();
    rest_text.extend(reference.types.iter().map(|kind| format!("type={kind}")));
    rest_text.extend(reference.indexes.iter().map(|index| format!("index={index}")));
    rest_text.extend(reference.options.iter().map(|(name, value)| format!("{name}={value}")));
    rest_text.extend(reference.fragment.iter().map(|fragment| format!("#{fragment}")));
    rest_text.join(" ")
}

#[test]
fn every_case_of_the_table_is_read_refused_or_printed_as_it_says() {
    let rules = ReferenceRules::typed();
    let mut count = 0;
    for case in cases() {
        count += 1;
        if let Some((written, meant)) = case.split_once(" => ") {
            let (handle, rest_text) = meant.split_once(" | ").unwrap_or((meant, ""));
            let read =
                HandleReference::parse(written, &rules).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!((read.handle.as_str(), rest(&read).as_str()), (handle, rest_text), "{case}");
            both_forms_read_back(handle);
        } else if let Some((written, why)) = case.split_once(" !! ") {
            let error = HandleReference::parse(written, &rules).expect_err(&case);
            let shown = match &error {
                ReferenceError::Percent { at } => format!("Percent {at}"),
                error => format!("{error:?}"),
            };
            assert_eq!(shown.split('(').next(), Some(why), "{case}: {error}");
            assert!(!error.to_string().is_empty());
        } else {
            let parts: Vec<_> = case.split(" -> ").collect();
            let &[handle, text, address] = parts.as_slice() else { panic!("{case}") };
            assert_eq!((canonical(handle).as_str(), url(handle, PROXY).as_str()), (text, address), "{case}");
            both_forms_read_back(handle);
        }
    }
    assert!(count >= 200, "{count} cases");
}

fn both_forms_read_back(handle: &str) {
    for written in [canonical(handle), url(handle, PROXY), url(handle, "https://doi.org/")] {
        let read = HandleReference::parse(&written, &ReferenceRules::typed());
        let read = read.unwrap_or_else(|error| panic!("{handle:?} as {written:?}: {error}"));
        assert_eq!((read.handle.as_str(), rest(&read).as_str()), (handle, ""), "{written}");
    }
    // Clients that follow the rules for URLs leave the path unchanged.
    let address = url(handle, PROXY);
    let path = &address[PROXY.len()..];
    assert!(
        handle == "." || handle == ".." || !path.split('/').any(|step| matches!(step, "." | "..")),
        "{path}"
    );
    assert!(path.bytes().all(|byte| byte.is_ascii_graphic()), "{path}");
}

#[test]
fn a_proxy_takes_neither_indexes_nor_servers_nor_encodings() {
    let rules = ReferenceRules::proxy();
    let handle = |text| HandleReference::parse(text, &rules).map(|read| read.handle);
    assert_eq!(handle("300:20.500.1/x").unwrap(), "300:20.500.1/x");
    assert_eq!(handle("20.500.1/a%20b").unwrap(), "20.500.1/a b");
    assert_eq!(handle("jis@20.500.1/x").unwrap(), "jis@20.500.1/x");
    assert_eq!(handle("hdl:20.500.1/x").unwrap(), "20.500.1/x");
    assert_eq!(handle("hdl:/x"), Err(ReferenceError::NotAHandle("hdl:/".to_owned())));
    assert_eq!(handle("hdl://x/y"), Err(ReferenceError::NotAHandle("hdl://".to_owned())));
    assert_eq!(handle("20.500.1/%zz"), Err(ReferenceError::Percent { at: 9 }));
}

#[test]
fn surrounding_text_is_removed_only_on_request() {
    let lenient = ReferenceRules { lenient: true, ..ReferenceRules::typed() };
    for (written, handle) in [
        ("<doi:10.1000/182>.", "10.1000/182"),
        ("hdl:20.500.1/x.", "20.500.1/x"),
        ("20.500.1/x).", "20.500.1/x"),
        ("10.1016/S0735-1097(98)", "10.1016/S0735-1097(98)"),
        ("https://doi.org/10.1000/182,", "10.1000/182"),
        ("10.1000/182\"", "10.1000/182"),
        ("10.1000/a]]", "10.1000/a"),
        ("(doi:10.1000/182)", "10.1000/182"),
        ("[hdl:20.500.1/x],", "20.500.1/x"),
        ("(\u{201c}10.1000/182\u{201d}).", "10.1000/182"),
        ("\u{201c}https://doi.org/10.1000/182\u{201d}", "10.1000/182"),
        ("\u{201e}10.1000/182\u{201c}", "10.1000/182"),
        ("\u{ab}10.1000/182\u{bb}.", "10.1000/182"),
        ("(10.1016/S0735-1097(98)00347-7)", "10.1016/S0735-1097(98)00347-7"),
        (
            "<https://doi.org/10.1002/(SICI)1521-3765(20010417)7:8<1606::AID-CHEM16060>3.0.CO;2-4>",
            "10.1002/(SICI)1521-3765(20010417)7:8<1606::AID-CHEM16060>3.0.CO;2-4",
        ),
    ] {
        assert_eq!(HandleReference::parse(written, &lenient).unwrap().handle, handle, "{written}");
    }
    assert_eq!(
        HandleReference::parse("20.500.1/x.", &ReferenceRules::typed()).unwrap().handle,
        "20.500.1/x."
    );
}

#[test]
fn unclosed_brackets_are_removed_in_linear_time() {
    const COUNT: usize = 100_000;
    let text = format!("{}10.1000/(a)[{}", "<(".repeat(COUNT), ")".repeat(COUNT));
    assert_eq!(out_of_text(&text), "10.1000/(a)[");
    assert_eq!(out_of_text(&format!("a{}", ")}]".repeat(COUNT))), "a");
}

#[test]
fn bytes_that_are_not_utf_8_are_read_in_the_encoding_that_is_given_for_them() {
    let rules = ReferenceRules { charset: charset("latin1"), ..ReferenceRules::typed() };
    let handle = |text| HandleReference::parse(text, &rules).unwrap().handle;
    assert_eq!(handle("hdl:a/%E4"), "a/ä");
    // UTF-8 takes precedence.
    assert_eq!(handle("hdl:a/%C3%A4"), "a/ä");
}

#[test]
fn an_at_sign_in_a_known_prefix_is_no_modifier() {
    let rules = ReferenceRules { prefixes: vec!["latin1@x".to_owned()], ..ReferenceRules::typed() };
    assert_eq!(HandleReference::parse("hdl:LATIN1@x/y", &rules).unwrap().handle, "LATIN1@x/y");
    assert_eq!(HandleReference::parse("hdl:latin1@z/y", &rules).unwrap().handle, "z/y");
}

#[test]
fn configured_hosts_are_proxies() {
    let mut rules = ReferenceRules::typed();
    rules.hosts.push("handles.example.org".to_owned());
    let read = HandleReference::parse("https://Handles.example.org/20.500.1/x", &rules).unwrap();
    assert_eq!((read.handle.as_str(), read.form), ("20.500.1/x", ReferenceForm::Proxy));
}

proptest! {
    #[test]
    fn printed_references_read_back(handle in r#"[ -~é日\u{0}-\u{1f}./:@%]{1,24}"#) {
        both_forms_read_back(&handle);
    }

    #[test]
    fn nothing_panics(text in "(hdl:|doi:|https://doi.org/|urn:hdl:|300:)?\\PC{0,24}") {
        let rules = ReferenceRules { lenient: true, ..ReferenceRules::typed() };
        if let Ok(read) = HandleReference::parse(&text, &rules) {
            prop_assert!(!read.handle.is_empty());
            both_forms_read_back(&read.handle);
        }
    }
}
