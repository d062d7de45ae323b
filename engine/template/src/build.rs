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
//!
//! Whoever writes a namespace also decides how much work an anonymous request causes. So everything
//! whose number or length a template decides takes steps or bytes of a budget, and everything else
//! takes constant time: names are resolved when a template is compiled, texts of the base are made
//! once, and the next free index is found without searching.

use crate::chain::Parts;
use crate::language::{Condition, NewValue, StepTest, Template, TemplateStep};
use crate::limit::{
    BUILT_LEN_MAX, COMPARED_STEP_LEN, CompileBudget, MATCHED_LEN_MAX, REFERENCE_STEPS, REFERENCES_MAX,
    STEPS_MAX, VALUES_MAX, XML_TOTAL_LEN_MAX,
};
use crate::namespace::ReferencedTemplates;
use crate::pattern::InvalidPattern;
use crate::text::{GLOBALS, ScopedParameter, ScopedPiece, ScopedText};
use handle_proto::Value;
use handle_proto::data::kind;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// The templates that references name.
pub trait Templates {
    /// The templates in the value at `index` of `handle`; `None` if there is no such value.
    ///
    /// A value that holds no templates counts as having an empty list of them. The templates are
    /// parsed within `budget`.
    fn at(&self, handle: &[u8], index: i32, budget: &mut CompileBudget) -> Option<ReferencedTemplates>;
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
    /// The templates that are referred to have more than [`XML_TOTAL_LEN_MAX`] bytes.
    TooMuchXml,
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
            Self::TooMuchXml => write!(f, "the templates have more than {XML_TOTAL_LEN_MAX} bytes"),
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
    /// An index at or after which the next free one is, for each index in use.
    next_indexes: HashMap<i64, i64>,
}

impl Values {
    /// Adds a value at the next free index.
    fn push(&mut self, value: &Value<'_>) -> Result<(), BuildError> {
        if self.count == VALUES_MAX {
            return Err(BuildError::TooManyValues);
        }
        let index = self.take_index(value.index).ok_or(BuildError::TooManyValues)?;
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
        self.count += 1;
        Ok(())
    }

    /// Takes the first free index from `wanted` on. What is learnt about indexes in use is kept, so
    /// that a run of them is passed once, not once for each value.
    fn take_index(&mut self, wanted: i32) -> Option<i32> {
        let (mut free, mut passed) = (i64::from(wanted), Vec::new());
        while let Some(&next) = self.next_indexes.get(&free) {
            passed.push(free);
            free = next;
        }
        let taken = i32::try_from(free).ok()?;
        passed.push(free);
        self.next_indexes.extend(passed.into_iter().map(|index| (index, free + 1)));
        Some(taken)
    }

    /// Bytes without the data that is not public.
    const fn public_len(&self) -> usize {
        self.bytes.len() - self.private_len
    }
}

/// Where values go.
enum ValueSink<'s> {
    /// To the answer.
    Answer(&'s mut Values),
    /// To `def`, which needs the data of the first one.
    First(&'s mut Option<Vec<u8>>),
}

impl ValueSink<'_> {
    fn push(&mut self, value: &Value<'_>) -> Result<(), BuildError> {
        match self {
            Self::Answer(values) => return values.push(value),
            Self::First(first) => drop(first.get_or_insert_with(|| value.data.to_vec())),
        }
        Ok(())
    }
}

/// The value of a name, with the groups of the pattern that it matched.
#[derive(Clone)]
struct BoundVariable {
    text: Rc<str>,
    /// The positions of the groups in the text.
    groups: Option<Rc<[Range<usize>]>>,
    /// Whether the text comes from data that is not public.
    is_private: bool,
}

impl BoundVariable {
    fn new(text: &str) -> Self {
        Self { text: text.into(), groups: None, is_private: false }
    }

    /// A variable for data of a value.
    fn of_data(data: &[u8], is_private: bool) -> Self {
        Self { is_private, ..Self::new(&String::from_utf8_lossy(data)) }
    }

    fn get(&self, group: Option<usize>) -> &str {
        match (group, &self.groups) {
            (None, _) | (Some(0), None) => &self.text,
            (Some(_), None) => "",
            (Some(group), Some(groups)) => groups.get(group).map_or("", |range| &self.text[range.clone()]),
        }
    }
}

/// A value of the base, with the variables that `foreach` makes of it.
struct BaseValue<'b> {
    value: Value<'b>,
    variables: Option<[BoundVariable; 3]>,
}

impl BaseValue<'_> {
    fn variables(&mut self) -> [BoundVariable; 3] {
        let Value { index, kind, data, .. } = self.value;
        let is_private = !self.value.is_public();
        let make = || {
            [
                BoundVariable::new(&index.to_string()),
                BoundVariable::of_data(kind, false),
                BoundVariable::of_data(data, is_private),
            ]
        };
        self.variables.get_or_insert_with(make).clone()
    }
}

/// One application of templates to a handle.
struct TemplateBuilder<'b> {
    base: Vec<BaseValue<'b>>,
    templates: &'b dyn Templates,
    /// The templates that references named before.
    referenced: HashMap<(i32, String), Option<Rc<ReferencedTemplates>>>,
    budget: &'b mut CompileBudget,
    /// The current value of `foreach`.
    original: Option<Value<'b>>,
    /// Whether the content of a `def` is being applied.
    in_define: bool,
    /// The variables in scope, each at the position to which its name was resolved.
    scope: Vec<BoundVariable>,
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
    budget: &mut CompileBudget,
) -> Result<BuildOutcome, BuildError> {
    let visible = base.iter().filter(|value| is_visible(value));
    let globals = [parts.handle, parts.base, parts.extension];
    const { assert!(GLOBALS.len() == 3, "the variables in their places") };
    let mut builder = TemplateBuilder {
        base: visible.map(|&value| BaseValue { value, variables: None }).collect(),
        templates: referenced,
        referenced: HashMap::new(),
        budget,
        original: None,
        in_define: false,
        scope: globals.map(|bytes| BoundVariable::of_data(bytes, false)).into(),
        steps_left: STEPS_MAX,
        matched_left: MATCHED_LEN_MAX,
        expanded_left: BUILT_LEN_MAX,
        private_left: BUILT_LEN_MAX,
    };
    let mut values = Values::default();
    match builder.apply(templates, 0, &mut ValueSink::Answer(&mut values)) {
        Ok(()) => Ok(BuildOutcome::Values { bytes: values.bytes, count: values.count }),
        Err(BuildEnd::NotFound) => Ok(BuildOutcome::NotFound),
        Err(BuildEnd::Error(error)) => Err(error),
    }
}

impl TemplateBuilder<'_> {
    fn apply(
        &mut self,
        templates: &[Template],
        references: usize,
        out: &mut ValueSink<'_>,
    ) -> Result<(), BuildEnd> {
        for template in templates {
            self.steps(1)?;
            match template {
                Template::Inline(steps) => self.run(steps, out)?,
                Template::Reference(..) if references == REFERENCES_MAX => {
                    return Err(BuildError::TooManyReferences.into());
                }
                Template::Reference(index, handle) => {
                    let referenced = self.fetch(*index, handle)?.ok_or(BuildEnd::NotFound)?;
                    self.apply(&referenced.0, references + 1, out)?;
                }
            }
        }
        Ok(())
    }

    /// The templates that a reference names. They are looked up and parsed once.
    fn fetch(&mut self, index: i32, handle: &str) -> Result<Option<Rc<ReferencedTemplates>>, BuildError> {
        let key = (index, handle.to_owned());
        if let Some(referenced) = self.referenced.get(&key) {
            return Ok(referenced.clone());
        }
        self.steps(REFERENCE_STEPS)?;
        let referenced = self.templates.at(handle.as_bytes(), index, self.budget).map(Rc::new);
        if self.budget.is_exceeded() {
            return Err(BuildError::TooMuchXml);
        }
        self.referenced.insert(key, referenced.clone());
        Ok(referenced)
    }

    /// Runs steps. Names that they bind go out of scope at their end.
    fn run(&mut self, steps: &[TemplateStep], out: &mut ValueSink<'_>) -> Result<(), BuildEnd> {
        let outside = self.scope.len();
        for step in steps {
            self.steps(1)?;
            match step {
                TemplateStep::Value(value) => self.value(value, out)?,
                TemplateStep::ForEach(steps) => self.for_each(steps, out)?,
                TemplateStep::If(condition, steps) => self.choose(condition, steps, out)?,
                TemplateStep::Define(steps) => self.define(steps)?,
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

    fn steps(&mut self, count: usize) -> Result<(), BuildError> {
        self.steps_left = self.steps_left.checked_sub(count).ok_or(BuildError::TooManySteps)?;
        Ok(())
    }

    fn value(&mut self, value: &NewValue, out: &mut ValueSink<'_>) -> Result<(), BuildEnd> {
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

    fn for_each(&mut self, steps: &[TemplateStep], out: &mut ValueSink<'_>) -> Result<(), BuildEnd> {
        for at in 0..self.base.len() {
            let value = self.base[at].value;
            let is_private = !value.is_public();
            self.steps(1)?;
            if is_private && self.in_define {
                continue;
            }
            let outside = self.scope.len();
            self.take_expanded(value.kind.len() + if is_private { 0 } else { value.data.len() })?;
            self.scope.extend(self.base[at].variables());
            self.original = Some(value);
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
        out: &mut ValueSink<'_>,
    ) -> Result<(), BuildEnd> {
        let text = self.text_of(condition.value)?;
        let (is_met, groups) = match &condition.test {
            StepTest::Equals(expected) => {
                if text.len() == expected.len() {
                    self.steps(text.len() / COMPARED_STEP_LEN)?;
                }
                (*text == *expected.as_str(), None)
            }
            StepTest::Matches(pattern) => {
                let left = self.matched_left.checked_sub(pattern.cost(text.len()));
                self.matched_left = left.ok_or(BuildError::TooMuchMatched)?;
                let groups = pattern.groups(&text).map(Rc::from);
                (groups.is_some(), groups)
            }
            StepTest::Invalid(invalid) => return Err(BuildError::Pattern(invalid.clone()).into()),
        };
        if is_met == condition.negated {
            return Ok(());
        }
        let outside = self.scope.len();
        if is_met {
            // Text that is not public has been tested as the empty text.
            self.scope.push(BoundVariable { text, groups, is_private: false });
        }
        self.run(steps, out)?;
        self.scope.truncate(outside);
        Ok(())
    }

    /// Sets the parameter to the data of the first value that the steps make; leaves it empty if
    /// they make none.
    fn define(&mut self, steps: &[TemplateStep]) -> Result<(), BuildEnd> {
        let mut first = None;
        let outside = std::mem::replace(&mut self.in_define, true);
        let ran = self.run(steps, &mut ValueSink::First(&mut first));
        self.in_define = outside;
        ran?;
        let (data, is_private) = (first.unwrap_or_default(), self.is_private());
        if !is_private {
            self.take_expanded(data.len())?;
        }
        self.scope.push(BoundVariable::of_data(&data, is_private));
        Ok(())
    }

    /// The text that a condition tests.
    fn text_of(&mut self, parameter: Option<ScopedParameter>) -> Result<Rc<str>, BuildError> {
        let found = parameter.map(|parameter| (&self.scope[parameter.slot], parameter.group));
        let text: Rc<str> = match found.filter(|(bound, _)| !bound.is_private) {
            Some((bound, None)) => return Ok(Rc::clone(&bound.text)),
            Some((bound, group)) => bound.get(group).into(),
            None => "".into(),
        };
        self.steps(text.len() / COMPARED_STEP_LEN)?;
        Ok(text)
    }

    /// Expands a text. Data that is not public is left out unless the text `shows_private` data.
    fn expand(&mut self, text: &ScopedText, shows_private: bool) -> Result<String, BuildError> {
        let mut out = String::new();
        self.steps(text.pieces().len())?;
        for piece in text.pieces() {
            let (piece, is_private) = match piece {
                ScopedPiece::Literal(literal) => (literal.as_str(), false),
                ScopedPiece::Parameter(parameter) => {
                    let bound = &self.scope[parameter.slot];
                    (bound.get(parameter.group), bound.is_private)
                }
            };
            if !is_private {
                let left = self.expanded_left.checked_sub(piece.len());
                self.expanded_left = left.ok_or(BuildError::TooLong)?;
            } else if shows_private && piece.len() <= self.private_left {
                self.private_left -= piece.len();
            } else {
                continue;
            }
            out.push_str(piece);
        }
        Ok(out)
    }

    fn take_expanded(&mut self, len: usize) -> Result<(), BuildError> {
        self.expanded_left = self.expanded_left.checked_sub(len).ok_or(BuildError::TooLong)?;
        Ok(())
    }
}
