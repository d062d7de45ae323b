//! The template language: parsed from XML, and kept to be applied.

use crate::limit::{PATTERNS_LEN_MAX, XML_DEPTH_MAX};
use crate::pattern::{HandlePattern, InvalidPattern};
use crate::text::{EXTENSION, Parameter, TemplateText};
use roxmltree::Node;

/// A `template` element.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    Inline(Vec<TemplateStep>),
    /// A reference to a value with templates: index and handle.
    Reference(i32, String),
}

/// An element of a template.
#[derive(Clone, Debug)]
pub(crate) enum TemplateStep {
    Value(NewValue),
    /// Runs once for each value of the base.
    ForEach(Vec<TemplateStep>),
    /// `if`, or `else` with the negated condition of its `if`.
    If(Condition, Vec<TemplateStep>),
    Define(String, Vec<TemplateStep>),
    NotFound,
}

/// A value to be made. Inside `foreach` it takes missing parts from the current value.
#[derive(Clone, Debug)]
pub(crate) struct NewValue {
    pub(crate) index: Option<TemplateText>,
    pub(crate) kind: Option<TemplateText>,
    pub(crate) data: Option<TemplateText>,
}

/// The condition of an `if`.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// The parameter that is tested.
    pub(crate) value: Parameter,
    pub(crate) test: StepTest,
    pub(crate) negated: bool,
    /// The name that the match is bound to in the content.
    pub(crate) bound: String,
}

#[derive(Clone, Debug)]
pub(crate) enum StepTest {
    Equals(String),
    Matches(HandlePattern),
    /// The pattern is invalid; testing this condition is an error.
    Invalid(InvalidPattern),
}

/// Parses elements of templates.
pub(crate) struct TemplateReader {
    /// Whether patterns ignore case.
    folds: bool,
    /// Invalid patterns.
    pub(crate) invalid: Vec<InvalidPattern>,
    /// Bytes left for further compiled patterns.
    patterns_len_left: usize,
}

/// The elements are nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

impl TemplateReader {
    /// A reader for one text. Patterns ignore case if the service `folds`.
    pub(crate) const fn new(folds: bool) -> Self {
        Self { folds, invalid: Vec::new(), patterns_len_left: PATTERNS_LEN_MAX }
    }

    /// Parses a `template` element; `None` if its reference is invalid.
    pub(crate) fn template(&mut self, element: Node<'_, '_>) -> Result<Option<Template>, TooDeep> {
        let Some(reference) = element.attribute("ref") else {
            return Ok(Some(Template::Inline(self.steps(element, false, 0)?)));
        };
        let parts =
            reference.split_once(':').and_then(|(index, handle)| Some((index.trim().parse().ok()?, handle)));
        Ok(parts.map(|(index, handle)| Template::Reference(index, handle.to_owned())))
    }

    fn steps(
        &mut self,
        parent: Node<'_, '_>,
        in_foreach: bool,
        depth: usize,
    ) -> Result<Vec<TemplateStep>, TooDeep> {
        if depth > XML_DEPTH_MAX {
            return Err(TooDeep);
        }
        let mut steps = Vec::new();
        // The condition of the last `if`, for its `else`; `None` if it had none.
        let mut condition: Option<Condition> = None;
        for element in parent.children().filter(Node::is_element) {
            match element.tag_name().name() {
                "value" => steps.push(TemplateStep::Value(new_value(element))),
                "notfound" => steps.push(TemplateStep::NotFound),
                "foreach" if !in_foreach => {
                    steps.push(TemplateStep::ForEach(self.steps(element, true, depth + 1)?));
                }
                "def" => {
                    let name = element.attribute("parameter").unwrap_or_default().to_owned();
                    steps.push(TemplateStep::Define(name, self.steps(element, in_foreach, depth + 1)?));
                }
                "if" => {
                    condition = self.condition(element);
                    if let Some(condition) = condition.clone() {
                        steps.push(TemplateStep::If(condition, self.steps(element, in_foreach, depth + 1)?));
                    }
                }
                "else" => {
                    if let Some(condition) = condition.clone() {
                        let turned = Condition { negated: !condition.negated, ..condition };
                        steps.push(TemplateStep::If(turned, self.steps(element, in_foreach, depth + 1)?));
                    }
                }
                _ => {}
            }
        }
        Ok(steps)
    }

    /// Parses a condition. `None` without an expression, or with an unknown test: the element is
    /// then skipped.
    fn condition(&mut self, element: Node<'_, '_>) -> Option<Condition> {
        let value = Parameter::parse(element.attribute("value").unwrap_or(EXTENSION));
        let expression = element.attribute("expression")?;
        let test = match element.attribute("test").unwrap_or("equals") {
            "equals" => StepTest::Equals(expression.to_owned()),
            "matches" => match HandlePattern::new(expression, self.folds, self.patterns_len_left) {
                Ok(pattern) => {
                    self.patterns_len_left -= pattern.len();
                    StepTest::Matches(pattern)
                }
                Err(invalid) => {
                    self.invalid.push(invalid.clone());
                    StepTest::Invalid(invalid)
                }
            },
            _ => return None,
        };
        let bound = element.attribute("parameter").unwrap_or(&value.name).to_owned();
        let negated = element.attribute("negate").is_some_and(|negate| negate.eq_ignore_ascii_case("true"));
        Some(Condition { value, test, negated, bound })
    }
}

fn new_value(element: Node<'_, '_>) -> NewValue {
    let attribute = |name| element.attribute(name).map(TemplateText::parse);
    let content = || {
        let text: String = element.children().filter(Node::is_text).filter_map(|node| node.text()).collect();
        (!text.trim().is_empty()).then(|| TemplateText::parse(&text))
    };
    NewValue { index: attribute("index"), kind: attribute("type"), data: attribute("data").or_else(content) }
}
