//! Parameters in the query of a target, or in the body of a form.

use percent_encoding::percent_decode;
use std::borrow::Cow;

/// Maximum number of parameters; further ones are ignored.
const PARAMETERS_MAX: usize = 4096;

/// Parameters in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Parameters<'q> {
    /// Parses `application/x-www-form-urlencoded` text. Malformed escapes stand for themselves, and
    /// bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn parse(query: &'q str) -> Self {
        let parts = query.split('&').filter(|part| !part.is_empty()).take(PARAMETERS_MAX);
        Self(
            parts
                .map(|part| {
                    let (name, value) = part.split_once('=').unwrap_or((part, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// All values of `name`.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> + use<'s, 'q> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The first value of `name`.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The truth value of `name`, if it is given: true for the name alone, `true`, `yes`, `1` and
    /// `on` in any case.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        const TRUE: [&str; 5] = ["", "true", "yes", "1", "on"];
        self.first(name).map(|value| TRUE.iter().any(|word| value.eq_ignore_ascii_case(word)))
    }
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_keep_their_order_and_decode() {
        let parameters =
            Parameters::parse("index=1&type=URL&index=+3&x=%C3%9C%zz&pretty&auth=True&cert=no&=&");
        assert_eq!(parameters.all("index").collect::<Vec<_>>(), ["1", " 3"]);
        assert_eq!(parameters.first("type"), Some("URL"));
        assert_eq!(parameters.first("x"), Some("\u{dc}%zz"));
        assert_eq!(parameters.first("Type"), None);
        let flags = ["pretty", "auth", "cert", "overwrite"].map(|name| parameters.flag(name));
        assert_eq!(flags, [Some(true), Some(true), Some(false), None]);
    }
}
