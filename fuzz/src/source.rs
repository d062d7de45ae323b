//! What sources of records answer.

use handle_proto::json::record_to_json;
use handle_proto::sql::{read_references, write_references};
use handle_proto::{Handle, Value};
use handle_source::contract::{ProgramAnswer, ProgramOutcome, question_line, read_record};
use handle_source::listing::{ListedLine, PageItem};
use std::collections::BTreeSet;

/// A record is that of the handle that was asked for, and its JSON reads back as the same; so does
/// the text of references. A program that says the same as a back end has the same record, and so
/// has a listing.
pub fn source_answer(bytes: &[u8]) {
    let at = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (key, answer) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    if let Ok(line) = question_line(7, key) {
        assert_eq!(line.matches('\n').count(), 1, "a question is one line");
        assert_eq!(ProgramAnswer::parse(line.as_bytes()).map(|answer| answer.id), Ok(7));
    }
    for folds in [false, true] {
        let Ok(record) = read_record(answer, key, folds) else { continue };
        let view = record.view();
        let indexes: BTreeSet<i32> = view.values.iter().map(|value| value.index).collect();
        assert!(indexes.len() == view.values.len() && indexes.iter().all(|&index| index > 0), "{indexes:?}");
        // The JSON of a type may lack bits without a meaning, so only what it says is compared.
        let json = record_to_json(key, view.values.iter()).to_string();
        let again = read_record(json.as_bytes(), key, folds).expect("JSON of a record");
        let json_again = record_to_json(key, again.view().values.iter()).to_string();
        assert_eq!(json_again, json, "{}", Handle(key));
        for Value { references, .. } in view.values.iter() {
            let Some(text) = write_references(references) else { continue };
            let mut storage = Vec::new();
            let again = read_references(text.as_bytes(), &mut storage).expect("what was written");
            assert!(again.iter().eq(references.iter()), "{text}");
        }
    }
    if let Ok(ProgramAnswer { outcome: ProgramOutcome::Record(line), .. }) = ProgramAnswer::parse(answer) {
        assert_eq!(read_record(line, key, true), read_record(answer, key, true));
    }
    listed_line(answer);
}

/// A line of a listing has the record that a back end would answer about its handle, and the start
/// of the line names no other handle.
fn listed_line(line: &[u8]) {
    let Ok(ListedLine { item, .. }) = ListedLine::parse(line) else { return };
    let handle = match &item {
        PageItem::Record(handle, record) => {
            assert_eq!(read_record(line, handle, false).as_ref(), Ok(record));
            Some(handle)
        }
        PageItem::Unfit(unfit) => {
            let handle = unfit.handle.as_ref().expect("a whole line names its handle");
            let is_record = read_record(line, handle, false).is_ok();
            assert!(!is_record || has_code(line), "{}", unfit.why);
            Some(handle)
        }
        PageItem::Absent(handle) => Some(handle),
        PageItem::End(_) | PageItem::Expired | PageItem::NoChanges => None,
    };
    for len in [line.len() / 3, line.len() / 2, line.len()] {
        let found = ListedLine::too_long(&line[..len]).handle;
        assert!(found.is_none() || found.as_ref() == handle, "{len}");
    }
}

/// Whether a line may say besides its record that there is none.
fn has_code(line: &[u8]) -> bool {
    line.windows(12).any(|part| part == b"responseCode") || line.contains(&b'\\')
}
