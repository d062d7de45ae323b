//! The namespaces of a handle: HS_NAMESPACE values of the root record and of the record of its
//! prefix.
//!
//! A document names the contacts for a prefix, its status, and how values that are not stored are
//! computed. It inherits what it lacks from the outer namespace. Callers parse it.

use crate::question::AnswerWants;
use crate::service::Kinds;
use crate::{LookupAnswer, Question};
use handle_proto::data::kind;
use handle_proto::name::ROOT;
use handle_proto::{Handle, fold};

/// The questions for the namespaces of `handle`, the outermost first: the root record, and that of
/// the prefix. A lookup of the handle asks for the latter in the same way, so it is cached.
#[must_use]
pub fn questions(handle: Handle<'_>, wants: AnswerWants) -> Vec<Question> {
    let wants = AnswerWants { authoritative: false, public_only: true, ..wants };
    let question = |handle: Vec<u8>| Question {
        handle,
        types: Kinds::Service.types(true),
        wants,
        ..Question::default()
    };
    let record = handle.prefix_record();
    let own = (!fold::eq(&record, ROOT)).then_some(record);
    [ROOT.to_vec()].into_iter().chain(own).map(question).collect()
}

/// The documents of a record, in order of precedence: the first valid one is the namespace.
#[must_use]
pub fn documents(answer: &LookupAnswer) -> Vec<&[u8]> {
    let values = answer.values().iter();
    let mut found: Vec<(i32, &[u8])> = values
        .filter(|value| value.kind == kind::HS_NAMESPACE && !value.data.is_empty())
        .map(|value| (value.index, value.data))
        .collect();
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, data)| data).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::{ResponseCode, Value};

    #[test]
    fn the_document_with_the_lowest_index_counts_first() {
        let values = [
            Value::new(7, b"HS_NAMESPACE", b"<namespace/>"),
            Value::new(1, b"HS_SITE", b"x"),
            Value::new(3, b"HS_NAMESPACE", b"broken"),
            Value::new(2, b"HS_NAMESPACE", b""),
        ];
        let answer = LookupAnswer::new(b"0.NA/10.A", ResponseCode::SUCCESS, values);
        assert_eq!(documents(&answer), [&b"broken"[..], b"<namespace/>"]);
    }

    #[test]
    fn a_handle_has_the_namespaces_of_the_root_and_of_its_prefix() {
        let records_for = |handle: &[u8]| {
            let questions = questions(Handle(handle), AnswerWants::default());
            questions
                .into_iter()
                .map(|question| String::from_utf8(question.handle).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(records_for(b"10.a/x"), ["0.NA/0.NA", "0.NA/10.A"]);
        assert_eq!(records_for(b"0.NA/10.a"), ["0.NA/0.NA"]);
        // A derived prefix does not inherit from its parent prefix.
        assert_eq!(records_for(b"10.a.b/x"), ["0.NA/0.NA", "0.NA/10.A.B"]);
        assert_eq!(records_for(b"0.na/10.a.b"), ["0.NA/0.NA"]);
        assert_eq!(records_for(b"10.a"), ["0.NA/0.NA"]);
    }
}
