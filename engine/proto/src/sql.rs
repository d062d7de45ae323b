//! The tables of deployed servers that keep records in a database.
//!
//! In the column of references, a reference is `index:handle`. In a handle, a tab is `\t`, a line
//! feed `\n`, a carriage return `\r` and a backslash `\\`. References follow each other with tabs
//! between them. Of the whole text, everything but printable ASCII, and the percent sign, is then
//! written as `%` and the four hexadecimal digits of a unit of UTF-16, so the tabs between
//! references are `%0009`. Handle.Net 9.3.1 writes this over PostgreSQL
//! (`tests/reference/tables.py`).

use crate::wire::list::{Reference, References};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The columns of a value in the table of handles, after `handle`, in the order in which deployed
/// servers make them.
pub const VALUE_COLUMNS: [&str; 11] = [
    "idx",
    "type",
    "data",
    "ttl_type",
    "ttl",
    "timestamp",
    "refs",
    "admin_read",
    "admin_write",
    "pub_read",
    "pub_write",
];

/// Reads references. Their wire form replaces the content of `storage`. Tabs and letters beyond
/// ASCII that are not escaped stand for themselves, as for deployed servers.
///
/// Returns `None` if the text is not a list of `index:handle`.
#[must_use]
pub fn read_references<'s>(text: &[u8], storage: &'s mut Vec<u8>) -> Option<References<'s>> {
    storage.clear();
    let text = without_percent(text)?;
    let mut count = 0;
    for part in text.split(|&byte| byte == b'\t').filter(|part| !part.is_empty()) {
        let colon = part.iter().position(|&byte| byte == b':')?;
        let index = str::from_utf8(&part[..colon]).ok()?.trim().parse().ok()?;
        Reference { handle: &without_backslashes(&part[colon + 1..]), index }.encode(storage);
        count += 1;
    }
    References::from_encoded(count, storage).ok()
}

/// Writes references as [`read_references`] reads them; `None` if a handle is not UTF-8, which
/// deployed servers could not read back.
#[must_use]
pub fn write_references(references: References<'_>) -> Option<String> {
    let mut text = String::new();
    for Reference { handle, index } in references.iter() {
        if !text.is_empty() {
            text.push_str("%0009");
        }
        text.push_str(&format!("{index}:"));
        for letter in str::from_utf8(handle).ok()?.chars() {
            match letter {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                ' '..='~' if letter != '%' => text.push(letter),
                _ => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        text.push_str(&format!("%{unit:04X}"));
                    }
                }
            }
        }
    }
    Some(text)
}

/// Replaces `%` and four hexadecimal digits by what they stand for. Any other `%` stands for
/// itself.
fn without_percent(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let Some(unit) = unit_at(rest) else {
            bytes.push(byte);
            rest = after;
            continue;
        };
        rest = &rest[UNIT_LEN..];
        // A letter beyond the first 65,536 has two units.
        let letter = match unit {
            0xd800..0xdc00 => {
                let low = unit_at(rest)?;
                rest = &rest[UNIT_LEN..];
                char::decode_utf16([unit, low]).next()?.ok()?
            }
            unit => char::from_u32(unit.into())?,
        };
        bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(bytes)
}

/// Length of `%` and four digits.
const UNIT_LEN: usize = 5;

/// The unit that an escape at the beginning of `text` stands for.
fn unit_at(text: &[u8]) -> Option<u16> {
    let (b'%', digits) = text.get(..UNIT_LEN)?.split_first()? else { return None };
    let digits = digits.iter().map(|&digit| char::from(digit).to_digit(16));
    digits.into_iter().try_fold(0, |unit, digit| Some(unit << 4 | u16::try_from(digit?).ok()?))
}

fn without_backslashes(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(&other) => other,
                None => byte,
            },
            other => other,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::borrow::ToOwned as _;
    use std::vec;

    fn read(text: &str) -> Option<Vec<(i32, String)>> {
        let mut storage = b"what was there".to_vec();
        let references = read_references(text.as_bytes(), &mut storage)?;
        let handle = |handle: &[u8]| String::from_utf8(handle.to_vec()).unwrap();
        Some(references.iter().map(|reference| (reference.index, handle(reference.handle))).collect())
    }

    fn write(references: &[(i32, &str)]) -> String {
        let mut storage = Vec::new();
        let entries =
            references.iter().map(|&(index, handle)| Reference { handle: handle.as_bytes(), index });
        write_references(References::build(entries, &mut storage)).unwrap()
    }

    /// Seen in a table of Handle.Net 9.3.1.
    #[test]
    fn references_have_the_form_of_deployed_servers() {
        for (references, text) in [
            (&[][..], ""),
            (&[(1, "10.1/A")], "1:10.1/A"),
            (&[(300, "0.NA/10.1"), (-3, "a:b"), (7, "")], "300:0.NA/10.1%0009-3:a:b%00097:"),
            (&[(1, "percent%20")], "1:percent%002520"),
            (&[(1, "ümläut-日本")], "1:%00FCml%00E4ut-%65E5%672C"),
            (&[(1, "A😀B")], "1:A%D83D%DE00B"),
            (&[(1, "A\tB\nC\rD\\E")], "1:A\\tB\\nC\\rD\\\\E"),
            (&[(1, "\u{1}\u{c}\u{7f}")], "1:%0001%000C%007F"),
            (&[(1, "q?x#y \"'&+;")], "1:q?x#y \"'&+;"),
        ] {
            assert_eq!(write(references), text);
            let expected: Vec<_> =
                references.iter().map(|&(index, handle)| (index, handle.to_owned())).collect();
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    /// Handle.Net 9.3.1 reads these texts so.
    #[test]
    fn texts_of_other_programs_are_read_as_deployed_servers_read_them() {
        let one = |handle: &str| vec![(1, handle.to_owned())];
        let two = || vec![(1, "A".to_owned()), (2, "B".to_owned())];
        for (text, expected) in [
            ("1:A\t2:B", two()),
            ("1:A%00092:B%0009", two()),
            ("1:A%20B", one("A%20B")),
            ("1:é", one("é")),
            ("1:%00e9", one("é")),
            ("1:A%2520", one("A\u{2520}")),
            ("1:A%", one("A%")),
            ("1:A%00", one("A%00")),
            ("1:A\\qB", one("AqB")),
            ("1:A\\u00e9B", one("Au00e9B")),
            ("1:A\nB", one("A\nB")),
            ("1: A", one(" A")),
            ("1:A%000A%0000", one("A\n\0")),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
        for text in ["x", "x:10.1/A", "1", "99999999999:10.1/A", "1:%D83D", "1:%D83Dx", "1:%DE00"] {
            assert_eq!(read(text), None, "{text}");
        }
        let mut storage = Vec::new();
        let foreign = References::build([Reference { handle: b"10.1/\xff", index: 1 }], &mut storage);
        assert_eq!(write_references(foreign), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(references in prop::collection::vec((any::<i32>(), ".*"), 0..5)) {
            let views: Vec<_> = references.iter().map(|(index, handle)| (*index, &**handle)).collect();
            let text = write(&views);
            prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", text);
            prop_assert_eq!(read(&text), Some(references));
        }

        #[test]
        fn any_text_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = read_references(&text, &mut Vec::new());
        }
    }
}
