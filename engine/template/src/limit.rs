//! Limits of the work that a namespace can cause.

use handle_proto::limit;

/// Most bytes of the XML of a namespace or of referenced templates.
pub const XML_LEN_MAX: usize = 64 << 10;
/// Most bytes of XML that are parsed for one answer: the namespace of the base, and the templates
/// that references name, each once.
pub const XML_TOTAL_LEN_MAX: usize = 4 * XML_LEN_MAX;
/// Most nodes of the XML, without attributes.
pub const XML_NODES_MAX: u32 = 4096;
/// Deepest nesting of its elements.
pub const XML_DEPTH_MAX: usize = 32;
/// Most bytes of a compiled pattern.
pub const PATTERN_LEN_MAX: usize = 256 << 10;
/// Most bytes that are compiled of all patterns of one namespace, or of all for one answer. Each
/// attempt to compile a pattern counts, with the size up to which it goes, so that a pattern counts
/// about twice, and one that is refused as well. This is enough for one pattern of the greatest
/// size with four classes beyond ASCII.
pub const PATTERNS_LEN_MAX: usize = 3 * PATTERN_LEN_MAX;
/// Deepest nesting of groups in a pattern.
pub const PATTERN_DEPTH_MAX: u32 = 32;
/// Longest chain of references to templates, as in deployed servers.
pub const REFERENCES_MAX: usize = limit::TEMPLATE_NESTING_MAX;
/// Most steps of templates that one answer takes: elements applied, pieces of text expanded, and
/// [`COMPARED_STEP_LEN`] bytes compared. A step takes about a tenth of a microsecond.
pub const STEPS_MAX: usize = 100_000;
/// Steps for which a reference counts, because its record is searched for the value.
pub const REFERENCE_STEPS: usize = 250;
/// Bytes that are compared or copied in one step.
pub const COMPARED_STEP_LEN: usize = 64;
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

/// What may still be parsed and compiled for one answer.
#[derive(Debug)]
pub struct CompileBudget {
    xml_left: usize,
    patterns_left: usize,
    is_exceeded: bool,
}

impl Default for CompileBudget {
    fn default() -> Self {
        Self { xml_left: XML_TOTAL_LEN_MAX, patterns_left: PATTERNS_LEN_MAX, is_exceeded: false }
    }
}

impl CompileBudget {
    /// Takes the bytes of a text; false if it has too many.
    pub(crate) fn take_xml(&mut self, len: usize) -> bool {
        self.is_exceeded |= len > self.xml_left;
        self.xml_left = self.xml_left.saturating_sub(len);
        !self.is_exceeded
    }

    /// Whether a text was too long for what was left.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// Most bytes of the next compiled pattern.
    pub(crate) const fn patterns_left(&self) -> usize {
        self.patterns_left
    }

    /// Takes bytes of a compiled pattern.
    pub(crate) const fn take_pattern(&mut self, len: usize) {
        self.patterns_left = self.patterns_left.saturating_sub(len);
    }
}

/// Most equals signs between one `<` and the next, and so most attributes of an element: parsers
/// compare each attribute with those before it.
pub const XML_ATTRIBUTES_MAX: usize = 256;

/// Whether no element of `xml` can have more than [`XML_ATTRIBUTES_MAX`] attributes.
#[must_use]
pub fn has_few_attributes(xml: &str) -> bool {
    xml.split('<').all(|element| element.matches('=').count() <= XML_ATTRIBUTES_MAX)
}
