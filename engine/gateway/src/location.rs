//! 10320/loc: the locations of a record, and the choice of one of them.
//!
//! - [`LocationDocument`] is the XML of one value, read within [limits](XML_LEN_MAX).
//! - [`LocationSet`] has the candidates of a record: the locations of its 10320/loc values, those
//!   that it inherits, and its URL values.
//! - [`LocationSet::choose`] applies the methods that `chooseby` names to these candidates.
//!
//! Nothing here judges whether a target is safe; [`redirect`](crate::redirect) does.

mod choose;
mod document;
#[cfg(test)]
mod tests;

pub use choose::LocationCriteria;
pub use document::{
    LOCATIONS_MAX, LocationDocument, LocationError, XML_DEPTH_MAX, XML_LEN_MAX, XML_NODES_MAX,
};

use handle_client::reference;
use handle_proto::data::kind;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value, fold};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use std::borrow::Cow;
use std::fmt::Write as _;

/// Most 10320/loc values of one record that are read.
pub const DOCUMENTS_MAX: usize = 16;
/// Most records from which a record inherits locations, that of its prefix included.
pub const RECORDS_MAX: usize = 8;

/// Everything that is not unreserved in RFC 3986.
const NOT_UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Everything that is not unreserved, except for slashes.
const NOT_IN_PATHS: &AsciiSet = &NOT_UNRESERVED.remove(b'/');

/// The names and values of an XML element's attributes, in the order of the document.
type Attributes = Vec<(String, String)>;

fn attribute<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Whether an attribute that switches something on is set.
fn is_set(attributes: &Attributes, name: &str) -> bool {
    let is_true =
        |value: &str| value == "1" || ["true", "yes"].iter().any(|yes| value.eq_ignore_ascii_case(yes));
    attribute(attributes, name).is_some_and(|value| is_true(value.trim()))
}

/// Where a location stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationOrigin {
    /// In a 10320/loc value of the record.
    Record,
    /// In another record, as that of the prefix.
    Inherited,
    /// It is a URL value of the record.
    UrlValue,
}

/// One location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    attributes: Attributes,
    /// The time to live of its value.
    pub ttl: Ttl,
    /// Where it stands.
    pub origin: LocationOrigin,
}

impl Location {
    /// The value of an attribute. Names are case-sensitive.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        attribute(&self.attributes, name)
    }

    /// The target: `href`, or else `href_template` with the handle filled in. It may be any text.
    #[must_use]
    pub fn target(&self, handle: Handle<'_>) -> Option<Cow<'_, str>> {
        if let Some(href) = self.attribute("href") {
            return Some(Cow::Borrowed(href));
        }
        self.attribute("href_template").map(|template| Cow::Owned(expand(template, handle)))
    }

    /// The HTTP status of a redirect to this location; 302 unless `http_sc` names another one.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.attribute("http_sc").map(str::trim) {
            Some("301") => 301,
            Some("303") => 303,
            Some("307") => 307,
            Some("308") => 308,
            _ => 302,
        }
    }

    /// Whether it is the target of clients that prefer a machine-readable type.
    #[must_use]
    pub fn is_for_machines(&self) -> bool {
        self.attribute("http_role") == Some("conneg")
    }

    fn has_target(&self) -> bool {
        self.attribute("href").is_some() || self.attribute("href_template").is_some()
    }
}

/// Fills the handle into a template: `{hdl}` with its slash encoded, `{hdl:path}` as a path.
fn expand(template: &str, handle: Handle<'_>) -> String {
    let (mut filled, mut rest) = (String::with_capacity(template.len() + handle.0.len()), template);
    while let Some(at) = rest.find("{hdl") {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{hdl}") {
            filled.extend(percent_encode(handle.0, NOT_UNRESERVED));
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{hdl:path}") {
            filled.push_str(&handle_url(handle, ""));
            rest = after;
        } else {
            filled.push('{');
            rest = &rest[1..];
        }
    }
    filled.push_str(rest);
    filled
}

/// The URL of a handle at `proxy`, which ends with a slash. Bytes that are not UTF-8 are
/// percent-encoded as they are.
#[must_use]
pub fn handle_url(handle: Handle<'_>, proxy: &str) -> String {
    match str::from_utf8(handle.0) {
        Ok(text) => reference::url(text, proxy),
        Err(_) => {
            format!("{proxy}{}", percent_encode(handle.0, NOT_IN_PATHS))
        }
    }
}

/// The prefix that `overridePrefix` names, with or without `0.NA/`.
fn overriding_prefix(document: &Attributes) -> Option<&str> {
    let name = attribute(document, "overridePrefix")?.trim();
    let is_record = fold::starts_with(name.as_bytes(), PREFIX_RECORDS);
    let prefix = if is_record { name.get(PREFIX_RECORDS.len()..)? } else { name };
    Some(prefix).filter(|prefix| !prefix.is_empty() && !prefix.contains('/'))
}

/// The candidates of a record.
#[derive(Clone, Debug, Default)]
pub struct LocationSet {
    /// Attributes of the `locations` elements, those of the record itself first.
    documents: Vec<Attributes>,
    /// Number of documents in the record itself.
    own_count: usize,
    /// The locations of all documents.
    locations: Vec<Location>,
    /// The URL values.
    urls: Vec<Location>,
    invalid: Vec<(i32, LocationError)>,
}

/// Whether this is a value with locations.
pub(crate) fn is_document(value: &Value<'_>) -> bool {
    fold::eq(value.kind, kind::LOCATIONS) && value.is_public()
}

/// Whether this is a URL to which a proxy redirects.
pub(crate) fn is_url(value: &Value<'_>) -> bool {
    value.is_a(kind::URL) && value.is_public()
}

impl LocationSet {
    /// The candidates among the public values of a record, in the order of the record.
    #[must_use]
    pub fn of_record<'v>(values: impl IntoIterator<Item = Value<'v>>) -> Self {
        let mut set = Self::default();
        for value in values {
            if is_document(&value) {
                set.read(&value, LocationOrigin::Record);
            } else if is_url(&value) {
                let attributes = vec![("href".to_owned(), url_text(value.data))];
                set.urls.push(Location { attributes, ttl: value.ttl, origin: LocationOrigin::UrlValue });
            }
        }
        set.own_count = set.documents.len();
        set.weigh_urls();
        set
    }

    /// Reads the document of a value. One that is invalid does not count.
    fn read(&mut self, value: &Value<'_>, origin: LocationOrigin) {
        if self.documents.len() + self.invalid.len() >= DOCUMENTS_MAX * (1 + RECORDS_MAX) {
            return;
        }
        match LocationDocument::parse(value.data) {
            Ok(document) => {
                self.documents.push(document.attributes);
                let location = |attributes| Location { attributes, ttl: value.ttl, origin };
                self.locations.extend(document.locations.into_iter().map(location));
            }
            Err(error) => self.invalid.push((value.index, error)),
        }
    }

    /// Gives each URL value its weight: `urlWeight`, or 1 for the first one of a record without
    /// locations and 0 for the others.
    fn weigh_urls(&mut self) {
        let own = &self.documents[..self.own_count];
        let weight = own.iter().find_map(|document| attribute(document, "urlWeight"));
        for (at, url) in self.urls.iter_mut().enumerate() {
            let default = if at == 0 && own.is_empty() { "1" } else { "0" };
            url.attributes.push(("weight".to_owned(), weight.unwrap_or(default).to_owned()));
            url.attributes.push(("mode".to_owned(), "legacy".to_owned()));
        }
    }

    /// The `locations` elements of the record itself.
    fn own(&self) -> impl Iterator<Item = &Attributes> {
        self.documents[..self.own_count].iter()
    }

    /// The indexes of 10320/loc values that are invalid, and why. They do not count.
    #[must_use]
    pub fn invalid(&self) -> &[(i32, LocationError)] {
        &self.invalid
    }

    /// The records from which the record of `handle` inherits locations: that of its prefix, and
    /// those that the attributes `include` and `includeNamespace` name. The caller resolves them
    /// and passes their values to [`inherit`](Self::inherit), in this order.
    ///
    /// `nshdl` names another record in place of that of the prefix, and `overridePrefix` another
    /// prefix. If there are both, `overridePrefix` counts, as with deployed proxies. With
    /// `no_nslocs`, there is none of them.
    #[must_use]
    pub fn further_records(&self, handle: Handle<'_>) -> Vec<Vec<u8>> {
        let mut records: Vec<Vec<u8>> = vec![];
        let mut add = |name: Vec<u8>| {
            let is_known = records.iter().any(|known| fold::eq(known, &name)) || fold::eq(&name, handle.0);
            if !name.is_empty() && !is_known && records.len() < RECORDS_MAX {
                records.push(name);
            }
        };
        if !self.own().any(|document| is_set(document, "no_nslocs")) {
            let named = self.own().find_map(|document| attribute(document, "nshdl"));
            let prefixes: Vec<&str> = self.own().filter_map(overriding_prefix).collect();
            match named {
                _ if !prefixes.is_empty() => {
                    prefixes.iter().for_each(|prefix| add([PREFIX_RECORDS, prefix.as_bytes()].concat()));
                }
                Some(name) => add(name.trim().as_bytes().to_vec()),
                None => add(handle.prefix_record()),
            }
        }
        for document in self.own() {
            for name in ["include", "includeNamespace"] {
                attribute(document, name).into_iter().for_each(|name| add(name.trim().as_bytes().to_vec()));
            }
        }
        records
    }

    /// Adds the locations of another record. Its URL values and inclusions do not count.
    pub fn inherit<'v>(&mut self, values: impl IntoIterator<Item = Value<'v>>) {
        let documents = values.into_iter().filter(is_document).take(DOCUMENTS_MAX);
        documents.for_each(|value| self.read(&value, LocationOrigin::Inherited));
    }

    /// All locations, in the order in which they are considered.
    pub fn candidates(&self) -> impl Iterator<Item = &Location> {
        let has_urls = !self.own().any(|document| is_set(document, "no_legacy"));
        self.locations.iter().chain(self.urls.iter().filter(move |_| has_urls))
    }

    /// Whether the choice may be another one for another header `Accept`.
    #[must_use]
    pub fn depends_on_accept(&self) -> bool {
        self.candidates().any(Location::is_for_machines)
            || self.methods().any(|method| matches!(method, "ctype" | "media-type"))
    }

    /// Whether the choice depends on the address of the client.
    #[must_use]
    pub fn depends_on_address(&self) -> bool {
        let names_clients = |name| self.candidates().any(|location| location.attribute(name).is_some());
        let mut methods = self.methods();
        methods.any(|method| match method {
            "address" => names_clients("addresses"),
            "country" => names_clients("country"),
            _ => false,
        })
    }

    /// The methods of the choice: those of the first document that names some.
    fn methods(&self) -> impl Iterator<Item = &str> {
        let named = self.documents.iter().find_map(|document| {
            attribute(document, "chooseby").or_else(|| attribute(document, "choose_by"))
        });
        named.unwrap_or(choose::METHODS_DEFAULT).split(',').map(str::trim)
    }

    /// The candidates as XML, with their attributes unchanged.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut xml = "<locations>\n".to_owned();
        for location in self.candidates() {
            xml.push_str("<location");
            for (name, value) in &location.attributes {
                let _ = write!(xml, " {name}=\"{}\"", XmlText(value));
            }
            xml.push_str(" />\n");
        }
        xml.push_str("</locations>\n");
        xml
    }
}

/// The text of a URL value. Bytes that are not UTF-8 are percent-encoded.
fn url_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(percent_encode(chunk.invalid(), NON_ALPHANUMERIC));
    }
    text
}

/// Text as the value of an XML attribute. Characters that XML does not have are percent-encoded,
/// because URLs are what is expected here.
struct XmlText<'a>(&'a str);

impl std::fmt::Display for XmlText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\t' | '\n' | '\r' => write!(f, "&#{};", u32::from(c))?,
                '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => {
                    write!(f, "{}", utf8_percent_encode(c.encode_utf8(&mut [0; 4]), NON_ALPHANUMERIC))?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
