//! Bounds of all that a namespace can make us do.

use handle_proto::limit;

/// Most bytes of the XML of a namespace or of referenced templates.
pub const XML_LEN_MAX: usize = 64 << 10;
/// Most nodes in it, attributes aside.
pub const XML_NODES_MAX: u32 = 4096;
/// How deep its elements may stand in each other.
pub const XML_DEPTH_MAX: usize = 32;
/// Bytes of a compiled pattern.
pub const PATTERN_LEN_MAX: usize = 256 << 10;
/// Bytes of all compiled patterns of one namespace, or of the templates that one reference names: compiling
/// them is work that each request may ask for.
pub const PATTERNS_LEN_MAX: usize = 2 * PATTERN_LEN_MAX;
/// How deep groups may stand in each other in a pattern.
pub const PATTERN_DEPTH_MAX: u32 = 32;
/// Most references to templates that are followed from one to the next, as deployed.
pub const REFERENCES_MAX: usize = limit::TEMPLATE_NESTING_MAX;
/// Most steps of templates that one answer takes.
pub const STEPS_MAX: usize = 100_000;
/// Most bytes that patterns of one answer are matched against, each byte counted once for every
/// [`MATCHED_UNIT_LEN`] bytes of its compiled pattern: the time of a match grows with both lengths.
pub const MATCHED_LEN_MAX: usize = 128 << 10;
/// Bytes of a compiled pattern that count as one.
pub const MATCHED_UNIT_LEN: usize = 4 << 10;
/// Most values of an answer, as clients read.
pub const VALUES_MAX: usize = limit::VALUES_COUNT_MAX;
/// Most bytes of an answer, and of all texts on the way to it.
pub const BUILT_LEN_MAX: usize = 1 << 20;
