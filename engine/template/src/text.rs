//! Text with parameters, and the names that these refer to.

use std::collections::HashMap;

/// Text with positions for parameters: `${name}`, `${name[n]}`, `${n}`, `$n`, `\c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateText(Vec<TextPiece>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextPiece {
    Literal(String),
    Parameter(Parameter),
}

/// A parameter, or a group of the pattern that it matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) group: Option<usize>,
}

/// A parameter whose name has been resolved: its position in the scope of the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopedParameter {
    pub(crate) slot: usize,
    pub(crate) group: Option<usize>,
}

/// A text whose names have been resolved.
#[derive(Clone, Debug)]
pub(crate) struct ScopedText(Vec<ScopedPiece>);

#[derive(Clone, Debug)]
pub(crate) enum ScopedPiece {
    Literal(String),
    Parameter(ScopedParameter),
}

impl ScopedText {
    pub(crate) fn pieces(&self) -> &[ScopedPiece] {
        &self.0
    }
}

/// The names in scope at one position of a template, the innermost last. Names are resolved once,
/// when the template is compiled, so that applying it never searches for one.
#[derive(Debug)]
pub(crate) struct TemplateScope {
    names: Vec<String>,
    /// The positions of each name.
    slots: HashMap<String, Vec<usize>>,
}

impl TemplateScope {
    /// A scope with the names that every template has.
    pub(crate) fn new() -> Self {
        let mut scope = Self { names: Vec::new(), slots: HashMap::new() };
        GLOBALS.into_iter().for_each(|name| scope.bind(name));
        scope
    }

    pub(crate) fn bind(&mut self, name: &str) {
        self.slots.entry(name.to_owned()).or_default().push(self.names.len());
        self.names.push(name.to_owned());
    }

    pub(crate) const fn len(&self) -> usize {
        self.names.len()
    }

    /// Ends the scope of all names but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        for name in self.names.drain(len..) {
            if let Some(slots) = self.slots.get_mut(&name) {
                slots.pop();
            }
        }
    }

    /// The position of a parameter; `None` if its name is not in scope.
    pub(crate) fn resolve(&self, parameter: &Parameter) -> Option<ScopedParameter> {
        let slot = *self.slots.get(&parameter.name)?.last()?;
        Some(ScopedParameter { slot, group: parameter.group })
    }

    /// Resolves the names of a text. A name that is not in scope stands for nothing.
    pub(crate) fn resolve_text(&self, text: TemplateText) -> ScopedText {
        let resolve = |piece| match piece {
            TextPiece::Literal(literal) => Some(ScopedPiece::Literal(literal)),
            TextPiece::Parameter(parameter) => self.resolve(&parameter).map(ScopedPiece::Parameter),
        };
        ScopedText(text.0.into_iter().filter_map(resolve).collect())
    }
}

/// The names that every template has, in the order of their positions.
pub(crate) const GLOBALS: [&str; 3] = ["handle", "base", EXTENSION];

/// The parameter that a bare group number refers to.
pub(crate) const EXTENSION: &str = "extension";

impl Parameter {
    /// Parses `name`, `name[n]`, or `n` for a group of the extension.
    pub(crate) fn parse(text: &str) -> Self {
        if let Ok(group) = text.parse() {
            return Self { name: EXTENSION.to_owned(), group: Some(group) };
        }
        let with_group = text.strip_suffix(']').and_then(|text| text.split_once('['));
        match with_group.and_then(|(name, group)| Some((name, group.parse().ok()?))) {
            Some((name, group)) => Self { name: name.to_owned(), group: Some(group) },
            None => Self { name: text.to_owned(), group: None },
        }
    }
}

impl TemplateText {
    pub(crate) fn parse(text: &str) -> Self {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['$', '\\']) {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some((parameter, after)) = parameter(rest) {
                if !literal.is_empty() {
                    pieces.push(TextPiece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(TextPiece::Parameter(parameter));
                rest = after;
                continue;
            }
            // A backslash is removed, and the character after it stays; a dollar stays.
            let is_escape = rest.starts_with('\\') && rest.len() > 1;
            let mut chars = rest.chars();
            let kept = if is_escape { chars.by_ref().nth(1) } else { chars.next() };
            literal.extend(kept);
            rest = chars.as_str();
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(TextPiece::Literal(literal));
        }
        Self(pieces)
    }

    #[cfg(test)]
    fn pieces(&self) -> &[TextPiece] {
        &self.0
    }
}

/// Splits a parameter from the rest, if `text` begins with one.
fn parameter(text: &str) -> Option<(Parameter, &str)> {
    let rest = text.strip_prefix('$')?;
    if let Some(braced) = rest.strip_prefix('{') {
        let (name, after) = braced.split_once('}')?;
        return Some((Parameter::parse(name), after));
    }
    // One digit only, because the text may continue with digits.
    let digits_len = usize::from(rest.starts_with(|c: char| c.is_ascii_digit()));
    let (digit, after) = rest.split_at(digits_len);
    (digits_len > 0).then(|| (Parameter::parse(digit), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> TextPiece {
        TextPiece::Literal(text.to_owned())
    }

    fn named(name: &str, group: Option<usize>) -> TextPiece {
        TextPiece::Parameter(Parameter { name: name.to_owned(), group })
    }

    #[test]
    fn names_are_resolved_to_the_innermost_place() {
        let mut scope = TemplateScope::new();
        let slot = |scope: &TemplateScope, name: &str| {
            scope.resolve(&Parameter::parse(name)).map(|parameter| parameter.slot)
        };
        assert_eq!([slot(&scope, "handle"), slot(&scope, "1"), slot(&scope, "x")], [Some(0), Some(2), None]);
        scope.bind("x");
        scope.bind("extension");
        assert_eq!([slot(&scope, "x[3]"), slot(&scope, "1")], [Some(3), Some(4)]);
        scope.truncate(3);
        assert_eq!([slot(&scope, "x"), slot(&scope, "extension")], [None, Some(2)]);
    }

    #[test]
    fn finds_parameters() {
        for (text, pieces) in [
            ("", vec![]),
            ("plain", vec![literal("plain")]),
            ("${data}?p=${x[2]}", vec![named("data", None), literal("?p="), named("x", Some(2))]),
            ("$1${12}", vec![named("extension", Some(1)), named("extension", Some(12))]),
            ("$10", vec![named("extension", Some(1)), literal("0")]),
            ("$ $$x", vec![literal("$ $$x")]),
            ("$", vec![literal("$")]),
            ("${open", vec![literal("${open")]),
            (r"\$1\\\x\", vec![literal(r"$1\x\")]),
            (r"\${a}", vec![literal("${a}")]),
            ("${}", vec![named("", None)]),
            ("${x[y]}", vec![named("x[y]", None)]),
            ("\u{fc}${\u{fc}}\\\u{fc}", vec![literal("\u{fc}"), named("\u{fc}", None), literal("\u{fc}")]),
        ] {
            assert_eq!(TemplateText::parse(text).pieces(), pieces, "{text}");
        }
    }
}
