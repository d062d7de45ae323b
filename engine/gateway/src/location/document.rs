//! The XML of one 10320/loc value.

use super::Attributes;
use handle_template::limit::has_few_attributes;
use roxmltree::{Document, Node, ParsingOptions};
use std::fmt;

/// Most bytes of a document.
pub const XML_LEN_MAX: usize = 64 << 10;
/// Most nodes of a document, without attributes.
pub const XML_NODES_MAX: u32 = 4096;
/// Deepest nesting of its elements.
pub const XML_DEPTH_MAX: usize = 8;
/// Most locations of a document.
pub const LOCATIONS_MAX: usize = 256;

/// The locations of one value, and the attributes of the element around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationDocument {
    pub(super) attributes: Attributes,
    pub(super) locations: Vec<Attributes>,
}

/// Why data are not valid locations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocationError {
    /// They have more bytes than [`XML_LEN_MAX`].
    TooLong(usize),
    /// They are not UTF-8.
    NotUtf8,
    /// They are not XML, have a document type, or more than [`XML_NODES_MAX`] nodes.
    NotXml(String),
    /// An element has more attributes than
    /// [`XML_ATTRIBUTES_MAX`](handle_template::limit::XML_ATTRIBUTES_MAX).
    TooManyAttributes,
    /// The root element has another name than `locations`.
    NotLocations(String),
    /// Elements are nested deeper than [`XML_DEPTH_MAX`].
    TooDeep,
    /// There are more locations than [`LOCATIONS_MAX`].
    TooMany(usize),
}

impl fmt::Display for LocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(len) => {
                write!(f, "the locations have {len} bytes; at most {XML_LEN_MAX} are allowed")
            }
            Self::NotUtf8 => f.write_str("the locations are not UTF-8"),
            Self::NotXml(why) => write!(f, "the locations are not XML: {why}"),
            Self::TooManyAttributes => f.write_str("an element has too many attributes"),
            Self::NotLocations(name) => write!(f, "the root element is {name}, not locations"),
            Self::TooDeep => write!(f, "elements are nested deeper than {XML_DEPTH_MAX}"),
            Self::TooMany(count) => write!(f, "{count} locations; at most {LOCATIONS_MAX} are allowed"),
        }
    }
}

impl std::error::Error for LocationError {}

impl LocationDocument {
    /// Parses the data of a value. A document type is refused, so that no entity expands; unknown
    /// elements are ignored.
    ///
    /// # Errors
    /// When the data are not a `locations` element, or exceed the limits of this module.
    pub fn parse(xml: &[u8]) -> Result<Self, LocationError> {
        if xml.len() > XML_LEN_MAX {
            return Err(LocationError::TooLong(xml.len()));
        }
        let text = str::from_utf8(xml).map_err(|_| LocationError::NotUtf8)?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if !has_few_attributes(text) {
            return Err(LocationError::TooManyAttributes);
        }
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options)
            .map_err(|error| LocationError::NotXml(error.to_string()))?;
        let root = document.root_element();
        if root.tag_name().name() != "locations" {
            return Err(LocationError::NotLocations(root.tag_name().name().to_owned()));
        }
        // Counts the node itself and the document above the root.
        if document.descendants().any(|node| node.ancestors().nth(XML_DEPTH_MAX + 1).is_some()) {
            return Err(LocationError::TooDeep);
        }
        let is_location = |node: &Node<'_, '_>| node.is_element() && node.tag_name().name() == "location";
        let count = root.children().filter(is_location).count();
        if count > LOCATIONS_MAX {
            return Err(LocationError::TooMany(count));
        }
        Ok(Self {
            attributes: attributes_of(root),
            locations: root.children().filter(is_location).map(attributes_of).collect(),
        })
    }
}

/// The attributes of an element. Those of other namespaces, as `xml:id`, do not count.
fn attributes_of(element: Node<'_, '_>) -> Attributes {
    let attributes = element.attributes().filter(|attribute| attribute.namespace().is_none());
    attributes.map(|attribute| (attribute.name().to_owned(), attribute.value().to_owned())).collect()
}
