use super::*;
use crate::redirect::{RedirectRules, ShowReason};
use handle_console::pages::dates;
use handle_proto::printable::is_unprintable;
use handle_proto::value::Ttl;
use handle_proto::wire::list::{Reference, References};
use handle_proto::{Handle, Permissions, Value};
use proptest::prelude::*;

const BASE: &str = "https://hdl.example.org/";

fn frame(tag: &str) -> PageFrame<'static> {
    PageFrame { language: language_of(tag), service: "Handles", base: BASE }
}

fn record(handle: &[u8], values: &[Value<'_>]) -> String {
    let source = AnswerSource::Set { name: "main", generation: 7, published_unix_s: None };
    let details = AnswerDetails { source, certified: false, took_us: 1250, aliases: &[], steps: &[] };
    let schemes = RedirectRules::default().schemes;
    RecordPage::new(frame("en"), Handle(handle), values, &details, &ShowReason::Requested, &schemes).html()
}

/// The text of a page between two tags, or a panic that shows the page.
fn has(page: &str, text: &str) {
    assert!(page.contains(text), "{text} is missing in\n{page}");
}

#[test]
fn the_language_is_the_one_that_the_browser_prefers() {
    for (header, tag) in [
        ("", "en"),
        ("de", "de"),
        ("de-AT,de;q=0.9,en;q=0.8", "de"),
        ("es, fr-CH;q=0.9, de;q=0.8", "fr"),
        ("ja", "en"),
        ("*", "en"),
        ("de;q=0, fr;q=0.1", "fr"),
    ] {
        assert_eq!(language_of(header).tag, tag, "{header}");
    }
}

#[test]
fn every_language_has_its_own_texts() {
    let pages = |tag: &str| FormPage { frame: frame(tag), handle: "" }.html();
    has(&pages("de"), "<html lang=\"de\" dir=\"ltr\">");
    has(&pages("fr"), "<h1>Résoudre un handle</h1>");
    for language in &LANGUAGES {
        assert_eq!(language_of(language.tag).tag, language.tag);
        let texts = &language.messages;
        for text in [
            texts.until,
            texts.bytes,
            texts.secret,
            texts.server,
            texts.from_set,
            texts.from_server,
            texts.status,
            texts.retry_after,
        ] {
            assert_eq!(text.matches("{}").count(), 1, "{text}");
        }
        for part in ["{day}", "{month}", "{year}", "{time}"] {
            assert!(texts.date.contains(part), "{part} in {}", texts.date);
        }
    }
}

#[test]
fn values_are_shown_with_their_meaning() {
    let mut url = Value::new(1, b"URL", b" https://example.org/?a=1&b=2 ");
    (url.timestamp, url.ttl) = (1_551_962_767, Ttl::relative(90_061));
    let mut mail = Value::new(2, b"EMAIL", b"a@example.org");
    (mail.permissions, mail.ttl) = (Permissions(0x05), Ttl::absolute(1_800_000_000));
    let values = [
        url,
        mail,
        Value::new(3, b"URL", b"javascript:alert(1)"),
        Value::new(4, b"DESC", b"<script>alert('x')</script>"),
        Value::new(5, b"HS_ADMIN", b"\x07\xf3\0\0\0\x070.NA/10\0\0\x01\x2c"),
        Value::new(6, b"HS_ALIAS", b"10.1/a b"),
        Value::new(7, b"BLOB", b"\x00\xff\x10"),
        Value::new(8, b"10320/loc", b"<locations/>"),
        Value::new(9, b"HS_SITE", b"not a site"),
        Value::new(10, b"EMAIL", b"a@b?subject=x"),
    ];
    let page = record(b"10.1/x", &values);
    for text in [
        "<a href=\"https://example.org/?a=1&#38;b=2\" rel=\"nofollow noreferrer\">",
        "<a href=\"mailto:a@example.org\"",
        "<pre dir=\"auto\">javascript:alert(1)</pre>",
        "&#60;script&#62;",
        "<time datetime=\"2019-03-07T12:46:07Z\">7 March 2019, 12:46 UTC</time>",
        "1 day 1 hour",
        "until 15 January 2027, 08:00 UTC",
        "<code>0101</code>",
        "<a href=\"/0.NA/10?noredirect\"><bdi dir=\"ltr\">300:0.NA/10</bdi></a>",
        "<li>read protected values</li>",
        "<a href=\"/10.1/a%20b?noredirect\"><bdi dir=\"ltr\">10.1/a b</bdi></a>",
        "<code class=\"hex\">00FF10</code>",
        "<a href=\"/10320/loc?noredirect\"><bdi dir=\"ltr\">10320/loc</bdi></a>",
        "<a href=\"/0.TYPE/URL?noredirect\">",
        "<pre dir=\"auto\">not a site</pre>",
        "<pre dir=\"auto\">a@b?subject=x</pre>",
        "Published set main",
        "1.2 ms",
        "hdl resolve hdl:10.1/x",
        "curl https://hdl.example.org/api/handles/10.1/x",
        "href=\"/api/handles/10.1/x\"",
    ] {
        has(&page, text);
    }
    assert!(
        !page.contains("<script") && !page.contains("href=\"javascript") && !page.contains("list handles")
    );
}

/// Everything of a record that somebody else has written, as a page shows it, is text.
#[test]
fn markup_in_a_record_is_shown_as_text() {
    let mut storage = Vec::new();
    let references = [b"10.1/<u>r</u>".as_slice(), b"<u>r</u>"].map(|handle| Reference { handle, index: 3 });
    let references = References::build(references, &mut storage);
    let group = b"\0\0\0\x01\0\0\0\x0d10.1/<u>g</u>\0\0\0\x01";
    let admin = b"\x07\xf3\0\0\0\x0d10.1/<u>a</u>\0\0\x01\x2c";
    let values = [
        Value { references, ..Value::new(1, b"<u>t", b"<u>d</u>") },
        Value::new(2, b"10.1/<u>t</u>", b"https://example.org/<u>d</u>"),
        Value::new(3, b"HS_ALIAS", b"10.1/<u>l</u>"),
        Value::new(4, b"HS_VLIST", group),
        Value::new(5, b"HS_ADMIN", admin),
        Value::new(6, b"URL", b"https://example.org/<u>d</u>?\"><u>x"),
        Value::new(7, b"EMAIL", b"<u>@example.org"),
    ];
    let source = AnswerSource::Set { name: "<u>main", generation: 7, published_unix_s: None };
    let aliases = [Handle(b"10.1/<u>b</u>")];
    let steps = ["asked <u>s</u>".to_owned()];
    let details = AnswerDetails { source, certified: false, took_us: 1, aliases: &aliases, steps: &steps };
    let schemes = RedirectRules::default().schemes;
    for reason in [
        ShowReason::Requested,
        ShowReason::NoLocation,
        ShowReason::UnsafeLocation("javascript:<u>p</u>\"'".to_owned()),
    ] {
        let handle = Handle(b"10.1/<u>h</u>");
        let page = RecordPage::new(frame("en"), handle, &values, &details, &reason, &schemes).html();
        assert!(!page.contains("<u>") && !page.contains("</u>"), "{page}");
        for text in ["t", "d", "r", "l", "g", "a", "h", "b", "s"] {
            let open = format!("&#60;u&#62;{text}");
            assert!(page.contains(&open) || page.contains(&format!("%3Cu%3E{text}")), "{open} in {page}");
        }
        let is_unsafe = matches!(reason, ShowReason::UnsafeLocation(_));
        let location = "<code dir=\"auto\">javascript:&#60;u&#62;p&#60;/u&#62;&#34;&#39;</code>";
        assert_eq!(page.contains(location), is_unsafe, "{page}");
    }
}

#[test]
fn keys_have_the_fingerprint_of_their_record() {
    let key = b"\0\0\0\x0bRSA_PUB_KEY\0\0\0\0\0\x03\x01\0\x01\0\0\0\x02\0\xff\0\0\0\0";
    let digest = <sha2::Sha256 as sha2::Digest>::digest(key);
    let page = record(b"10.1/x", &[Value::new(1, b"HS_PUBKEY", key)]);
    has(&page, "<dd>RSA 8</dd>");
    has(&page, &format!("SHA256:{}", data_encoding::HEXLOWER.encode(&digest)));
}

#[test]
fn odd_names_cannot_be_mistaken_and_end_no_command() {
    let page = record("10.1/'; rm -rf \u{202e}x<".as_bytes(), &[Value::new(1, b"X", b"")]);
    has(&page, "<bdi dir=\"ltr\">10.1/&#39;; rm -rf \\u202ex&#60;</bdi>");
    has(&page, "hdl resolve &#39;hdl:10.1/&#39;\\&#39;&#39;;%20rm%20-rf%20%E2%80%AEx%3C&#39;");
    assert!(!page.contains(|c| is_unprintable(c) && c != '\n'));
    let page = record(b"10.1/\xff", &[Value::new(1, b"X", b"")]);
    has(&page, "<bdi dir=\"ltr\">10.1/\\xff</bdi>");
    has(&page, "hdl resolve hdl:10.1/%FF");
    // The field of the form leads to the same handle.
    has(&page, "value=\"hdl:10.1/%FF\"");
    has(&record("a/日 b".as_bytes(), &[]), "value=\"a/日 b\"");
}

#[test]
fn long_data_are_shortened() {
    let page =
        record(b"10.1/x", &[Value::new(1, b"A", &[b'a'; 1 << 20]), Value::new(2, b"B", &[0xff; 1 << 20])]);
    assert!(page.len() < 64 << 10, "{} bytes", page.len());
    assert_eq!(page.matches("Shortened.").count(), 2);
}

#[test]
fn errors_say_what_is_wrong_and_what_to_do() {
    for error in PageError::ALL {
        for language in &LANGUAGES {
            let page = ErrorPage::new(PageFrame { language, ..frame("") }, error);
            assert!((400..=504).contains(&page.status()));
            has(&page.html(), &error.status().to_string());
        }
    }
    let page = ErrorPage::new(frame("en"), PageError::NotFound).about(Handle(b"10.1/x/"));
    has(&page.html(), "<a href=\"/10.1/x?noredirect\">");
    let page = ErrorPage::new(frame("en"), PageError::NotFound).about(Handle(b"10.1/"));
    assert!(!page.html().contains("?noredirect\""), "the prefix alone is no neighbour");
    let page = ErrorPage::new(frame("en"), PageError::TooMany).retry_after(90).html();
    has(&page, "Try again in 1 minute 30 seconds.");
    let page =
        ErrorPage::new(frame("en"), PageError::Invalid).because("% at <9>").with_notice(Some("a@b"), None);
    has(&page.html(), "% at &#60;9&#62;");
    has(&page.html(), "<a href=\"mailto:a@b\"><bdi>a@b</bdi></a>");
}

#[test]
fn pages_load_nothing_from_elsewhere() {
    let pages = [
        FormPage { frame: frame("en"), handle: "\"><script>" }.html(),
        RedirectPage { frame: frame("en"), location: "https://example.org/?\"><script>" }.html(),
        record(b"10.1/x", &[Value::new(1, b"DESC", b"<img src=x onerror=alert(1)>")]),
        ErrorPage::new(frame("en"), PageError::Timeout).html(),
    ];
    for page in pages {
        assert!(
            !page.contains("<script") && !page.contains("style=") && !page.contains("<img src=x"),
            "{page}"
        );
        for (at, _) in page.match_indices("src=\"") {
            assert!(page[at..].starts_with("src=\"/static/"), "{page}");
        }
        for tag in ["<link ", "<form "] {
            for (at, _) in page.match_indices(tag) {
                let element = page[at..].split('>').next().unwrap();
                assert!(element.contains("=\"/"), "{element}");
            }
        }
        for landmark in ["<header", "<main id=\"content\">", "class=\"skip\""] {
            has(&page, landmark);
        }
        assert_eq!(page.matches("<h1").count(), 1);
    }
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
}

#[test]
fn paths_begin_with_that_of_the_proxy() {
    for (base, root) in
        [("https://a/", "/"), ("https://a", "/"), ("http://a:1/hdl/", "/hdl/"), ("/x/", "/x/")]
    {
        assert_eq!(PageFrame { base, ..frame("en") }.root(), root, "{base}");
    }
}

#[test]
fn durations_have_two_units() {
    let texts = frame("en").texts();
    for (seconds, text) in [
        (0, "0 seconds"),
        (1, "1 second"),
        (61, "1 minute 1 second"),
        (86_400, "1 day"),
        (172_800 + 3600 + 60, "2 days 1 hour"),
        (86_401, "1 day 1 second"),
    ] {
        assert_eq!(dates::duration(seconds, texts), text);
    }
    assert_eq!(dates::ttl(Ttl::relative(-5), texts), "0 seconds");
    assert_eq!(dates::date(-1, texts).iso, "1969-12-31T23:59:59Z");
}

proptest! {
    #[test]
    fn arbitrary_values_make_no_markup(
        handle: String, values: Vec<(i32, u8, Vec<u8>)>, ttl: (u8, i32), timestamp: u32,
    ) {
        let kinds: [&[u8]; 8] =
            [b"URL", b"EMAIL", b"HS_ADMIN", b"HS_SITE", b"HS_VLIST", b"HS_PUBKEY", b"HS_ALIAS", b"<b>/\xff"];
        let values: Vec<_> = values.iter().map(|(index, kind, data)| {
            let mut value = Value::new(*index, kinds[usize::from(kind % 8)], data);
            (value.ttl, value.timestamp) = (Ttl { kind: ttl.0, seconds: ttl.1 }, timestamp);
            value
        }).collect();
        let plain = record(b"a/b", &values);
        let page = record(handle.as_bytes(), &values);
        prop_assert_eq!(page.matches('<').count(), plain.matches('<').count());
        prop_assert_eq!(page.matches("<tr").count(), values.len() + 1);
    }
}
