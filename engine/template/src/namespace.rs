//! HS_NAMESPACE: the templates in its XML.

use crate::language::{Template, TemplateReader, TooDeep};
use crate::limit::{CompileBudget, XML_LEN_MAX, XML_NODES_MAX, XML_TOTAL_LEN_MAX, has_few_attributes};
use crate::pattern::InvalidPattern;
use handle_proto::data::kind::HS_NAMESPACE;
use handle_proto::{Value, fold};
use roxmltree::{Document, Node, ParsingOptions};
use std::fmt;

/// A parsed namespace with compiled patterns.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(crate) templates: Vec<Template>,
    /// Whether there is a `template` element, even an invalid one.
    pub(crate) has_templates: bool,
    pub(crate) delimiter: Option<String>,
    invalid: Vec<InvalidPattern>,
}

/// The parsed templates that a reference names.
#[derive(Clone, Debug, Default)]
pub struct ReferencedTemplates(pub(crate) Vec<Template>);

/// Why a text is not a valid namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceError {
    /// It has more bytes than [`XML_LEN_MAX`].
    TooLong(usize),
    /// It is not UTF-8.
    NotUtf8,
    /// It is not XML, has a document type, or more than [`XML_NODES_MAX`] nodes.
    NotXml(String),
    /// An element has more than [`XML_ATTRIBUTES_MAX`](crate::limit::XML_ATTRIBUTES_MAX)
    /// attributes.
    TooManyAttributes,
    /// Its elements are nested too deep.
    TooDeep,
    /// With the texts before it, it has more bytes than [`XML_TOTAL_LEN_MAX`].
    TooLongTogether,
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(len) => {
                write!(f, "the namespace has {len} bytes; at most {XML_LEN_MAX} are allowed")
            }
            Self::NotUtf8 => f.write_str("the namespace is not UTF-8"),
            Self::NotXml(why) => write!(f, "the namespace is not XML: {why}"),
            Self::TooManyAttributes => f.write_str("an element of the namespace has too many attributes"),
            Self::TooDeep => f.write_str("elements of the namespace are nested too deep"),
            Self::TooLongTogether => {
                write!(f, "the namespaces of an answer have more than {XML_TOTAL_LEN_MAX} bytes")
            }
        }
    }
}

impl std::error::Error for NamespaceError {}

impl From<TooDeep> for NamespaceError {
    fn from(TooDeep: TooDeep) -> Self {
        Self::TooDeep
    }
}

/// Calls `read` with the root element. A document type is refused, so that no entity expands.
pub(crate) fn with_root<T>(
    xml: &[u8],
    read: impl FnOnce(Node<'_, '_>) -> Result<T, NamespaceError>,
) -> Result<T, NamespaceError> {
    if xml.len() > XML_LEN_MAX {
        return Err(NamespaceError::TooLong(xml.len()));
    }
    let text = std::str::from_utf8(xml).map_err(|_| NamespaceError::NotUtf8)?;
    if !has_few_attributes(text) {
        return Err(NamespaceError::TooManyAttributes);
    }
    let options =
        ParsingOptions { allow_dtd: false, nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| NamespaceError::NotXml(error.to_string()))?;
    read(document.root_element())
}

fn is_template(node: &Node<'_, '_>) -> bool {
    node.is_element() && node.tag_name().name() == "template"
}

impl Namespace {
    /// Parses a namespace. Its patterns ignore case if the service `folds`.
    ///
    /// # Errors
    /// When the text is invalid, or exceeds the limits of [`limit`](crate::limit).
    pub fn parse(xml: &[u8], folds: bool) -> Result<Self, NamespaceError> {
        Self::parse_within(xml, folds, &mut CompileBudget::default())
    }

    /// Like [`parse`](Self::parse), within what is left for an answer.
    fn parse_within(xml: &[u8], folds: bool, budget: &mut CompileBudget) -> Result<Self, NamespaceError> {
        if !budget.take_xml(xml.len()) {
            return Err(NamespaceError::TooLongTogether);
        }
        with_root(xml, |root| {
            let mut reader = TemplateReader::new(folds, budget);
            let mut first = root.children().filter(is_template);
            let first = first.next();
            let mut templates = Vec::new();
            for element in root.children().filter(is_template) {
                templates.extend(reader.template(element)?);
            }
            Ok(Self {
                templates,
                has_templates: first.is_some(),
                delimiter: first.and_then(|element| element.attribute("delimiter")).map(str::to_owned),
                invalid: reader.invalid,
            })
        })
    }

    /// The namespace of a record: the valid one with the lowest index, if it is found within
    /// `budget`.
    #[must_use]
    pub fn of_record<'v>(
        values: impl Iterator<Item = Value<'v>>,
        folds: bool,
        budget: &mut CompileBudget,
    ) -> Option<Self> {
        let mut values: Vec<_> = values.filter(|value| fold::eq(value.kind, HS_NAMESPACE)).collect();
        values.sort_by_key(|value| value.index);
        values.iter().find_map(|value| Self::parse_within(value.data, folds, budget).ok())
    }

    /// The delimiter between base and extension, if the first template has one.
    #[must_use]
    pub fn delimiter(&self) -> Option<&str> {
        self.delimiter.as_deref()
    }

    /// Whether there are templates.
    #[must_use]
    pub const fn has_templates(&self) -> bool {
        self.has_templates
    }

    /// The invalid patterns. An answer that needs one of them is an error.
    #[must_use]
    pub fn invalid_patterns(&self) -> &[InvalidPattern] {
        &self.invalid
    }
}

impl ReferencedTemplates {
    /// Parses a `template` element, or an element that contains some, within what is left for an
    /// answer. Any other element has no templates.
    ///
    /// # Errors
    /// As of [`Namespace::parse`].
    pub fn parse(xml: &[u8], folds: bool, budget: &mut CompileBudget) -> Result<Self, NamespaceError> {
        if !budget.take_xml(xml.len()) {
            return Err(NamespaceError::TooLongTogether);
        }
        with_root(xml, |root| {
            let mut reader = TemplateReader::new(folds, budget);
            let mut templates = Vec::new();
            if is_template(&root) {
                templates.extend(reader.template(root)?);
            } else {
                for element in root.children().filter(is_template) {
                    templates.extend(reader.template(element)?);
                }
            }
            Ok(Self(templates))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{XML_ATTRIBUTES_MAX, XML_DEPTH_MAX};

    fn parse(xml: &str) -> Result<Namespace, NamespaceError> {
        Namespace::parse(xml.as_bytes(), true)
    }

    #[test]
    fn the_first_template_has_the_delimiter() {
        let namespace =
            parse("<ns><contact>a@b</contact><template delimiter='@'/><template delimiter='#'/></ns>");
        assert_eq!(namespace.unwrap().delimiter(), Some("@"));
        assert_eq!(parse("<ns><template/><template delimiter='#'/></ns>").unwrap().delimiter(), None);
        assert!(!parse("<ns/>").unwrap().has_templates());
        assert!(parse("<ns><template ref='nonsense'/></ns>").unwrap().has_templates());
    }

    #[test]
    fn entities_and_invalid_xml_are_refused() {
        for xml in [
            "",
            "text",
            "<ns>",
            "<ns/><ns/>",
            "<!DOCTYPE ns [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><ns>&b;</ns>",
            "<!DOCTYPE ns SYSTEM 'file:///etc/passwd'><ns/>",
            "<ns>&undefined;</ns>",
        ] {
            assert!(matches!(parse(xml), Err(NamespaceError::NotXml(_))), "{xml}");
        }
        assert_eq!(Namespace::parse(b"<ns>\xff</ns>", true).unwrap_err(), NamespaceError::NotUtf8);
    }

    #[test]
    fn limits_hold_at_their_edges() {
        let padded = |len: usize| format!("<ns>{}</ns>", " ".repeat(len - 9));
        assert!(parse(&padded(XML_LEN_MAX)).is_ok());
        assert_eq!(parse(&padded(XML_LEN_MAX + 1)).unwrap_err(), NamespaceError::TooLong(XML_LEN_MAX + 1));
        let deep = |depth: usize| {
            format!("<ns><template>{}{}</template></ns>", "<def>".repeat(depth), "</def>".repeat(depth))
        };
        assert!(parse(&deep(XML_DEPTH_MAX)).is_ok());
        assert_eq!(parse(&deep(XML_DEPTH_MAX + 1)).unwrap_err(), NamespaceError::TooDeep);
        // The root of the document counts as a node.
        let many = |count: u32| format!("<ns>{}</ns>", "<a/>".repeat(count as usize));
        assert!(parse(&many(XML_NODES_MAX - 2)).is_ok());
        let attributes = |count: usize| {
            let attributes: String = (0..count).map(|number| format!(" a{number}=''")).collect();
            format!("<namespace><template{attributes}/></namespace>")
        };
        assert_ne!(parse(&attributes(XML_ATTRIBUTES_MAX)).err(), Some(NamespaceError::TooManyAttributes));
        let error = parse(&attributes(XML_ATTRIBUTES_MAX + 1)).unwrap_err();
        assert_eq!(error, NamespaceError::TooManyAttributes);
        assert!(matches!(parse(&many(XML_NODES_MAX - 1)), Err(NamespaceError::NotXml(_))));
        // Deeper than any stack: parsed without recursion, and refused at the latest for its
        // length.
        assert!(parse(&deep(3000)).is_err());
    }

    #[test]
    fn invalid_patterns_are_reported() {
        let namespace =
            parse(r"<ns><template><if test='matches' expression='(a)\1'><notfound/></if></template></ns>")
                .unwrap();
        assert_eq!(namespace.invalid_patterns().len(), 1);
        assert!(namespace.invalid_patterns()[0].to_string().contains(r"(a)\1"));
    }

    #[test]
    fn the_valid_namespace_with_the_lowest_index_counts() {
        let namespace = |delimiter: &str| format!("<ns><template delimiter='{delimiter}'/></ns>");
        let (first, second) = (namespace("@"), namespace("#"));
        let values = [
            Value::new(7, b"HS_NAMESPACE", second.as_bytes()),
            Value::new(3, b"hs_namespace", first.as_bytes()),
            Value::new(1, b"HS_NAMESPACE", b""),
            Value::new(2, b"HS_NAMESPACE", b"<broken"),
            Value::new(0, b"URL", second.as_bytes()),
        ];
        let budget = &mut CompileBudget::default();
        assert_eq!(Namespace::of_record(values.into_iter(), true, budget).unwrap().delimiter(), Some("@"));
        assert!(Namespace::of_record(values.into_iter().skip(2), true, budget).is_none());
        let padded = format!("<broken{}", " ".repeat(XML_LEN_MAX - 7));
        let many = (0..9).map(|index| Value::new(index, b"HS_NAMESPACE", padded.as_bytes()));
        let last = Value::new(9, b"HS_NAMESPACE", first.as_bytes());
        assert!(Namespace::of_record(many.chain([last]), true, &mut CompileBudget::default()).is_none());
    }
}
