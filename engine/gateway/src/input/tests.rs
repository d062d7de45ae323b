use super::*;
use proptest::prelude::*;

fn rules() -> InputRules {
    InputRules::new(&["handles.example.org".to_owned()], false, &[])
}

#[test]
fn paths_name_handles_in_every_form() {
    for (path, handle) in [
        ("/20.500.1/x", "20.500.1/x"),
        ("/20.500.1%2Fx", "20.500.1/x"),
        ("/20.500.1/a//b", "20.500.1/a//b"),
        ("/20.500.1/./x/../y", "20.500.1/./x/../y"),
        ("/20.500.1/a+b;c=d,e", "20.500.1/a+b;c=d,e"),
        ("/20.500.1/a%2Bb%3Fc%23d%25", "20.500.1/a+b?c#d%"),
        ("/20.500.1/%E6%97%A5", "20.500.1/日"),
        ("/20.500.1/日", "20.500.1/日"),
        ("/20.500.1/", "20.500.1/"),
        ("/20.500.1", "20.500.1"),
        ("/0.NA/20.500.1", "0.NA/20.500.1"),
        ("/300:20.500.1/x", "300:20.500.1/x"),
        ("/jis@20.500.1/x", "jis@20.500.1/x"),
        ("//20.500.1/x", "20.500.1/x"),
        ("/%20%0A20.500.1/x%09%0d%20", "20.500.1/x"),
        ("/20.500.1/a%20b", "20.500.1/a b"),
        ("/hdl:20.500.1/x", "20.500.1/x"),
        ("/HDL:20.500.1/x", "20.500.1/x"),
        ("/hdl:%20%2020.500.1/x", "20.500.1/x"),
        ("/hdl%3A20.500.1/x", "20.500.1/x"),
        ("/hdl%3a%2020.500.1/x", "20.500.1/x"),
        ("/doi:20.500.1/x", "20.500.1/x"),
        ("/DOI:20.500.1/x", "20.500.1/x"),
        ("/urn:hdl:20.500.1/x", "20.500.1/x"),
        ("/urn:doi:20.500.1:x%2Fy", "20.500.1/x/y"),
        ("/info:hdl/20.500.1/x", "20.500.1/x"),
        ("/info:doi/20.500.1/x", "20.500.1/x"),
        ("/https://hdl.handle.net/20.500.1/x", "20.500.1/x"),
        ("/HTTP://DX.DOI.ORG/20.500.1/x", "20.500.1/x"),
        ("/https%3A%2F%2Fdoi.org%2F20.500.1%2Fx", "20.500.1/x"),
        ("/https://Handles.example.org/20.500.1/x", "20.500.1/x"),
        ("/doi.org/20.500.1/x", "20.500.1/x"),
        ("20.500.1/x", "20.500.1/x"),
    ] {
        let reference = rules().handle_of_path(path.as_bytes());
        assert_eq!(reference.map(|reference| reference.handle).as_deref(), Ok(handle), "{path}");
    }
}

#[test]
fn paths_that_name_no_handle_are_refused() {
    for (path, expected) in [
        ("", "Empty"),
        ("/", "Empty"),
        ("/%20%0A", "Empty"),
        ("/hdl:", "Empty"),
        ("/hdl:doi:20.500.1/x", "Invalid(TwoSchemes)"),
        ("/hdl:/x", "Invalid(NotAHandle"),
        ("/hdl://x/y", "Invalid(NotAHandle"),
        ("/urn:nbn:de:1", "Invalid(NotAHandle"),
        ("/https://example.org/20.500.1/x", "Invalid(UnknownHost"),
        ("/20.500.1/%", "Invalid(Percent"),
        ("/20.500.1/%zz", "Invalid(Percent"),
        ("/20.500.1/%FF", "Invalid(NotUtf8"),
    ] {
        let error = rules().handle_of_path(path.as_bytes()).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{path}: {error:?}");
        assert!(!error.to_string().is_empty());
    }
    assert!(matches!(rules().handle_of_path(b"/20.500.1/\xff"), Err(InputError::Invalid(_))));
    let long = format!("/20.500.1/{}", "x".repeat(HANDLE_LEN_MAX));
    assert_eq!(rules().handle_of_path(long.as_bytes()), Err(InputError::TooLong(long.len() - 1)));
}

#[test]
fn an_encoding_may_precede_the_name_if_that_is_switched_on() {
    let rules = InputRules::new(&[], true, &["latin1@x".to_owned()]);
    for (path, handle) in [
        (&b"/iso-2022-jp@cnri.test/%1B$BF%7CK%5C%1B(B"[..], "cnri.test/日本"),
        (b"/sjis@cnri.test/%93%FA%96%7B", "cnri.test/日本"),
        (b"/sjis@cnri.test/\x93\xfa\x96{", "cnri.test/日本"),
        (b"/latin1@cnri.test/%E4", "cnri.test/ä"),
        (b"/latin1@cnri.test/\xe4", "cnri.test/ä"),
        (b"/latin1@x/y", "latin1@x/y"),
        (b"/cnri.test/x@y", "cnri.test/x@y"),
    ] {
        let reference = rules.handle_of_path(path);
        assert_eq!(reference.map(|reference| reference.handle).as_deref(), Ok(handle), "{path:?}");
    }
    assert!(rules.handle_of_path(b"/jis@cnri.test/%FF").is_err());
    assert!(rules.handle_of_path(b"/utf7@cnri.test/x").is_err());
}

#[test]
fn a_field_has_a_handle_as_it_is_typed() {
    for (text, handle) in [
        (" 20.500.1/a%20b?c ", "20.500.1/a%20b?c"),
        ("doi:10.1000/182", "10.1000/182"),
        ("https://doi.org/10.1000/456%23789", "10.1000/456#789"),
        ("hdl:20.500.1/x?index=1", "20.500.1/x"),
    ] {
        let reference = rules().handle_of_field(text).unwrap();
        assert_eq!(reference.handle, handle, "{text}");
    }
    assert_eq!(rules().handle_of_field("  "), Err(InputError::Empty));
}

proptest! {
    #[test]
    fn printed_urls_lead_back(handle in r#"[!-~é日][ -~é日]{0,20}[!-~é日]"#) {
        let url = crate::location::handle_url(handle_proto::Handle(handle.as_bytes()), "/");
        prop_assert_eq!(rules().handle_of_path(url.as_bytes()).map(|reference| reference.handle), Ok(handle));
    }

    #[test]
    fn arbitrary_paths_are_read_or_refused(path: Vec<u8>) {
        for rules in [rules(), InputRules::new(&[], true, &[])] {
            if let Ok(reference) = rules.handle_of_path(&path) {
                prop_assert!(!reference.handle.is_empty() && reference.handle.len() <= HANDLE_LEN_MAX);
            }
        }
    }
}
