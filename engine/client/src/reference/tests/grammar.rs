//! Generates references from their grammar, part by part, and checks that they parse to the same
//! parts.

use super::super::*;
use super::both_forms_read_back;
use encoding_rs::{UTF_8, UTF_16BE, UTF_16LE};
use proptest::prelude::*;
use std::fmt::Write as _;

/// How a name is introduced, and whether a colon may take the place of its first slash.
const INTRODUCTIONS: [(&str, ReferenceForm); 24] = [
    ("hdl:", ReferenceForm::Hdl),
    ("HDL:", ReferenceForm::Hdl),
    ("hdl: ", ReferenceForm::Hdl),
    ("hdl%3A", ReferenceForm::Hdl),
    ("hdl:/", ReferenceForm::Hdl),
    ("doi:", ReferenceForm::Doi),
    ("DOI:  ", ReferenceForm::Doi),
    ("doi%3a", ReferenceForm::Doi),
    ("info:hdl/", ReferenceForm::Info),
    ("Info:DOI/", ReferenceForm::Info),
    ("urn:hdl:", ReferenceForm::Urn),
    ("URN:doi:", ReferenceForm::Urn),
    ("https://hdl.handle.net/", ReferenceForm::Proxy),
    ("HTTP://DX.DOI.ORG/", ReferenceForm::Proxy),
    ("https://doi.org:443/", ReferenceForm::Proxy),
    ("https://www.doi.org//", ReferenceForm::Proxy),
    ("hdl.handle.net/", ReferenceForm::Proxy),
    ("//doi.org/", ReferenceForm::Proxy),
    ("/doi.org/", ReferenceForm::Proxy),
    ("https://doi.org/doi:", ReferenceForm::Proxy),
    ("https://hdl.handle.net/hdl:", ReferenceForm::Proxy),
    ("https://doi.org/urn:doi:", ReferenceForm::Proxy),
    ("hdl://server.example:2641/", ReferenceForm::Direct),
    ("HDL://[::1]/", ReferenceForm::Direct),
];

/// The text between the name and the options, the options, and the rest.
#[derive(Clone, Debug)]
struct ReferenceTail {
    types: Vec<String>,
    indexes: Vec<u32>,
    others: Vec<(String, String)>,
    fragment: Option<String>,
}

fn behind() -> impl Strategy<Value = ReferenceTail> {
    let word = r##"[a-zA-Z0-9 /:@é日?#&=+%"]{0,6}"##;
    let types = prop::collection::vec(word, 0..3);
    let indexes = prop::collection::vec(any::<u32>(), 0..3);
    let others = prop::collection::vec(("[a-z]{1,3}é?_", word), 0..3);
    (types, indexes, others, prop::option::of(word))
        .prop_map(|(types, indexes, others, fragment)| ReferenceTail { types, indexes, others, fragment })
}

/// Percent-encodes bytes, in upper or lower case.
fn coded(bytes: &[u8], small: bool, out: &mut String) {
    for byte in bytes {
        let _ = if small { write!(out, "%{byte:02x}") } else { write!(out, "%{byte:02X}") };
    }
}

fn all_coded(text: &str, small: bool) -> String {
    let mut out = String::new();
    coded(text.as_bytes(), small, &mut out);
    out
}

impl ReferenceTail {
    fn written(&self, small: bool) -> String {
        let types = self.types.iter().map(|kind| format!("type={}", all_coded(kind, small)));
        let indexes = self.indexes.iter().map(|index| format!("index={index}"));
        let others = self.others.iter();
        let others =
            others.map(|(name, value)| format!("{}={}", all_coded(name, small), all_coded(value, small)));
        let options: Vec<_> = types.chain(indexes).chain(others).collect();
        let question = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        let fragment = self.fragment.as_ref().map(|text| format!("#{}", all_coded(text, small)));
        question + &fragment.unwrap_or_default()
    }
}

/// A name as it may be written: characters with a special meaning are encoded, and others where
/// `mask` selects them.
fn name(handle: &str, form: ReferenceForm, mask: u64, small: bool) -> String {
    let mut out = String::new();
    let slash_at = handle.find('/').unwrap_or(handle.len());
    for (number, (at, c)) in handle.char_indices().enumerate() {
        let is_first_slash = at == slash_at;
        let has_meaning = matches!(c, '%' | '?' | '#')
            || c == '@' && at < slash_at
            // In URNs the first slash or colon ends the prefix.
            || c == ':' && at < slash_at
            // Characters that are trimmed, and the first letter of what might look like a scheme, a
            // host or an index.
            || at == 0
            || c.is_whitespace() && handle[at..].trim().is_empty()
            || c.is_whitespace() && handle[..at].trim().is_empty();
        let is_chosen = mask >> (number % 64) & 1 == 1;
        if is_first_slash && form == ReferenceForm::Urn && is_chosen && at > 0 {
            out.push(':');
        } else if has_meaning || is_chosen {
            coded(c.encode_utf8(&mut [0; 4]).as_bytes(), small, &mut out);
        } else {
            out.push(c);
        }
    }
    out
}

/// Encodings, each with a text in it and with an invalid byte, if there is one.
const ENCODINGS: [(&str, &str, Option<&[u8]>); 38] = [
    ("utf-8", "Ω日本é", Some(b"\xff")),
    ("ibm866", "Привет", None),
    ("iso-8859-2", "Łódź", None),
    ("iso-8859-3", "Ġgantija", Some(b"\xa5")),
    ("iso-8859-4", "Ķekava", None),
    ("iso-8859-5", "Привет", None),
    ("iso-8859-6", "سلام", Some(b"\xa1")),
    ("iso-8859-7", "Αθήνα", Some(b"\xff")),
    ("iso-8859-8", "שלום", Some(b"\xa1")),
    ("iso-8859-8-i", "שלום", Some(b"\xa1")),
    ("iso-8859-10", "Þingvellir", None),
    ("iso-8859-13", "Ąžuolas", None),
    ("iso-8859-14", "Ẃŷ", None),
    ("iso-8859-15", "Œuvre €", None),
    ("iso-8859-16", "Țară", None),
    ("koi8-r", "Привет", None),
    ("koi8-u", "Київ", None),
    ("macintosh", "Universität", None),
    ("windows-874", "ไทย", Some(b"\xff")),
    ("windows-1250", "Łódź", None),
    ("windows-1251", "Привет", None),
    ("latin1", "Universität", None),
    ("windows-1253", "Αθήνα", Some(b"\xff")),
    ("windows-1254", "İstanbul", None),
    ("windows-1255", "שלום", Some(b"\xff")),
    ("windows-1256", "سلام", None),
    ("windows-1257", "Ąžuolas", Some(b"\xa5")),
    ("windows-1258", "Đà", None),
    ("x-mac-cyrillic", "Привет", None),
    ("gbk", "中文", Some(b"\xff")),
    ("gb18030", "中文é", Some(b"\xff")),
    ("big5", "漢字", Some(b"\xff")),
    ("euc-jp", "日本", Some(b"\xff")),
    ("iso-2022-jp", "日本", Some(b"\xff")),
    ("shift_jis", "日本", Some(b"\xfd")),
    ("euc-kr", "한국", Some(b"\xff")),
    ("utf-16be", "日本é", Some(b"\xd8\x00\xd8\x00")),
    ("utf-16le", "日本é", Some(b"\x00\xd8\x00\xd8")),
];

fn bytes_in(encoding: &'static Encoding, text: &str) -> Vec<u8> {
    match encoding {
        _ if encoding == UTF_16BE => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        _ if encoding == UTF_16LE => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        _ => {
            let (bytes, _, has_unmappable) = encoding.encode(text);
            assert!(!has_unmappable, "{text} in {}", encoding.name());
            bytes.into_owned()
        }
    }
}

#[test]
fn encodings_are_found_by_label_and_decode_without_replacement() {
    let rules = ReferenceRules::typed();
    for (label, text, wrong) in ENCODINGS {
        let encoding = charset(label).unwrap_or_else(|| panic!("{label}"));
        let handle = format!("cnri.test/{text}");
        for label in [label.to_owned(), label.to_ascii_uppercase(), encoding.name().to_owned()] {
            let mut written = format!("hdl:{label}@");
            coded(&bytes_in(encoding, &handle), false, &mut written);
            let read =
                HandleReference::parse(&written, &rules).unwrap_or_else(|error| panic!("{written}: {error}"));
            assert_eq!(read.handle, handle, "{written}");
            // The slash may stay unencoded if the encoding includes ASCII in single bytes.
            if encoding.is_ascii_compatible() {
                let mut written = format!("{label}@cnri.test/");
                coded(&bytes_in(encoding, text), true, &mut written);
                assert_eq!(HandleReference::parse(&written, &rules).unwrap().handle, handle, "{written}");
            }
        }
        if let Some(wrong) = wrong {
            let mut written = format!("hdl:{label}@");
            coded(&bytes_in(encoding, "a/"), false, &mut written);
            coded(wrong, false, &mut written);
            let error = HandleReference::parse(&written, &rules).unwrap_err();
            assert!(matches!(error, ReferenceError::NotInCharset(_)), "{written}: {error:?}");
        }
    }
    // Those that browsers replace wholly, and one that is obsolete.
    for label in ["replacement", "iso-2022-kr", "hz-gb-2312", "iso-2022-cn", "utf7", "utf-7", "none-such"] {
        let read = HandleReference::parse(&format!("hdl:{label}@a/b"), &rules);
        assert_eq!(read, Err(ReferenceError::UnknownCharset(label.to_owned())));
    }
    assert_eq!(charset("utf8"), Some(UTF_8));
}

#[test]
fn every_byte_of_a_handle_reads_back_at_every_position() {
    for byte in 0..=0x7f {
        let c = char::from(byte);
        for handle in [
            format!("{c}"),
            format!("{c}a/b"),
            format!("a{c}/b"),
            format!("a/{c}b"),
            format!("a/b{c}"),
            format!("a/{c}"),
        ] {
            both_forms_read_back(&handle);
        }
        // An encoded character stands for itself, whatever its special meaning.
        let written = format!("hdl:a/%{byte:02x}%{byte:02X}b");
        let read = HandleReference::parse(&written, &ReferenceRules::typed()).unwrap();
        assert_eq!(read.handle, format!("a/{c}{c}b"));
    }
    for byte in 0x80..=0xff_u8 {
        let read = HandleReference::parse(&format!("hdl:a/%{byte:02X}"), &ReferenceRules::typed());
        assert_eq!(read, Err(ReferenceError::NotUtf8), "{byte:02x}");
    }
    both_forms_read_back(&format!("{}/{}", "a.".repeat(20_000), "b/%".repeat(20_000)));
}

proptest! {
    #[test]
    fn references_of_the_grammar_are_read_as_their_parts(
        handle in r##"[a-z0-9.:@%é日 "]{1,5}(/[ -~é日\u{0}\t\n]{0,8})?"##,
        at in 0..INTRODUCTIONS.len(),
        (mask, small) in (any::<u64>(), any::<bool>()),
        behind in behind(),
        blanks in ("[ \t\n]{0,2}", "[ \t\n]{0,2}"),
    ) {
        let (introduction, form) = INTRODUCTIONS[at];
        let in_urn = if introduction.to_ascii_lowercase().contains("urn:") { ReferenceForm::Urn } else { form };
        let (name, options) = (name(&handle, in_urn, mask, small), behind.written(small));
        let written = format!("{}{introduction}{name}{options}{}", blanks.0, blanks.1);
        let read = HandleReference::parse(&written, &ReferenceRules::typed());
        let read = read.unwrap_or_else(|error| panic!("{written:?}: {error}"));
        prop_assert_eq!(&read.handle, &handle, "{:?}", written);
        prop_assert_eq!(read.form, form);
        let server = match introduction {
            "hdl://server.example:2641/" => Some("server.example:2641"),
            "HDL://[::1]/" => Some("[::1]"),
            _ => None,
        };
        prop_assert_eq!(read.server.as_deref(), server);
        prop_assert_eq!((read.types, read.indexes, read.options), (behind.types, behind.indexes, behind.others));
        prop_assert_eq!(read.fragment, behind.fragment);
    }

    #[test]
    fn a_modifier_is_read_as_its_parts(
        label in prop::option::of(prop::sample::select(vec!["utf-8", "latin1", "SJIS", "koi8", "gb", "jis"])),
        kind in prop::option::of("[A-Za-z0-9._-]{1,40}"),
        separator in "[ ;]?",
        introduction in prop::sample::select(vec!["", "hdl:", "doi:", "hdl.handle.net/", "https://doi.org/"]),
    ) {
        let of_kind = kind.as_ref().map(|kind| {
            let separator = if label.is_some() { separator.as_str() } else { "" };
            format!("{separator}type={kind}")
        });
        let written = format!("{introduction}{}{}@10.1/a%20b", label.unwrap_or_default(), of_kind.unwrap_or_default());
        let read = HandleReference::parse(&written, &ReferenceRules::typed());
        let read = read.unwrap_or_else(|error| panic!("{written:?}: {error}"));
        prop_assert_eq!(&read.handle, "10.1/a b", "{}", written);
        prop_assert_eq!(read.types, Vec::from_iter(kind));
        // A proxy supports no encodings, and looks the whole text up.
        if !introduction.contains(':') {
            let path = format!("{}@10.1/a%20b", label.unwrap_or_default());
            let read = HandleReference::parse(&path, &ReferenceRules::proxy()).unwrap();
            prop_assert_eq!(read.handle, format!("{}@10.1/a b", label.unwrap_or_default()));
        }
    }
}
