//! The administration pages: sign-in, records, one record, upload.

use super::{PageFrame, html};
use askama::Template;

/// The signed-in user.
#[derive(Clone, Debug)]
pub struct AdminUser {
    /// The identity, as text.
    pub identity: String,
    /// The token of forms, so that only pages of this gateway can send them.
    pub csrf: String,
    /// Whether the user reviews requests for prefixes.
    pub is_reviewer: bool,
}

/// A sentence at the top of a page.
#[derive(Clone, Debug)]
pub struct AdminNotice {
    /// The sentence.
    pub text: String,
    /// Whether it is about an error.
    pub is_error: bool,
}

/// Declares an administration page with the fields that all of them have.
macro_rules! admin_page {
    ($(#[$doc:meta])* $name:ident, $path:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Template)]
        #[template(path = $path)]
        pub struct $name<'a> {
            /// The frame of all pages.
            pub frame: PageFrame<'a>,
            /// The signed-in user.
            pub user: Option<AdminUser>,
            /// The notice at the top.
            pub notice: Option<AdminNotice>,
            /// Commands that do the same.
            pub commands: Vec<String>,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name<'_> {
            /// The page as HTML.
            #[must_use]
            pub fn html(&self) -> String {
                html(self)
            }
        }
    };
}

admin_page! {
    /// The page with the sign-in forms.
    SignInPage, "admin_sign_in.html" {
        /// The identity of a failed attempt.
        identity: String,
        /// The session to authenticate.
        session: String,
        /// Its nonce, as base64.
        nonce: String,
    }
}

admin_page! {
    /// The page with the search form and its results.
    ListPage, "admin_list.html" {
        /// The prefix, or the start of handles, to search for.
        prefix: String,
        /// The same, percent-encoded.
        prefix_encoded: String,
        /// The number of results, as a text; `None` without a search.
        count: Option<String>,
        /// The results on this page.
        handles: Vec<ListedHandle>,
        /// The number of the previous page.
        previous: Option<usize>,
        /// The number of the next page.
        next: Option<usize>,
    }
}

/// A handle in a list.
#[derive(Clone, Debug)]
pub struct ListedHandle {
    /// The name, as it is displayed.
    pub text: String,
    /// The name, percent-encoded for a query.
    pub encoded: String,
}

admin_page! {
    /// The form with the values of a record.
    EditPage, "admin_record.html" {
        /// The token of forms.
        csrf: String,
        /// Whether the record is to be created.
        is_new: bool,
        /// The name.
        handle: String,
        /// The name, as it is displayed.
        shown_handle: String,
        /// The name, percent-encoded for a path.
        encoded: String,
        /// The values.
        rows: Vec<ValueRow>,
    }
}

/// One value in the form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueRow {
    /// Its heading.
    pub title: String,
    /// The index of the stored value; empty for a new one.
    pub stored_index: String,
    /// The index.
    pub index: String,
    /// The type.
    pub kind: String,
    /// Whether the data is JSON.
    pub is_json: bool,
    /// The data.
    pub data: String,
    /// The TTL: seconds, or a time.
    pub ttl: String,
    /// The permissions, as four digits.
    pub permissions: String,
    /// Lines of the field for the data.
    pub lines: usize,
}

admin_page! {
    /// The form for an upload, and its result.
    UploadPage, "admin_upload.html" {
        /// The token of forms.
        csrf: String,
        /// Maximum number of records of a request.
        records_max: usize,
        /// The pasted text.
        text: String,
        /// The result as CSV; empty before an upload.
        results: String,
        /// The numbers of successful and failed records, as a text.
        summary: String,
    }
}
