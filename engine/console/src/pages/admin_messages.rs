//! The texts of the administration pages, one table for each language, as in
//! [`messages`](super::messages).

mod de;
mod en;
mod fr;

pub(super) use de::DE;
pub(super) use en::EN;
pub(super) use fr::FR;

/// The texts in one language.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the English texts say what they are")]
pub struct AdminMessages {
    pub title: &'static str,
    pub records: &'static str,
    pub new_record: &'static str,
    pub upload: &'static str,
    pub sign_out: &'static str,
    pub signed_in_as: &'static str,
    pub sign_in: &'static str,
    pub sign_in_secret: &'static str,
    pub sign_in_key: &'static str,
    pub identity: &'static str,
    pub identity_hint: &'static str,
    pub secret: &'static str,
    pub key_file: &'static str,
    pub key_hint: &'static str,
    pub passphrase: &'static str,
    pub needs_script: &'static str,
    pub not_verified: &'static str,
    pub too_many_secrets: &'static str,
    pub unreachable: &'static str,
    pub search: &'static str,
    pub search_label: &'static str,
    pub found_count: &'static str,
    pub nothing_found: &'static str,
    pub next_page: &'static str,
    pub previous_page: &'static str,
    pub edit: &'static str,
    pub open: &'static str,
    pub clone: &'static str,
    pub delete: &'static str,
    pub delete_confirm: &'static str,
    pub save: &'static str,
    pub create: &'static str,
    pub add_value: &'static str,
    pub remove_value: &'static str,
    pub value: &'static str,
    pub format: &'static str,
    pub format_text: &'static str,
    pub format_json: &'static str,
    pub ttl_seconds: &'static str,
    pub permissions_hint: &'static str,
    pub saved: &'static str,
    pub created: &'static str,
    pub deleted: &'static str,
    pub not_permitted: &'static str,
    pub exists: &'static str,
    pub not_found: &'static str,
    pub not_here: &'static str,
    pub refused: &'static str,
    pub not_confirmed: &'static str,
    pub form_expired: &'static str,
    pub same_commands: &'static str,
    pub upload_intro: &'static str,
    pub upload_file: &'static str,
    pub upload_text: &'static str,
    pub upload_replace: &'static str,
    pub allow_orphans: &'static str,
    pub upload_start: &'static str,
    pub upload_progress: &'static str,
    pub upload_done: &'static str,
    pub upload_download: &'static str,
    pub upload_result: &'static str,
    pub upload_bad: &'static str,
    pub key_bad: &'static str,
    pub key_unsupported: &'static str,
}
