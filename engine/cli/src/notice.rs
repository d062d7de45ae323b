//! Notices in the namespace of a prefix: its contact, and whether it is inactive.

use handle_client::lookup::Client;
use handle_client::question::AnswerWants;
use handle_client::{LookupAnswer, driver, namespace};
use handle_proto::Handle;
use handle_template::Notice;

/// The notices in the namespaces of a handle; the inner namespace takes precedence. `ask` fetches
/// them.
pub(crate) fn of(
    handle: &[u8],
    wants: AnswerWants,
    mut ask: impl FnMut(&handle_client::Question) -> Option<LookupAnswer>,
) -> Notice {
    let questions = namespace::questions(Handle(handle), wants);
    let notices = questions.iter().filter_map(|question| Notice::of_record(ask(question)?.values().iter()));
    notices.fold(Notice::default(), |outer, inner| inner.or(outer))
}

/// Reports that the prefix of a handle is inactive, as far as is known already; sends no request.
pub(crate) fn warn(client: &Client, handle: &[u8], wants: AnswerWants) {
    let notice = of(handle, wants, |question| {
        client.cache.get(question, driver::now()).map(handle_client::SharedAnswer::into_answer)
    });
    if let Some(what) = inactive(&notice) {
        eprintln!("hdl: the prefix of {} is {what}", crate::output::printable(&Handle(handle).to_string()));
    }
}

/// The notice about an inactive prefix.
pub(crate) fn inactive(notice: &Notice) -> Option<String> {
    let status = notice.status.as_deref().filter(|_| !notice.is_active())?;
    let message = notice.message.as_deref().map(|message| format!(": {message}"));
    let text = format!("{status}{}", message.unwrap_or_default());
    Some(crate::output::short(&text, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_says_is_one_line_of_a_bounded_length() {
        let says = |status: &str, message: &str| Notice {
            status: Some(status.to_owned()),
            message: Some(message.to_owned()),
            ..Notice::default()
        };
        assert_eq!(inactive(&says("active", "Moved.")), None);
        assert_eq!(inactive(&says("gone", "a\nb")).unwrap(), "gone: a\\nb");
        for notice in [says("gone", &"x".repeat(1 << 20)), says(&"x".repeat(1 << 20), "Moved.")] {
            let shown = inactive(&notice).unwrap();
            assert!(shown.len() < 3000 && shown.ends_with(" bytes)"), "{} bytes", shown.len());
        }
    }
}
