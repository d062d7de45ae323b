//! The template language: parsed from XML, and kept to be applied.

use crate::limit::{CompileBudget, XML_DEPTH_MAX};
use crate::pattern::{HandlePattern, InvalidPattern};
use crate::text::{EXTENSION, Parameter, ScopedParameter, ScopedText, TemplateScope, TemplateText};
use roxmltree::Node;
use std::sync::Arc;

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
    /// The name is bound to the next position in the scope.
    Define(Vec<TemplateStep>),
    NotFound,
}

/// A value to be made. Inside `foreach` it takes missing parts from the current value.
#[derive(Clone, Debug)]
pub(crate) struct NewValue {
    pub(crate) index: Option<ScopedText>,
    pub(crate) kind: Option<ScopedText>,
    pub(crate) data: Option<ScopedText>,
}

/// The condition of an `if`.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// The parameter that is tested; `None` if its name is not in scope. If the condition is not
    /// negated, its match is bound to the next position in the scope of the content.
    pub(crate) value: Option<ScopedParameter>,
    pub(crate) test: StepTest,
    pub(crate) negated: bool,
}

/// A condition before its names are resolved, which may be done again for `else`.
#[derive(Clone, Debug)]
struct UnscopedCondition {
    value: Parameter,
    test: StepTest,
    negated: bool,
    /// The name that the match is bound to in the content.
    bound: String,
}

#[derive(Clone, Debug)]
pub(crate) enum StepTest {
    Equals(String),
    Matches(Arc<HandlePattern>),
    /// The pattern is invalid; testing this condition is an error.
    Invalid(InvalidPattern),
}

/// The names that `foreach` binds, in the order of their positions.
const VALUE_NAMES: [&str; 3] = ["index", "type", "data"];

/// Parses elements of templates.
pub(crate) struct TemplateReader<'b> {
    /// Whether patterns ignore case.
    folds: bool,
    /// Invalid patterns.
    pub(crate) invalid: Vec<InvalidPattern>,
    budget: &'b mut CompileBudget,
    scope: TemplateScope,
}

/// The elements are nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

impl<'b> TemplateReader<'b> {
    /// A reader for one text. Patterns ignore case if the service `folds`.
    pub(crate) fn new(folds: bool, budget: &'b mut CompileBudget) -> Self {
        Self { folds, invalid: Vec::new(), budget, scope: TemplateScope::new() }
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

    /// Parses the content of an element. The names that it binds go out of scope at its end.
    fn steps(
        &mut self,
        parent: Node<'_, '_>,
        in_foreach: bool,
        depth: usize,
    ) -> Result<Vec<TemplateStep>, TooDeep> {
        if depth > XML_DEPTH_MAX {
            return Err(TooDeep);
        }
        let outside = self.scope.len();
        let mut steps = Vec::new();
        // The condition of the last `if`, for its `else`; `None` if it had none.
        let mut condition: Option<UnscopedCondition> = None;
        for element in parent.children().filter(Node::is_element) {
            match element.tag_name().name() {
                "value" => steps.push(TemplateStep::Value(self.new_value(element))),
                "notfound" => steps.push(TemplateStep::NotFound),
                "foreach" if !in_foreach => steps.push(self.for_each(element, depth)?),
                "def" => {
                    steps.push(TemplateStep::Define(self.steps(element, in_foreach, depth + 1)?));
                    self.scope.bind(element.attribute("parameter").unwrap_or_default());
                }
                "if" => {
                    condition = self.condition(element);
                    if let Some(condition) = condition.clone() {
                        steps.push(self.choice(condition, element, in_foreach, depth)?);
                    }
                }
                "else" => {
                    if let Some(condition) = condition.clone() {
                        let turned = UnscopedCondition { negated: !condition.negated, ..condition };
                        steps.push(self.choice(turned, element, in_foreach, depth)?);
                    }
                }
                _ => {}
            }
        }
        self.scope.truncate(outside);
        Ok(steps)
    }

    fn for_each(&mut self, element: Node<'_, '_>, depth: usize) -> Result<TemplateStep, TooDeep> {
        let outside = self.scope.len();
        VALUE_NAMES.into_iter().for_each(|name| self.scope.bind(name));
        let steps = self.steps(element, true, depth + 1);
        self.scope.truncate(outside);
        Ok(TemplateStep::ForEach(steps?))
    }

    /// `if` or `else`: the content is applied depending on a condition.
    fn choice(
        &mut self,
        condition: UnscopedCondition,
        element: Node<'_, '_>,
        in_foreach: bool,
        depth: usize,
    ) -> Result<TemplateStep, TooDeep> {
        let UnscopedCondition { value, test, negated, bound } = condition;
        let condition = Condition { value: self.scope.resolve(&value), test, negated };
        let outside = self.scope.len();
        if !negated {
            self.scope.bind(&bound);
        }
        let steps = self.steps(element, in_foreach, depth + 1);
        self.scope.truncate(outside);
        Ok(TemplateStep::If(condition, steps?))
    }

    /// Parses a condition. `None` without an expression, or with an unknown test: the element is
    /// then skipped.
    fn condition(&mut self, element: Node<'_, '_>) -> Option<UnscopedCondition> {
        let value = Parameter::parse(element.attribute("value").unwrap_or(EXTENSION));
        let expression = element.attribute("expression")?;
        let test = match element.attribute("test").unwrap_or("equals") {
            "equals" => StepTest::Equals(expression.to_owned()),
            "matches" => match HandlePattern::new(expression, self.folds, self.budget) {
                Ok(pattern) => StepTest::Matches(Arc::new(pattern)),
                Err(invalid) => {
                    self.invalid.push(invalid.clone());
                    StepTest::Invalid(invalid)
                }
            },
            _ => return None,
        };
        let bound = element.attribute("parameter").unwrap_or(&value.name).to_owned();
        let negated = element.attribute("negate").is_some_and(|negate| negate.eq_ignore_ascii_case("true"));
        Some(UnscopedCondition { value, test, negated, bound })
    }

    fn new_value(&self, element: Node<'_, '_>) -> NewValue {
        let parse = |text: &str| self.scope.resolve_text(TemplateText::parse(text));
        let attribute = |name| element.attribute(name).map(parse);
        let content = || {
            let text: String =
                element.children().filter(Node::is_text).filter_map(|node| node.text()).collect();
            (!text.trim().is_empty()).then(|| parse(&text))
        };
        NewValue {
            index: attribute("index"),
            kind: attribute("type"),
            data: attribute("data").or_else(content),
        }
    }
}
