//! The language of a page.

use super::admin_messages::{self, AdminMessages};
use super::messages::{DE, EN, FR, Messages};
use super::registration_messages::{self, RegistrationMessages};

/// A language in which pages are written.
#[derive(Debug)]
pub struct Language {
    /// Its tag of BCP 47, as in the attribute `lang`.
    pub tag: &'static str,
    /// The direction of its writing, as in the attribute `dir`.
    pub direction: &'static str,
    /// Its texts.
    pub messages: Messages,
    /// Its texts for administrators.
    pub admin: AdminMessages,
    /// Its texts about registrations of prefixes.
    pub registration: RegistrationMessages,
}

/// All languages. The first one is for clients that accept none of the others.
///
/// A new language is a file with all texts in each of `messages`, `admin_messages` and
/// `registration_messages`, a line `mod` and a line `use` for it in each of the modules of these
/// names, and a row here. The compiler names every text that is missing, and the tests of the pages
/// those that lack a placeholder.
pub static LANGUAGES: [Language; 3] = [
    Language {
        tag: "en",
        direction: "ltr",
        messages: EN,
        admin: admin_messages::EN,
        registration: registration_messages::EN,
    },
    Language {
        tag: "de",
        direction: "ltr",
        messages: DE,
        admin: admin_messages::DE,
        registration: registration_messages::DE,
    },
    Language {
        tag: "fr",
        direction: "ltr",
        messages: FR,
        admin: admin_messages::FR,
        registration: registration_messages::FR,
    },
];

impl Language {
    /// The language of the first of these tags, in the order of preference, that has one.
    #[must_use]
    pub fn preferred(tags: impl IntoIterator<Item: AsRef<str>>) -> &'static Self {
        let language = tags.into_iter().find_map(|tag| {
            let primary = tag.as_ref().split('-').next().unwrap_or_default();
            LANGUAGES.iter().find(|language| language.tag.eq_ignore_ascii_case(primary))
        });
        language.unwrap_or(&LANGUAGES[0])
    }
}
