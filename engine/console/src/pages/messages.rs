//! The texts of pages, one table for each language.
//!
//! `{}` stands for a number or name. Each language has every text, because the fields of a struct
//! have to be complete.

mod de;
mod en;
mod fr;

pub(super) use de::DE;
pub(super) use en::EN;
pub(super) use fr::FR;

/// The texts of one language.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the English texts say what they are")]
pub struct Messages {
    pub skip: &'static str,
    pub home: &'static str,
    pub form_title: &'static str,
    pub form_intro: &'static str,
    pub handle_label: &'static str,
    pub handle_hint: &'static str,
    pub resolve: &'static str,
    pub options: &'static str,
    pub option_no_redirect: &'static str,
    pub option_ignore_aliases: &'static str,
    pub option_authoritative: &'static str,
    pub redirect_title: &'static str,
    pub redirect_text: &'static str,

    pub record_of: &'static str,
    pub no_location: &'static str,
    pub unsafe_location: &'static str,
    pub values: &'static str,
    pub index: &'static str,
    pub kind: &'static str,
    pub data: &'static str,
    pub details: &'static str,
    pub ttl: &'static str,
    pub until: &'static str,
    pub changed: &'static str,
    pub permissions: &'static str,
    pub references: &'static str,
    pub empty: &'static str,
    pub bytes: &'static str,
    pub shortened: &'static str,

    pub readers: &'static str,
    pub writers: &'static str,
    pub everyone: &'static str,
    pub administrators: &'static str,
    pub nobody: &'static str,

    pub administrator: &'static str,
    pub any_key_of: &'static str,
    pub may_all: &'static str,
    pub may_nothing: &'static str,
    pub may: &'static str,
    /// In the order of [`AdminPermissions::KNOWN`](handle_proto::data::AdminPermissions::KNOWN).
    pub rights: [&'static str; 12],
    pub group: &'static str,
    pub group_empty: &'static str,
    pub key: &'static str,
    pub fingerprint: &'static str,
    pub secret: &'static str,

    pub primary_site: &'static str,
    pub mirror_site: &'static str,
    pub serial: &'static str,
    pub protocol: &'static str,
    pub hashed_by: &'static str,
    pub hash_options: [&'static str; 4],
    pub server: &'static str,
    pub queries: &'static str,
    pub administration: &'static str,
    pub no_interface: &'static str,

    pub found: &'static str,
    pub source: &'static str,
    pub from_set: &'static str,
    pub generation: &'static str,
    pub published: &'static str,
    pub from_cache: &'static str,
    pub from_server: &'static str,
    pub signature: &'static str,
    pub signature_good: &'static str,
    pub signature_none: &'static str,
    pub took: &'static str,
    pub aliases: &'static str,
    pub steps: &'static str,

    pub forms: &'static str,
    pub link: &'static str,
    pub text_form: &'static str,
    pub json: &'static str,
    pub json_link: &'static str,
    pub command_hdl: &'static str,
    pub command_curl: &'static str,

    pub status: &'static str,
    pub reason: &'static str,
    pub contact: &'static str,
    pub retry_after: &'static str,
    pub without_slash: &'static str,
    pub invalid: [&'static str; 2],
    pub unknown_prefix: [&'static str; 2],
    pub not_found: [&'static str; 2],
    pub no_public_values: [&'static str; 2],
    pub no_such_values: [&'static str; 2],
    pub alias_chain: [&'static str; 2],
    pub alias_invalid: [&'static str; 2],
    pub gone: [&'static str; 2],
    pub method: [&'static str; 2],
    pub malformed: [&'static str; 2],
    pub request_late: [&'static str; 2],
    pub body_too_long: [&'static str; 2],
    pub too_many: [&'static str; 2],
    pub head_too_long: [&'static str; 2],
    pub internal: [&'static str; 2],
    pub upstream: [&'static str; 2],
    pub busy: [&'static str; 2],
    pub timeout: [&'static str; 2],

    /// Day, hour, minute and second: one, and several.
    pub units: [(&'static str, &'static str); 4],
    pub months: [&'static str; 12],
    pub date: &'static str,
}
