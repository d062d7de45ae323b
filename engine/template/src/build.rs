//! Applies templates: values in, values out.

use crate::chain::Parts;
use crate::language::{Condition, NewValue, StepTest, Template, TemplateStep};
use crate::limit::{BUILT_LEN_MAX, MATCHED_LEN_MAX, REFERENCES_MAX, STEPS_MAX, VALUES_MAX};
use crate::namespace::ReferencedTemplates;
use crate::pattern::InvalidPattern;
use crate::text::{EXTENSION, Parameter, TemplateText, TextPiece};
use handle_proto::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

/// The templates that references name.
pub trait Templates {
    /// The templates in the value at `index` of `handle`; `None` if there is no such value.
    ///
    /// A value that holds no templates counts as having an empty list of them.
    fn at(&self, handle: &[u8], index: i32) -> Option<ReferencedTemplates>;
}

/// The result of applying templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildOutcome {
    /// Values in wire form, in the order in which they were made.
    Values {
        /// The encoded values, one after the other.
        bytes: Vec<u8>,
        /// Number of values.
        count: usize,
    },
    /// The templates say that the handle does not exist.
    NotFound,
}

impl BuildOutcome {
    /// The values of the base, unchanged.
    pub(crate) fn copy(base: &[Value<'_>]) -> Result<Self, BuildError> {
        let mut values = Values::default();
        base.iter().try_for_each(|value| values.push(value))?;
        Ok(Self::Values { bytes: values.bytes, count: values.count })
    }
}

/// Why templates cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A pattern is invalid.
    Pattern(InvalidPattern),
    /// There are more values than [`VALUES_MAX`], or no index is left.
    TooManyValues,
    /// Values and texts have more bytes than [`BUILT_LEN_MAX`].
    TooLong,
    /// The templates take more steps than [`STEPS_MAX`].
    TooManySteps,
    /// Matching the patterns would cost more than [`MATCHED_LEN_MAX`].
    TooMuchMatched,
    /// A chain of references is longer than [`REFERENCES_MAX`].
    TooManyReferences,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(invalid) => fmt::Display::fmt(invalid, f),
            Self::TooManyValues => write!(f, "the templates make more than {VALUES_MAX} values"),
            Self::TooLong => write!(f, "the templates make more than {BUILT_LEN_MAX} bytes"),
            Self::TooManySteps => write!(f, "the templates take more than {STEPS_MAX} steps"),
            Self::TooMuchMatched => {
                write!(f, "matching the patterns of the templates costs more than {MATCHED_LEN_MAX} bytes")
            }
            Self::TooManyReferences => {
                write!(f, "a chain of references between templates is longer than {REFERENCES_MAX}")
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// Why building ends early.
enum BuildEnd {
    NotFound,
    Error(BuildError),
}

impl From<BuildError> for BuildEnd {
    fn from(error: BuildError) -> Self {
        Self::Error(error)
    }
}

/// The values made so far.
#[derive(Default)]
struct Values {
    bytes: Vec<u8>,
    count: usize,
    indexes: HashSet<i32>,
}

impl Values {
    /// Adds a value at the next free index.
    fn push(&mut self, value: &Value<'_>) -> Result<(), BuildError> {
        if self.count == VALUES_MAX {
            return Err(BuildError::TooManyValues);
        }
        let mut index = value.index;
        while self.indexes.contains(&index) {
            index = index.checked_add(1).ok_or(BuildError::TooManyValues)?;
        }
        if self.bytes.len() + value.encoded_len() > BUILT_LEN_MAX {
            return Err(BuildError::TooLong);
        }
        Value { index, ..*value }.encode(&mut self.bytes);
        self.indexes.insert(index);
        self.count += 1;
        Ok(())
    }
}

/// The value of a name, with the groups of the pattern that it matched.
#[derive(Clone)]
struct BoundVariable {
    text: Rc<str>,
    groups: Rc<[String]>,
}

impl BoundVariable {
    fn new(text: &str) -> Self {
        Self { text: text.into(), groups: Rc::new([]) }
    }

    fn get(&self, group: Option<usize>) -> &str {
        match group {
            None => &self.text,
            Some(0) if self.groups.is_empty() => &self.text,
            Some(group) => self.groups.get(group).map_or("", String::as_str),
        }
    }
}

/// One application of templates to a handle.
struct TemplateBuilder<'b> {
    base: &'b [Value<'b>],
    templates: &'b dyn Templates,
    /// The current value of `foreach`.
    original: Option<Value<'b>>,
    /// The names in scope, the innermost last.
    scope: Vec<(Rc<str>, BoundVariable)>,
    steps_left: usize,
    matched_left: usize,
    expanded_left: usize,
}

/// Applies `templates` to a handle whose base has the values `base`.
pub(crate) fn build(
    templates: &[Template],
    parts: &Parts<'_>,
    base: &[Value<'_>],
    referenced: &dyn Templates,
) -> Result<BuildOutcome, BuildError> {
    let mut builder = TemplateBuilder {
        base,
        templates: referenced,
        original: None,
        scope: Vec::new(),
        steps_left: STEPS_MAX,
        matched_left: MATCHED_LEN_MAX,
        expanded_left: BUILT_LEN_MAX,
    };
    for (name, bytes) in [("handle", parts.handle), ("base", parts.base), (EXTENSION, parts.extension)] {
        builder.bind(name, BoundVariable::new(&String::from_utf8_lossy(bytes)));
    }
    let mut values = Values::default();
    match builder.apply(templates, 0, &mut values) {
        Ok(()) => Ok(BuildOutcome::Values { bytes: values.bytes, count: values.count }),
        Err(BuildEnd::NotFound) => Ok(BuildOutcome::NotFound),
        Err(BuildEnd::Error(error)) => Err(error),
    }
}

impl TemplateBuilder<'_> {
    fn apply(&mut self, templates: &[Template], references: usize, out: &mut Values) -> Result<(), BuildEnd> {
        for template in templates {
            self.step()?;
            match template {
                Template::Inline(steps) => self.run(steps, out)?,
                Template::Reference(..) if references == REFERENCES_MAX => {
                    return Err(BuildError::TooManyReferences.into());
                }
                Template::Reference(index, handle) => {
                    let referenced =
                        self.templates.at(handle.as_bytes(), *index).ok_or(BuildEnd::NotFound)?;
                    self.apply(&referenced.0, references + 1, out)?;
                }
            }
        }
        Ok(())
    }

    /// Runs steps. Names that they bind go out of scope at their end.
    fn run(&mut self, steps: &[TemplateStep], out: &mut Values) -> Result<(), BuildEnd> {
        let outside = self.scope.len();
        for step in steps {
            self.step()?;
            match step {
                TemplateStep::Value(value) => self.value(value, out)?,
                TemplateStep::ForEach(steps) => self.for_each(steps, out)?,
                TemplateStep::If(condition, steps) => self.choose(condition, steps, out)?,
                TemplateStep::Define(name, steps) => self.define(name, steps)?,
                TemplateStep::NotFound => return Err(BuildEnd::NotFound),
            }
        }
        self.scope.truncate(outside);
        Ok(())
    }

    fn step(&mut self) -> Result<(), BuildError> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(BuildError::TooManySteps)?;
        Ok(())
    }

    fn bind(&mut self, name: &str, bound: BoundVariable) {
        self.scope.push((name.into(), bound));
    }

    fn value(&mut self, value: &NewValue, out: &mut Values) -> Result<(), BuildEnd> {
        let kind = value.kind.as_ref().map(|text| self.expand(text)).transpose()?;
        let data = value.data.as_ref().map(|text| self.expand(text)).transpose()?;
        if let Some(original) = self.original {
            let index = value.index.as_ref().map(|text| self.expand(text)).transpose()?;
            let value = Value {
                index: index.and_then(|index| index.trim().parse().ok()).unwrap_or(original.index),
                kind: kind.as_ref().map_or(original.kind, String::as_bytes),
                data: data.as_ref().map_or(original.data, String::as_bytes),
                ..original
            };
            out.push(&value)?;
        } else if let (Some(kind), Some(data)) = (kind, data) {
            // The requested index does not matter here. Shown by `by_index` of the vectors.
            out.push(&Value::new(1, kind.as_bytes(), data.as_bytes()))?;
        }
        Ok(())
    }

    fn for_each(&mut self, steps: &[TemplateStep], out: &mut Values) -> Result<(), BuildEnd> {
        for value in self.base {
            self.step()?;
            let outside = self.scope.len();
            self.take_expanded(value.kind.len() + value.data.len())?;
            self.bind("index", BoundVariable::new(&value.index.to_string()));
            self.bind("type", BoundVariable::new(&String::from_utf8_lossy(value.kind)));
            self.bind("data", BoundVariable::new(&String::from_utf8_lossy(value.data)));
            self.original = Some(*value);
            let ran = self.run(steps, out);
            self.original = None;
            self.scope.truncate(outside);
            ran?;
        }
        Ok(())
    }

    fn choose(
        &mut self,
        condition: &Condition,
        steps: &[TemplateStep],
        out: &mut Values,
    ) -> Result<(), BuildEnd> {
        let text = self.text_of(&condition.value);
        let groups = match &condition.test {
            StepTest::Equals(expected) => (*text == *expected.as_str()).then(|| Rc::from([])),
            StepTest::Matches(pattern) => {
                let left = self.matched_left.checked_sub(pattern.cost(text.len()));
                self.matched_left = left.ok_or(BuildError::TooMuchMatched)?;
                pattern.groups(&text).map(Rc::from)
            }
            StepTest::Invalid(invalid) => return Err(BuildError::Pattern(invalid.clone()).into()),
        };
        if groups.is_some() == condition.negated {
            return Ok(());
        }
        let outside = self.scope.len();
        if let Some(groups) = groups {
            self.bind(&condition.bound, BoundVariable { text, groups });
        }
        self.run(steps, out)?;
        self.scope.truncate(outside);
        Ok(())
    }

    /// Sets the parameter to the data of the first value that the steps make; leaves it unset if
    /// they make none.
    fn define(&mut self, name: &str, steps: &[TemplateStep]) -> Result<(), BuildEnd> {
        let mut values = Values::default();
        self.run(steps, &mut values)?;
        self.take_expanded(values.bytes.len())?;
        let data = Value::split(&values.bytes).map_or(&[][..], |(value, _)| value.data);
        self.bind(name, BoundVariable::new(&String::from_utf8_lossy(data)));
        Ok(())
    }

    fn bound(&self, name: &str) -> Option<&BoundVariable> {
        self.scope.iter().rev().find(|(bound, _)| **bound == *name).map(|(_, bound)| bound)
    }

    fn text_of(&self, parameter: &Parameter) -> Rc<str> {
        match (self.bound(&parameter.name), parameter.group) {
            (Some(bound), None) => Rc::clone(&bound.text),
            (Some(bound), group) => bound.get(group).into(),
            (None, _) => "".into(),
        }
    }

    fn expand(&mut self, text: &TemplateText) -> Result<String, BuildError> {
        let mut out = String::new();
        for piece in text.pieces() {
            let piece: Cow<'_, str> = match piece {
                TextPiece::Literal(literal) => literal.as_str().into(),
                TextPiece::Parameter(parameter) => self
                    .bound(&parameter.name)
                    .map_or("", |bound| bound.get(parameter.group))
                    .to_owned()
                    .into(),
            };
            self.take_expanded(piece.len())?;
            out.push_str(&piece);
        }
        Ok(out)
    }

    fn take_expanded(&mut self, len: usize) -> Result<(), BuildError> {
        self.expanded_left = self.expanded_left.checked_sub(len).ok_or(BuildError::TooLong)?;
        Ok(())
    }
}
