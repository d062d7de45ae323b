//! Applies templates: values in, values out.
//!
//! Whoever may write a namespace need not be able to read the values that it is applied to, so the
//! rights of a value travel with its data:
//!
//! - HS_SECKEY values are not there at all.
//! - Data of a value that is not public flows only into the data of a value with the same
//!   permissions. Everywhere else (conditions, `type`, `index`, `def`) it is the empty text, and it
//!   does not count towards the limits of public texts, so that neither the public values, nor
//!   whether there is an answer, depend on it.
//! - `notfound` has no effect where the current value of `foreach` is not public, and `foreach`
//!   inside `def` visits public values only.

use crate::chain::Parts;
use crate::language::{Condition, NewValue, StepTest, Template, TemplateStep};
use crate::limit::{BUILT_LEN_MAX, MATCHED_LEN_MAX, REFERENCES_MAX, STEPS_MAX, VALUES_MAX};
use crate::namespace::ReferencedTemplates;
use crate::pattern::InvalidPattern;
use crate::text::{EXTENSION, Parameter, TemplateText, TextPiece};
use handle_proto::Value;
use handle_proto::data::kind;
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
        base.iter().filter(|value| is_visible(value)).try_for_each(|value| values.push(value))?;
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

/// Whether templates see `value` at all. No computed value shows a secret key.
fn is_visible(value: &Value<'_>) -> bool {
    !value.is_a(kind::HS_SECKEY)
}

/// The values made so far.
#[derive(Default)]
struct Values {
    bytes: Vec<u8>,
    count: usize,
    /// Bytes of data that is not public, which have a limit of their own.
    private_len: usize,
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
        let (is_public, mut value) = (value.is_public(), Value { index, ..*value });
        if !is_public && self.private_len + value.data.len() > BUILT_LEN_MAX {
            // Whether there is an answer must not depend on data that is not public.
            value.data = b"";
        }
        let private_len = if is_public { 0 } else { value.data.len() };
        if self.public_len() + value.encoded_len() - private_len > BUILT_LEN_MAX {
            return Err(BuildError::TooLong);
        }
        self.private_len += private_len;
        value.encode(&mut self.bytes);
        self.indexes.insert(index);
        self.count += 1;
        Ok(())
    }

    /// Bytes without the data that is not public.
    const fn public_len(&self) -> usize {
        self.bytes.len() - self.private_len
    }
}

/// The value of a name, with the groups of the pattern that it matched.
#[derive(Clone)]
struct BoundVariable {
    text: Rc<str>,
    groups: Rc<[String]>,
    /// Whether the text comes from data that is not public.
    is_private: bool,
}

impl BoundVariable {
    fn new(text: &str) -> Self {
        Self { text: text.into(), groups: Rc::new([]), is_private: false }
    }

    /// A variable for data of a value.
    fn of_data(data: &[u8], is_private: bool) -> Self {
        Self { is_private, ..Self::new(&String::from_utf8_lossy(data)) }
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
    /// Whether the content of a `def` is being applied.
    in_define: bool,
    /// The names in scope, the innermost last.
    scope: Vec<(Rc<str>, BoundVariable)>,
    steps_left: usize,
    matched_left: usize,
    expanded_left: usize,
    /// Bytes left for texts from data that is not public. Further ones are left out.
    private_left: usize,
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
        in_define: false,
        scope: Vec::new(),
        steps_left: STEPS_MAX,
        matched_left: MATCHED_LEN_MAX,
        expanded_left: BUILT_LEN_MAX,
        private_left: BUILT_LEN_MAX,
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
                TemplateStep::NotFound if self.is_private() => {}
                TemplateStep::NotFound => return Err(BuildEnd::NotFound),
            }
        }
        self.scope.truncate(outside);
        Ok(())
    }

    /// Whether the current value of `foreach` is not public.
    fn is_private(&self) -> bool {
        self.original.is_some_and(|value| !value.is_public())
    }

    fn step(&mut self) -> Result<(), BuildError> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(BuildError::TooManySteps)?;
        Ok(())
    }

    fn bind(&mut self, name: &str, bound: BoundVariable) {
        self.scope.push((name.into(), bound));
    }

    fn value(&mut self, value: &NewValue, out: &mut Values) -> Result<(), BuildEnd> {
        let kind = value.kind.as_ref().map(|text| self.expand(text, false)).transpose()?;
        let is_private = self.is_private();
        let data = value.data.as_ref().map(|text| self.expand(text, is_private)).transpose()?;
        if let Some(original) = self.original {
            let index = value.index.as_ref().map(|text| self.expand(text, false)).transpose()?;
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
        for value in self.base.iter().filter(|value| is_visible(value)) {
            let is_private = !value.is_public();
            if is_private && self.in_define {
                continue;
            }
            self.step()?;
            let outside = self.scope.len();
            self.take_expanded(value.kind.len() + if is_private { 0 } else { value.data.len() })?;
            self.bind("index", BoundVariable::new(&value.index.to_string()));
            self.bind("type", BoundVariable::of_data(value.kind, false));
            self.bind("data", BoundVariable::of_data(value.data, is_private));
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
            // Text that is not public has been tested as the empty text.
            self.bind(&condition.bound, BoundVariable { text, groups, is_private: false });
        }
        self.run(steps, out)?;
        self.scope.truncate(outside);
        Ok(())
    }

    /// Sets the parameter to the data of the first value that the steps make; leaves it unset if
    /// they make none.
    fn define(&mut self, name: &str, steps: &[TemplateStep]) -> Result<(), BuildEnd> {
        let mut values = Values::default();
        let outside = std::mem::replace(&mut self.in_define, true);
        let ran = self.run(steps, &mut values);
        self.in_define = outside;
        ran?;
        self.take_expanded(values.public_len())?;
        let data = Value::split(&values.bytes).map_or(&[][..], |(value, _)| value.data);
        self.bind(name, BoundVariable::of_data(data, self.is_private()));
        Ok(())
    }

    fn bound(&self, name: &str) -> Option<&BoundVariable> {
        self.scope.iter().rev().find(|(bound, _)| **bound == *name).map(|(_, bound)| bound)
    }

    /// The text that a condition tests.
    fn text_of(&self, parameter: &Parameter) -> Rc<str> {
        match (self.bound(&parameter.name).filter(|bound| !bound.is_private), parameter.group) {
            (Some(bound), None) => Rc::clone(&bound.text),
            (Some(bound), group) => bound.get(group).into(),
            (None, _) => "".into(),
        }
    }

    /// Expands a text. Data that is not public is left out unless the text `shows_private` data.
    fn expand(&mut self, text: &TemplateText, shows_private: bool) -> Result<String, BuildError> {
        let mut out = String::new();
        for piece in text.pieces() {
            let parameter = match piece {
                TextPiece::Literal(literal) => {
                    self.take_expanded(literal.len())?;
                    out.push_str(literal);
                    continue;
                }
                TextPiece::Parameter(parameter) => parameter,
            };
            let Some(bound) = self.bound(&parameter.name) else { continue };
            let (piece, is_private) = (bound.get(parameter.group).to_owned(), bound.is_private);
            if !is_private {
                self.take_expanded(piece.len())?;
            } else if shows_private && piece.len() <= self.private_left {
                self.private_left -= piece.len();
            } else {
                continue;
            }
            out.push_str(&piece);
        }
        Ok(out)
    }

    fn take_expanded(&mut self, len: usize) -> Result<(), BuildError> {
        self.expanded_left = self.expanded_left.checked_sub(len).ok_or(BuildError::TooLong)?;
        Ok(())
    }
}
