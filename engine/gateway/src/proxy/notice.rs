//! The contact and status message in the namespace of a prefix.

use crate::record::HttpQuestion;
use crate::state::GatewayState;
use handle_client::question::AnswerWants;
use handle_client::{driver, namespace};
use handle_proto::Handle;
use handle_template::Notice;
use std::net::IpAddr;

impl GatewayState {
    /// The notice about the prefix of `handle`, from the set or from cached answers. It does not
    /// wait: resolving a handle of another service has cached the record of its prefix.
    pub(super) fn notice(&self, handle: Handle<'_>, source: IpAddr) -> Notice {
        let questions = namespace::questions(handle, AnswerWants::default());
        let notices = questions.into_iter().filter_map(|question| {
            let http_question = HttpQuestion::new(question, source);
            if let Some(notice) =
                self.answer_here(&http_question, |answer| Notice::of_record(answer.values.iter()))
            {
                return notice;
            }
            let cache = &self.reading.upstream.as_ref()?.client().cache;
            Notice::of_record(cache.get(&http_question.question, driver::now())?.values().iter())
        });
        notices.fold(Notice::default(), |outer, inner| inner.or(outer))
    }
}
