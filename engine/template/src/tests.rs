//! Tests of applying templates to handles.

use crate::limit::{BUILT_LEN_MAX, CompileBudget, MATCHED_LEN_MAX, REFERENCES_MAX, STEPS_MAX, VALUES_MAX};
use crate::{BuildError, BuildOutcome, Chain, Namespace, Parts, ReferencedTemplates, Templates};
use handle_proto::value::Ttl;
use handle_proto::{Permissions, Value};
use std::collections::HashMap;

/// References that name texts.
#[derive(Default)]
struct StoredTexts(HashMap<(Vec<u8>, i32), String>);

impl Templates for StoredTexts {
    fn at(&self, handle: &[u8], index: i32, budget: &mut CompileBudget) -> Option<ReferencedTemplates> {
        let text = self.0.get(&(handle.to_vec(), index))?;
        Some(ReferencedTemplates::parse(text.as_bytes(), true, budget).unwrap_or_default())
    }
}

fn base() -> Vec<Value<'static>> {
    let copied =
        |value| Value { timestamp: 7, ttl: Ttl::relative(60), permissions: Permissions(0x0a), ..value };
    vec![
        copied(Value::new(1, b"URL", b"http://e.org/d")),
        copied(Value::new(2, b"EMAIL", b"a@e.org")),
        copied(Value::new(5, b"BINARY", b"\xff\x00")),
    ]
}

fn build_with(
    content: &str,
    extension: &str,
    base: &[Value<'_>],
    stored: &StoredTexts,
) -> Result<BuildOutcome, BuildError> {
    let namespace = Namespace::parse(format!("<namespace>{content}</namespace>").as_bytes(), true).unwrap();
    let mut chain = Chain::new();
    chain.push(&namespace);
    let handle = format!("1234/abc@{extension}");
    let parts = Parts::of(handle.as_bytes(), b"@").unwrap();
    chain.build(&parts, base, stored, &mut CompileBudget::default())
}

/// The values as lines `index type data`.
fn lines(built: Result<BuildOutcome, BuildError>) -> String {
    match built {
        Ok(BuildOutcome::NotFound) => "not found".to_owned(),
        Err(error) => error.to_string(),
        Ok(BuildOutcome::Values { bytes, count }) => {
            let (mut rest, mut lines) = (bytes.as_slice(), Vec::new());
            while !rest.is_empty() {
                let (value, after) = Value::split(rest).unwrap();
                let text = String::from_utf8_lossy;
                lines.push(format!("{} {} {}", value.index, text(value.kind), text(value.data)));
                rest = after;
            }
            assert_eq!(lines.len(), count);
            lines.join("\n")
        }
    }
}

/// The values that a template with this content makes of `1234/abc@{extension}`.
fn made(content: &str, extension: &str) -> String {
    lines(build_with(&format!("<template>{content}</template>"), extension, &base(), &StoredTexts::default()))
}

fn value_of(data: &str) -> String {
    format!("<value type='T' data='{data}'/>")
}

#[test]
fn the_example_of_the_documents_works() {
    let content = r#"<foreach><if value="type" test="equals" expression="URL">
        <value data="${data}?part=${extension}"/></if><else><value/></else></foreach>"#;
    assert_eq!(made(content, "7"), "1 URL http://e.org/d?part=7\n2 EMAIL a@e.org\n5 BINARY \u{fffd}\0");
}

#[test]
fn copied_values_keep_their_fields_and_new_ones_have_defaults() {
    let content = "<template><foreach><value data='x'/></foreach><value type='T' data='y'/></template>";
    let Ok(BuildOutcome::Values { bytes, .. }) =
        build_with(content, "", &base()[..1], &StoredTexts::default())
    else {
        panic!("values")
    };
    let (copied, rest) = Value::split(&bytes).unwrap();
    assert_eq!((copied.timestamp, copied.ttl, copied.permissions), (7, Ttl::relative(60), Permissions(0x0a)));
    let (new, _) = Value::split(rest).unwrap();
    assert_eq!((new.timestamp, new.ttl, new.permissions), (0, Ttl::DEFAULT, Permissions::DEFAULT));
    // Bytes that are not text are kept.
    let content = "<template><foreach><value/></foreach></template>";
    let Ok(BuildOutcome::Values { bytes, .. }) =
        build_with(content, "", &base()[2..], &StoredTexts::default())
    else {
        panic!("values")
    };
    assert_eq!(Value::split(&bytes).unwrap().0.data, b"\xff\x00");
}

#[test]
fn values_need_type_and_data_outside_foreach_and_take_free_indexes() {
    assert_eq!(made("<value type='T'/><value data='d'/><value/>", ""), "");
    assert_eq!(
        made("<value index='900' type='T' data='d'/><value index='900' type='T'>text</value>", ""),
        "1 T d\n2 T text"
    );
    assert_eq!(
        made("<foreach><value index='5'/></foreach>", ""),
        "5 URL http://e.org/d\n6 EMAIL a@e.org\n7 BINARY \u{fffd}\0"
    );
    assert_eq!(
        made("<foreach><value index='1${index}' type='X' data='d'/></foreach>", ""),
        "11 X d\n12 X d\n15 X d"
    );
    assert_eq!(made("<value type='T' data='attribute'>content</value>", ""), "1 T attribute");
    assert_eq!(made("<value type='T'> \n </value>", ""), "", "white space is no data");
    assert_eq!(made("<value type='T'>a<b>c</b>${extension}&amp;<![CDATA[<]]></value>", "x"), "1 T ax&<");
}

#[test]
fn parameters_are_expanded() {
    assert_eq!(
        made(&value_of("${handle}|${base}|${extension}|${none}|$x"), "e@f"),
        "1 T 1234/abc@e@f|1234/abc|e@f||$x"
    );
    assert_eq!(made("<value type='${extension}' data='\\$1'/>", "URL"), "1 URL $1");
    assert_eq!(
        made("<foreach><value type='T' data='${index},${type}'/></foreach>", ""),
        "1 T 1,URL\n2 T 2,EMAIL\n5 T 5,BINARY"
    );
    assert_eq!(made(&format!("<foreach/>{}", value_of("[${type}]")), ""), "1 T []", "only inside");
}

#[test]
fn conditions_compare_match_and_bind() {
    let either = |attributes: &str| {
        format!("<if {attributes}>{}</if><else>{}</else>", value_of("yes $1 ${x[1]}"), value_of("no $1"))
    };
    for (attributes, extension, expected) in [
        ("expression='a'", "a", "yes  "),
        ("expression='a'", "A", "no "),
        ("test='matches' expression='(.)b'", "ab", "yes a "),
        ("test='matches' expression='(.)B'", "ab", "yes a "),
        ("test='matches' expression='(.)b'", "abc", "no "),
        ("test='matches' expression='(.)b' parameter='x'", "ab", "yes  a"),
        ("test='matches' expression='(.)b' negate='true'", "ab", "no a"),
        ("test='matches' expression='(.)b' negate='TRUE'", "xx", "yes  "),
        ("value='base' expression='1234/abc'", "", "yes  "),
        ("value='nothing' expression=''", "", "yes  "),
    ] {
        assert_eq!(
            made(&either(attributes), extension),
            format!("1 T {expected}"),
            "{attributes} on {extension}"
        );
    }
    // Without a condition both are skipped.
    assert_eq!(made(&either(""), "a"), "");
    assert_eq!(made(&either("test='other' expression='a'"), "a"), "");
    assert_eq!(made(&format!("<else>{}</else>", value_of("x")), "a"), "");
}

#[test]
fn bindings_end_with_their_element() {
    let content =
        format!("<if test='matches' expression='(.).*'>{}</if>{}", value_of("$1"), value_of("[$1]"));
    assert_eq!(made(&content, "ab"), "1 T a\n2 T []");
    let content = format!("<def parameter='p'>{}</def>{}", value_of("${extension}!"), value_of("${p}${p}"));
    assert_eq!(made(&content, "a"), "1 T a!a!");
    let content = format!(
        "<foreach><def parameter='p'><value/></def><value data='(${{p}})'/></foreach>{}",
        value_of("${p}")
    );
    let expected = "1 URL (http://e.org/d)\n2 EMAIL (a@e.org)\n5 BINARY (\u{fffd}\0)\n3 T ";
    assert_eq!(made(&content, "a"), expected);
    assert_eq!(made(&format!("<def parameter='extension'/>{}", value_of("[${extension}]")), "a"), "1 T []");
}

#[test]
fn not_found_applies_to_the_whole_handle() {
    for content in ["<notfound/>", "<def parameter='x'><notfound/></def>", "<foreach><notfound/></foreach>"] {
        assert_eq!(made(&format!("{}{content}", value_of("x")), ""), "not found");
    }
    let content = format!("<if expression='x'>{}</if><else><notfound/></else>", value_of("x"));
    assert_eq!((made(&content, "x").as_str(), made(&content, "y").as_str()), ("1 T x", "not found"));
}

#[test]
fn loops_do_not_nest_and_unknown_elements_are_skipped() {
    let nested =
        "<foreach><foreach><value/></foreach></foreach><unknown><value type='T' data='x'/></unknown>";
    assert_eq!(made(nested, ""), "");
}

#[test]
fn all_templates_add_to_one_list() {
    let content =
        "<template><value type='A' data='1'/></template><template><value type='B' data='2'/></template>";
    assert_eq!(lines(build_with(content, "", &[], &StoredTexts::default())), "1 A 1\n2 B 2");
}

#[test]
fn without_templates_the_base_is_the_answer() {
    let expected = "1 URL http://e.org/d\n2 EMAIL a@e.org\n5 BINARY \u{fffd}\0";
    assert_eq!(lines(build_with("<contact>x</contact>", "", &base(), &StoredTexts::default())), expected);
}

#[test]
fn references_are_followed() {
    let stored = |index: i32, text: &str| (("1/t".as_bytes().to_vec(), index), text.to_owned());
    let mut templates = StoredTexts(HashMap::from([
        stored(1, "<template><value type='A' data='${extension}'/></template>"),
        stored(2, "<x><template ref='1:1/t'/><template><value type='B' data='b'/></template></x>"),
        stored(3, "no XML"),
    ]));
    for (reference, expected) in [
        ("1:1/t", "1 A e\n2 T after"),
        ("2:1/t", "1 A e\n2 B b\n3 T after"),
        ("3:1/t", "1 T after"),
        ("x:1/t", "1 T after"),
        ("1/t", "1 T after"),
        ("4:1/t", "not found"),
        ("1:1/u", "not found"),
    ] {
        let content = format!("<template ref='{reference}'/><template>{}</template>", value_of("after"));
        assert_eq!(lines(build_with(&content, "e", &[], &templates)), expected, "{reference}");
    }
    // A chain of references of the allowed length, and one longer; then a ring.
    for index in 10..30 {
        let next = format!("<template ref='{}:1/t'/>", index + 1);
        templates.0.extend([stored(index, &next)]);
    }
    let last = 10 + i32::try_from(REFERENCES_MAX).unwrap() - 1;
    let (key, text) = stored(last, "<template><value type='A' data='end'/></template>");
    templates.0.insert(key, text);
    assert_eq!(lines(build_with("<template ref='10:1/t'/>", "", &[], &templates)), "1 A end");
    templates.0.extend([stored(9, "<template ref='10:1/t'/>")]);
    let built = build_with("<template ref='9:1/t'/>", "", &[], &templates);
    assert_eq!(built, Err(BuildError::TooManyReferences));
    templates.0.extend([stored(8, "<x><template ref='8:1/t'/></x>")]);
    assert_eq!(
        build_with("<template ref='8:1/t'/>", "", &[], &templates),
        Err(BuildError::TooManyReferences)
    );
}

#[test]
fn limits_hold_at_their_edges() {
    let bases = |count: usize, len: usize| vec![vec![b'x'; len]; count];
    let build_over = |content: &str, bases: &[Vec<u8>]| {
        let index = |at: usize| i32::try_from(at).unwrap();
        let values: Vec<_> =
            bases.iter().enumerate().map(|(at, data)| Value::new(index(at), b"T", data)).collect();
        build_with(&format!("<template>{content}</template>"), "", &values, &StoredTexts::default())
    };
    let count = |built: Result<BuildOutcome, BuildError>| match built {
        Ok(BuildOutcome::Values { count, .. }) => Ok(count),
        Ok(BuildOutcome::NotFound) => Ok(0),
        Err(error) => Err(error),
    };
    let copy = "<foreach><value/></foreach>";
    assert_eq!(count(build_over(copy, &bases(VALUES_MAX, 1))), Ok(VALUES_MAX));
    assert_eq!(count(build_over(copy, &bases(VALUES_MAX + 1, 1))), Err(BuildError::TooManyValues));

    let matching = "<foreach><if value='data' test='matches' expression='y'/></foreach>";
    assert_eq!(count(build_over(matching, &bases(1, MATCHED_LEN_MAX - 1))), Ok(0));
    assert_eq!(count(build_over(matching, &bases(1, MATCHED_LEN_MAX))), Err(BuildError::TooMuchMatched));

    // The type adds one more byte.
    assert_eq!(count(build_over("<foreach/>", &bases(1, BUILT_LEN_MAX - 1))), Ok(0));
    assert_eq!(count(build_over("<foreach/>", &bases(1, BUILT_LEN_MAX))), Err(BuildError::TooLong));

    // One step for the template, one for the loop, and two for each value.
    let steps = "<foreach><if value='data' expression='y'/></foreach>";
    assert_eq!(count(build_over(steps, &bases(STEPS_MAX / 2 - 1, 0))), Ok(0));
    assert_eq!(count(build_over(steps, &bases(STEPS_MAX / 2, 0))), Err(BuildError::TooManySteps));
}

/// A public query for a handle whose base has such a namespace.
#[test]
fn a_large_pattern_is_matched_against_few_bytes() {
    let pattern = "(.*?)(?:[a-c]{0,30}[b-d]{0,30}){0,20}x";
    let content = format!("<if value='extension' test='matches' expression='{pattern}'/>{}", value_of("y"));
    assert_eq!(made(&content, &"a".repeat(100)), "1 T y");
    assert_eq!(made(&content, &"a".repeat(1 << 15)), BuildError::TooMuchMatched.to_string());
}

#[test]
fn patterns_of_one_text_share_a_bound() {
    let pattern = "(.*?)([a-c]?){200}x";
    let many = format!("<if test='matches' expression='{pattern}'/>").repeat(100);
    let error = made(&format!("{many}{}", value_of("y")), "aa");
    assert!(error.contains("too large beside the other patterns"), "{error}");
}

#[test]
fn texts_have_a_bounded_length() {
    let mut content = value_of("");
    for _ in 0..20 {
        let double = "<def parameter='p'><value type='T' data='x${p}${p}'/></def>";
        content = format!("{double}{content}");
    }
    assert_eq!(made(&content, ""), BuildError::TooLong.to_string());
}

#[test]
fn an_invalid_pattern_is_an_error_when_it_is_tested() {
    let content = format!(r"<if test='matches' expression='(a)\1'/>{}", value_of("x"));
    assert!(made(&content, "aa").contains(r"(a)\1"));
    let content = format!("<if expression='x'>{content}</if>{}", value_of("y"));
    assert_eq!(made(&content, "aa"), "1 T y");
}

/// Values that are public, private, and a secret key.
fn mixed() -> Vec<Value<'static>> {
    let private = |value| Value { permissions: Permissions(0x0c), ..value };
    vec![
        Value::new(1, b"URL", b"http://e.org/d"),
        private(Value::new(2, b"EMAIL", b"private@e.org")),
        private(Value::new(300, b"HS_SECKEY", b"secret")),
        Value::new(301, b"HS_SECKEY.x", b"public secret"),
    ]
}

/// The public values and the other ones, as lines, that a template with this content makes of
/// [`mixed`].
fn made_of_mixed(content: &str) -> (String, String) {
    let content = format!("<template>{content}</template>");
    let built = build_with(&content, "e", &mixed(), &StoredTexts::default());
    let Ok(BuildOutcome::Values { bytes, .. }) = &built else { return (lines(built), String::new()) };
    let (mut rest, mut encoded) = (bytes.as_slice(), [Vec::new(), Vec::new()]);
    while !rest.is_empty() {
        let (value, after) = Value::split(rest).unwrap();
        encoded[usize::from(!value.is_public())].push(format!(
            "{} {} {}",
            value.index,
            String::from_utf8_lossy(value.kind),
            String::from_utf8_lossy(value.data)
        ));
        rest = after;
    }
    let [public, private] = encoded;
    (public.join("\n"), private.join("\n"))
}

#[test]
fn data_that_is_not_public_flows_into_values_with_the_same_permissions_only() {
    let public = "1 URL http://e.org/d";
    for (content, expected_public, expected_private) in [
        ("<foreach><value/></foreach>", public, "2 EMAIL private@e.org"),
        (
            "<foreach><value data='${data}?${type}'/></foreach>",
            "1 URL http://e.org/d?URL",
            "2 EMAIL private@e.org?EMAIL",
        ),
        (
            "<foreach><if value='type' expression='EMAIL'><value type='${data}' index='9${data}'/></if></foreach>",
            "",
            "9  private@e.org",
        ),
        (
            "<foreach><def parameter='p'><value/></def><value data='(${p})'/></foreach>",
            "1 URL (http://e.org/d)",
            "2 EMAIL (private@e.org)",
        ),
        // Groups of a match are of the empty text.
        (
            "<foreach><if value='data' test='matches' expression='(.*)'><value data='[${data[1]}]'/></if></foreach>",
            "1 URL [http://e.org/d]",
            "2 EMAIL []",
        ),
        ("<foreach><if value='data' expression='private@e.org'><value/></if></foreach>", "", ""),
        (
            "<foreach><if value='data' expression='private@e.org' negate='true'><value/></if></foreach>",
            public,
            "2 EMAIL private@e.org",
        ),
        (
            "<def parameter='s'><foreach><if value='type' expression='EMAIL'><value/></if></foreach></def>\
             <value type='T' data='[${s}]'/>",
            "1 T []",
            "",
        ),
        (
            "<def parameter='s'><foreach><if value='data' test='matches' expression='p.*'><value/></if></foreach></def>\
             <if value='s' expression=''><value type='T' data='none'/></if>",
            "1 T none",
            "",
        ),
        (
            "<foreach><value/><if value='type' expression='EMAIL'><notfound/></if></foreach>",
            public,
            "2 EMAIL private@e.org",
        ),
        (
            "<foreach><if value='data' test='matches' expression='private.*'><notfound/></if><value/></foreach>",
            public,
            "2 EMAIL private@e.org",
        ),
        (
            "<foreach><if value='type' test='matches' expression='HS_SECKEY.*'><notfound/></if></foreach>",
            "",
            "",
        ),
    ] {
        let expected = (expected_public.to_owned(), expected_private.to_owned());
        assert_eq!(made_of_mixed(content), expected, "{content}");
    }
}

#[test]
fn a_secret_key_is_never_among_computed_values() {
    let copied = build_with("<contact/>", "", &mixed(), &StoredTexts::default());
    assert_eq!(lines(copied), "1 URL http://e.org/d\n2 EMAIL private@e.org");
}

/// Public values do not depend on the length of other data, nor does the answer.
#[test]
fn limits_do_not_tell_how_long_data_is_that_is_not_public() {
    let content = "<template><foreach><value data='${data}${data}${data}'/></foreach><value type='T' data='x'/></template>";
    for len in [0, 1, BUILT_LEN_MAX / 3, BUILT_LEN_MAX / 2, BUILT_LEN_MAX] {
        let data = vec![b'p'; len];
        let private = Value { permissions: Permissions(0x0c), ..Value::new(1, b"EMAIL", &data) };
        let built = build_with(content, "", &[private, private], &StoredTexts::default()).unwrap();
        let BuildOutcome::Values { bytes, count: 3 } = built else { panic!("{len}: three values") };
        let mut rest = bytes.as_slice();
        let mut values = std::iter::from_fn(|| {
            let (value, after) = Value::split(rest).ok()?;
            rest = after;
            Some(value)
        });
        let last = values.nth(2).unwrap();
        assert_eq!((last.index, last.data), (3, &b"x"[..]), "{len}");
        assert!(bytes.len() <= 2 * BUILT_LEN_MAX, "{len}");
    }
}
