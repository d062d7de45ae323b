//! The query of a request to the proxy.

use crate::selection::ValueSelection;
use handle_client::reference::HandleReference;
use handle_proto::Value;
use percent_encoding::percent_decode;

/// Most parameters of a query that are read.
const PARAMETERS_MAX: usize = 256;

/// What the parameter `action` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyAction {
    /// All locations.
    ShowLocations,
    /// The page with the record.
    ShowValues,
    /// The record as JSON.
    ShowJson,
    /// A redirect, even if another parameter asks for the record. Unknown actions mean this too.
    Redirect,
}

/// The parameters of a request to the proxy.
///
/// Names are case-sensitive, and unknown parameters do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyParameters {
    /// Show the record; `noredirect` with any value.
    pub no_redirect: bool,
    /// Treat an alias as any other value; `ignore_aliases` with any value.
    pub ignore_aliases: bool,
    /// Ask a primary site, without caches.
    pub authoritative: bool,
    /// Require an answer that is signed by the server.
    pub certified: bool,
    /// The requested values. What would make it too long does not count.
    pub selection: ValueSelection,
    /// Bytes to append to the URL of the redirect.
    pub urlappend: Option<Vec<u8>>,
    /// Name and value of an attribute that the location should have.
    pub locatt: Option<(String, String)>,
    /// What to do.
    pub action: Option<ProxyAction>,
    /// Answer a redirect with status 200, so that scripts can read its headers.
    pub redirection_headers: bool,
}

impl ProxyParameters {
    /// Parses a query, or the fields of a form. It never fails: what is not valid does not count.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()).take(PARAMETERS_MAX) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parameters.set(&String::from_utf8_lossy(&decoded(name)), decoded(value));
        }
        parameters
    }

    /// Adds the options that a reference in the request has itself.
    pub fn add(&mut self, reference: &HandleReference) {
        for index in reference.indexes.iter().filter_map(|index| i32::try_from(*index).ok()) {
            let _ = self.selection.add_index(index);
        }
        for kind in &reference.types {
            let _ = self.selection.add_type(kind.as_bytes());
        }
        for (name, value) in &reference.options {
            self.set(name, value.as_bytes().to_vec());
        }
    }

    fn set(&mut self, name: &str, value: Vec<u8>) {
        let text = || String::from_utf8_lossy(&value);
        match name {
            "noredirect" => self.no_redirect = true,
            "ignore_aliases" => self.ignore_aliases = true,
            "auth" => self.authoritative = is_true(&text()),
            "cert" => self.certified = is_true(&text()),
            "index" => {
                let _ = text().trim().parse().map(|index| self.selection.add_index(index));
            }
            "type" => {
                let _ = self.selection.add_type(&value);
            }
            "urlappend" => {
                self.urlappend.get_or_insert(value);
            }
            "locatt" if self.locatt.is_none() => {
                let pair = text().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
                self.locatt = pair.filter(|(name, value)| !name.is_empty() && !value.is_empty());
            }
            "action" => self.action = Some(action(&text())),
            "redirectionHeaders" => self.redirection_headers = true,
            _ => {}
        }
    }

    /// Whether a value is requested: by its index or by its type, or because nothing is selected.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        self.selection.selects(value)
    }

    /// Whether an alias is followed. A selection by type asks for the values of the record itself.
    #[must_use]
    pub const fn follows_aliases(&self) -> bool {
        !self.ignore_aliases && !self.selection.has_types()
    }

    /// Whether the record is shown instead of a redirect.
    #[must_use]
    pub const fn shows_record(&self) -> bool {
        self.no_redirect && self.action.is_none()
    }

    /// The status of a redirect that would have `status`.
    pub(super) const fn status(&self, status: u16) -> u16 {
        if self.redirection_headers { 200 } else { status }
    }
}

fn action(name: &str) -> ProxyAction {
    match name {
        "showurls" => ProxyAction::ShowLocations,
        "showvalues" => ProxyAction::ShowValues,
        "api" => ProxyAction::ShowJson,
        _ => ProxyAction::Redirect,
    }
}

/// Whether a parameter that is present switches something on.
fn is_true(value: &str) -> bool {
    ["", "true", "yes", "on", "1"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

/// Decodes a name or value of a query, in which a plus sign is a blank.
fn decoded(text: &str) -> Vec<u8> {
    let text: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    percent_decode(&text).collect()
}
