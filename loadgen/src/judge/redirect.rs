//! The redirect that a proxy derives from a record.
//!
//! A proxy redirects a record without aliases and locations to its first URL value, with status
//! 302. The target of an alias or a 10320/loc value depends on more than the record, so only its
//! presence is checked.

use handle_proto::data::kind;
use handle_proto::wire::Message;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::{Handle, ResponseCode, fold};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::judge::expect::{AnswerDifference, ContentSource, SetContent, code, compare_held};
use crate::load::question::GeneratedQuestion;

/// The status of a redirect to a URL value.
const FOUND: i32 = 302;

/// Characters that are not allowed in a URL and are percent-encoded in a redirect.
const NOT_IN_URLS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'^')
    .add(b'`')
    .add(b'\\');

/// The expected answer of a proxy for a record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedRedirect {
    /// A redirect to this URL.
    To(Vec<u8>),
    /// The same, or a page: not every proxy redirects to URLs of this scheme.
    ToOrPage(Vec<u8>),
    /// A redirect to a URL that does not follow from the record alone, or a page.
    Somewhere,
    /// A page.
    Page,
}

/// Compares an answer to `question`, in the form of a message, with a set.
///
/// # Errors
///
/// The difference.
pub(crate) fn compare(
    question: &GeneratedQuestion<'_>,
    message: &Message<'_>,
    source: &dyn ContentSource,
) -> Result<(), AnswerDifference> {
    let held = source.content_of(question.handle).map_err(|_| AnswerDifference::SetDamaged)?;
    let expected = match held {
        SetContent::Values { .. } => expected(question, source).map_err(|_| AnswerDifference::SetDamaged)?,
        SetContent::NothingPublic => ExpectedRedirect::Page,
        _ => return compare_held(question, message, held),
    };
    let is_redirect = message.header.response_code == ResponseCode::SUCCESS;
    match expected {
        ExpectedRedirect::To(url) => compare_target(message, &url),
        ExpectedRedirect::ToOrPage(url) if is_redirect => compare_target(message, &url),
        ExpectedRedirect::Somewhere if is_redirect => Ok(()),
        ExpectedRedirect::Page | ExpectedRedirect::ToOrPage(_) | ExpectedRedirect::Somewhere => {
            compare_page(message)
        }
    }
}

/// Returns the expected answer for the selected public values, in stored order.
fn expected(
    question: &GeneratedQuestion<'_>,
    source: &dyn ContentSource,
) -> Result<ExpectedRedirect, String> {
    let (mut url, mut is_open) = (None, false);
    source.each_value(question.handle, &mut |value, _| {
        if !value.is_public() || !question.selects(value) {
            return;
        }
        // A request for types asks for the alias itself.
        let is_alias = fold::eq(value.kind, kind::HS_ALIAS) && question.types.is_empty();
        is_open |= is_alias || fold::eq(value.kind, kind::LOCATIONS);
        if url.is_none() && value.is_a(kind::URL) {
            url = Some(value.data.to_vec());
        }
    })?;
    // Records inherit the locations of their prefix.
    source.each_value(&Handle(&Handle(question.handle).looked_up()).prefix_record(), &mut |value, _| {
        is_open |= value.is_public() && fold::eq(value.kind, kind::LOCATIONS);
    })?;
    Ok(match url {
        _ if is_open => ExpectedRedirect::Somewhere,
        None => ExpectedRedirect::Page,
        Some(url) if is_web_url(&url) => ExpectedRedirect::To(url),
        Some(url) => ExpectedRedirect::ToOrPage(url),
    })
}

/// Whether every proxy redirects to `url`.
fn is_web_url(url: &[u8]) -> bool {
    let url = url.trim_ascii().to_ascii_lowercase();
    let rest = url.strip_prefix(b"https://").or_else(|| url.strip_prefix(b"http://"));
    rest.is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_alphanumeric))
}

fn compare_target(message: &Message<'_>, url: &[u8]) -> Result<(), AnswerDifference> {
    code(message, ResponseCode::SUCCESS)?;
    let answer = QueryAnswer::decode(message.body).map_err(|_| AnswerDifference::Unreadable)?;
    let target = answer.values.iter().next().ok_or(AnswerDifference::Unreadable)?;
    if target.index != FOUND {
        return Err(AnswerDifference::Status { received: target.index, expected: FOUND });
    }
    let encoded = |url: &[u8]| percent_encode(url.trim_ascii(), NOT_IN_URLS).to_string();
    if encoded(target.data) == encoded(url) { Ok(()) } else { Err(AnswerDifference::Location) }
}

/// Checks a page about a record without a location: the record itself, or an error with status 404.
fn compare_page(message: &Message<'_>) -> Result<(), AnswerDifference> {
    match message.header.response_code {
        ResponseCode::HANDLE_NOT_FOUND => Ok(()),
        _ => code(message, ResponseCode::VALUES_NOT_FOUND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::expected_records::ExpectedRecords;
    use crate::load::question::QuestionForm;
    use crate::load::stream::redirect;
    use handle_proto::Value;
    use handle_proto::json::{record_to_json, text};
    use handle_proto::wire::Envelope;
    use std::ops::ControlFlow;

    const WEB: &[u8] = b"https://example.org/a b";

    fn records() -> ExpectedRecords {
        let records: [(&[u8], Vec<Value<'_>>); 7] = [
            (b"10.1/url", vec![Value::new(2, b"EMAIL", b"x"), Value::new(1, b"url.main", WEB)]),
            (b"10.1/two", vec![Value::new(9, b"URL", WEB), Value::new(1, b"URL", b"https://example.org/")]),
            (b"10.1/alias", vec![Value::new(1, b"URL", WEB), Value::new(2, b"HS_ALIAS", b"10.1/url")]),
            (b"10.1/script", vec![Value::new(1, b"URL", b"javascript:alert(1)")]),
            (b"10.1/none", vec![Value::new(1, b"EMAIL", b"x")]),
            (b"0.NA/10.2", vec![Value::new(1, b"10320/loc", b"<locations/>")]),
            (b"10.2/url", vec![Value::new(1, b"URL", WEB)]),
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = records.map(|(handle, values)| text(&record_to_json(handle, values)));
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        ExpectedRecords::read(file.path(), || ControlFlow::Continue(())).unwrap()
    }

    fn compared(
        handle: &[u8],
        form: &str,
        status: u16,
        location: Option<&[u8]>,
    ) -> Result<(), AnswerDifference> {
        let form: QuestionForm = form.parse().unwrap();
        let bytes = redirect::message(status, location, handle, 1).unwrap();
        compare(&form.question(handle), &Message::decode(&bytes[Envelope::LEN..]).unwrap(), &records())
    }

    #[test]
    fn a_redirect_leads_to_the_first_url() {
        let encoded: &[u8] = b"https://example.org/a%20b";
        for handle in [&b"10.1/url"[..], b"10.1/TWO"] {
            assert_eq!(compared(handle, "plain", 302, Some(encoded)), Ok(()));
            assert_eq!(
                compared(handle, "plain", 302, Some(b"https://example.org/x")),
                Err(AnswerDifference::Location)
            );
            let status = AnswerDifference::Status { received: 301, expected: 302 };
            assert_eq!(compared(handle, "plain", 301, Some(encoded)), Err(status));
            assert!(matches!(compared(handle, "plain", 200, None), Err(AnswerDifference::Code { .. })));
            assert!(matches!(compared(handle, "plain", 404, None), Err(AnswerDifference::Code { .. })));
        }
        assert_eq!(compared(b"10.1/two", "index:1", 302, Some(b"https://example.org/")), Ok(()));
        assert_eq!(compared(b"10.1/two", "type:EMAIL", 404, None), Ok(()));
        assert_eq!(compared(b"10.1/alias", "type:URL", 302, Some(encoded)), Ok(()));
    }

    #[test]
    fn other_targets_only_have_to_exist() {
        for handle in [&b"10.1/alias"[..], b"10.2/url"] {
            assert_eq!(compared(handle, "plain", 301, Some(b"/10.1/url")), Ok(()));
            assert!(compared(handle, "plain", 503, None).is_err());
        }
    }

    #[test]
    fn records_without_a_location_are_pages() {
        for handle in [&b"10.1/none"[..], b"10.1/script"] {
            assert_eq!(compared(handle, "plain", 200, None), Ok(()));
            assert!(compared(handle, "plain", 302, Some(b"https://example.org/")).is_err());
        }
        assert_eq!(compared(b"10.1/script", "plain", 302, Some(b"javascript:alert(1)")), Ok(()));
        assert_eq!(compared(b"10.1/absent", "plain", 404, None), Ok(()));
        assert!(compared(b"10.1/absent", "plain", 302, Some(WEB)).is_err());
        assert_eq!(compared(b"10.9/absent", "plain", 400, None), Ok(()));
    }
}
