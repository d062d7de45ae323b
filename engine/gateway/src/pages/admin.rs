//! The administration pages: sign in, records, one record, upload.

use super::{PageFrame, html};
use askama::Template;

/// Who is signed in.
#[derive(Clone, Debug)]
pub struct AdminUser {
    /// The identity, as text.
    pub identity: String,
    /// What forms repeat, so that only pages from here can send them.
    pub csrf: String,
}

/// A sentence at the top of a page.
#[derive(Clone, Debug)]
pub struct AdminNotice {
    /// The sentence.
    pub text: String,
    /// Whether it is about an error.
    pub is_error: bool,
}

/// What all administration pages have.
macro_rules! admin_page {
    ($(#[$doc:meta])* $name:ident, $path:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Template)]
        #[template(path = $path)]
        pub struct $name<'a> {
            /// What all pages have.
            pub frame: PageFrame<'a>,
            /// Who is signed in.
            pub user: Option<AdminUser>,
            /// What happened.
            pub notice: Option<AdminNotice>,
            /// The same on the command line.
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
    /// The page with the forms for signing in.
    SignInPage, "admin_sign_in.html" {
        /// The identity that was tried.
        identity: String,
        /// The session to authenticate.
        session: String,
        /// Its nonce, as base64.
        nonce: String,
    }
}

admin_page! {
    /// The page with the form for a search, and what was found.
    ListPage, "admin_list.html" {
        /// What is searched for.
        prefix: String,
        /// The same for a query.
        prefix_encoded: String,
        /// How many there are; `None` without a search.
        count: Option<String>,
        /// Those of this page.
        handles: Vec<ListedHandle>,
        /// The number of the page before.
        previous: Option<usize>,
        /// The number of the page after.
        next: Option<usize>,
    }
}

/// A handle in a list.
#[derive(Clone, Debug)]
pub struct ListedHandle {
    /// Its name for people.
    pub text: String,
    /// Its name for a query.
    pub encoded: String,
}

admin_page! {
    /// The form with the values of a record.
    EditPage, "admin_record.html" {
        /// What forms repeat.
        csrf: String,
        /// Whether the record is to be created.
        is_new: bool,
        /// The name, as it is.
        handle: String,
        /// The name for people.
        shown_handle: String,
        /// The name for a path.
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
    pub was: String,
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
        /// What forms repeat.
        csrf: String,
        /// What was pasted.
        text: String,
        /// The result as CSV; empty without one.
        results: String,
        /// How many were done and failed.
        summary: String,
    }
}
