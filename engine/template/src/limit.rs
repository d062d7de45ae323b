//! Limits of the work that a namespace can cause.

use handle_proto::limit;

/// Most bytes of the XML of a namespace or of referenced templates.
pub const XML_LEN_MAX: usize = 64 << 10;
/// Most nodes of the XML, without attributes.
pub const XML_NODES_MAX: u32 = 4096;
/// Deepest nesting of its elements.
pub const XML_DEPTH_MAX: usize = 32;
/// Most bytes of a compiled pattern.
pub const PATTERN_LEN_MAX: usize = 256 << 10;
/// Most bytes of all compiled patterns of one namespace, or of the templates that one reference
/// names, because each request may cause them to be compiled.
pub const PATTERNS_LEN_MAX: usize = 2 * PATTERN_LEN_MAX;
/// Deepest nesting of groups in a pattern.
pub const PATTERN_DEPTH_MAX: u32 = 32;
/// Longest chain of references to templates, as in deployed servers.
pub const REFERENCES_MAX: usize = limit::TEMPLATE_NESTING_MAX;
/// Most steps of templates that one answer takes.
pub const STEPS_MAX: usize = 100_000;
/// Most bytes that the patterns of one answer are matched against. Each byte counts once for every
/// [`MATCHED_UNIT_LEN`] bytes of the compiled pattern, because the time of a match grows with both
/// lengths.
pub const MATCHED_LEN_MAX: usize = 128 << 10;
/// Bytes of a compiled pattern that count as one.
pub const MATCHED_UNIT_LEN: usize = 4 << 10;
/// Most values of an answer, as clients accept.
pub const VALUES_MAX: usize = limit::VALUES_COUNT_MAX;
/// Most bytes of an answer, and of all intermediate texts.
pub const BUILT_LEN_MAX: usize = 1 << 20;

/// Most equals signs between one `<` and the next, and so most attributes of an element: parsers
/// compare each attribute with those before it.
pub const XML_ATTRIBUTES_MAX: usize = 256;

/// Whether no element of `xml` can have more than [`XML_ATTRIBUTES_MAX`] attributes.
#[must_use]
pub fn has_few_attributes(xml: &str) -> bool {
    xml.split('<').all(|element| element.matches('=').count() <= XML_ATTRIBUTES_MAX)
}
