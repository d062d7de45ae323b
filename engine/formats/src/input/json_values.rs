//! Objects of JSON, one after the other: on lines, indented, or in an array.

use super::{InputPosition, LINE_LEN_MAX};
use crate::json_scanner::{JsonScanner, JsonTextError};
use crate::lines::{Line, Lines};
use std::io::{self, BufRead};
use zeroize::Zeroizing;

/// The objects of JSON in an input, as text: for callers that read objects in a way of their own.
#[derive(Debug)]
pub struct JsonObjects<R>(JsonValues<R>);

impl<R: BufRead> JsonObjects<R> {
    /// Begins to read `input`.
    ///
    /// # Errors
    /// Those of the input.
    pub fn new(input: R) -> io::Result<Self> {
        Self::bounded(input, LINE_LEN_MAX)
    }

    /// The same for objects of at most `len_max` bytes.
    ///
    /// # Errors
    /// Those of the input.
    pub fn bounded(input: R, len_max: usize) -> io::Result<Self> {
        Ok(Self(JsonValues::new(input, len_max)?))
    }

    /// The next object and its position, or the reason why it is not text; `None` at the end.
    ///
    /// # Errors
    /// When the input cannot be read on.
    #[expect(clippy::should_implement_trait, reason = "an object borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<JsonText<'_>>, JsonTextError> {
        self.0.next()
    }
}

/// Splits an input into its objects.
#[derive(Debug)]
pub(super) enum JsonValues<R> {
    Lines(JsonLines<R>),
    Array(JsonArray<R>),
}

/// The text of one object, or why there is none.
pub type JsonText<'a> = (InputPosition, Result<&'a str, String>);

impl<R: BufRead> JsonValues<R> {
    /// Begins to read. Comments and blank lines may come before an array.
    pub(super) fn new(mut input: R, len_max: usize) -> io::Result<Self> {
        let mut passed = 0;
        loop {
            let (blanks, next, lines) = {
                let bytes = input.fill_buf()?;
                let blanks = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                let lines = bytes[..blanks].iter().filter(|&&byte| byte == b'\n').count() as u64;
                (blanks, bytes.get(blanks).copied(), lines)
            };
            // A line with a comment is left to the reader of lines, unless an array follows.
            match next {
                Some(b'[') => {
                    input.consume(blanks);
                    return Ok(Self::Array(JsonArray::new(input, len_max)));
                }
                None if blanks > 0 => {
                    input.consume(blanks);
                    passed += lines;
                }
                Some(b'#') => {
                    input.consume(blanks);
                    passed += lines + 1;
                    pass_line(&mut input)?;
                }
                _ => return Ok(Self::Lines(JsonLines::new(input, passed, len_max))),
            }
        }
    }

    /// The next object; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<JsonText<'_>>, JsonTextError> {
        match self {
            Self::Lines(lines) => Ok(lines.next()?),
            Self::Array(array) => array.next(),
        }
    }
}

/// Skips the rest of a line.
pub(super) fn pass_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let len = end.map_or(bytes.len(), |at| at + 1);
        input.consume(len);
        if end.is_some() || len == 0 {
            return Ok(());
        }
    }
}

/// Objects that begin with a line each.
#[derive(Debug)]
pub(super) struct JsonLines<R> {
    lines: Lines<R>,
    /// Lines before the first one that is read here.
    passed: u64,
    text: Zeroizing<String>,
    len_max: usize,
}

impl<R: BufRead> JsonLines<R> {
    fn new(input: R, passed: u64, len_max: usize) -> Self {
        Self { lines: Lines::new(input, len_max), passed, text: Zeroizing::default(), len_max }
    }

    /// The next object. A line that begins with a brace and does not close it is the first one of
    /// an indented object, which ends with the line that closes it. A further line that begins with
    /// a brace, without blanks before it, begins another object: the one before was cut.
    fn next(&mut self) -> io::Result<Option<JsonText<'_>>> {
        self.text.clear();
        let (mut depth, mut first_line) = (0, 0);
        loop {
            let line = self.lines.next()?;
            let is_inside = first_line > 0;
            let text = match line {
                Line::End if is_inside => break,
                Line::End => return Ok(None),
                // What was cut before is reported with the next call.
                Line::TooLong | Line::NotUtf8 if is_inside => {
                    self.lines.back();
                    break;
                }
                Line::TooLong => return Ok(Some(self.refuse(&too_long(self.len_max)))),
                Line::NotUtf8 => return Ok(Some(self.refuse("the line is not UTF-8"))),
                Line::Text(text) => text,
            };
            if is_inside && text.starts_with('{') {
                self.lines.back();
                break;
            }
            let line = text.trim();
            if !is_inside && (line.is_empty() || line.starts_with('#')) {
                continue;
            }
            // The usual line, which needs no scan.
            let is_whole = !is_inside && (!line.starts_with('{') || line.ends_with("]}"));
            let scanned = if is_whole { LineEnd { depth: 0, is_string: false } } else { scan(line) };
            self.text.push_str(line);
            if !is_inside {
                first_line = self.lines.number();
            }
            depth += scanned.depth;
            // A string does not go on in the next line.
            if depth <= 0 || scanned.is_string {
                break;
            }
            self.text.push('\n');
            if self.text.len() > self.len_max {
                let why = too_long(self.len_max);
                return Ok(Some((InputPosition::Line(self.passed + first_line), Err(why))));
            }
        }
        Ok(Some((InputPosition::Line(self.passed + first_line), Ok(&self.text))))
    }

    fn refuse(&self, why: &str) -> JsonText<'static> {
        (InputPosition::Line(self.passed + self.lines.number()), Err(why.to_owned()))
    }
}

fn too_long(len_max: usize) -> String {
    format!("line too long: the maximum is {len_max} bytes")
}

/// What a line leaves open.
struct LineEnd {
    depth: i64,
    is_string: bool,
}

fn scan(line: &str) -> LineEnd {
    let (mut depth, mut is_string, mut is_escaped) = (0, false, false);
    for byte in line.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'{' | b'[' if !is_string => depth += 1,
            b'}' | b']' if !is_string => depth -= 1,
            _ => {}
        }
    }
    LineEnd { depth, is_string }
}

/// The elements of an array.
#[derive(Debug)]
pub(super) struct JsonArray<R> {
    scanner: JsonScanner<R>,
    count: u64,
    is_over: bool,
}

impl<R: BufRead> JsonArray<R> {
    const fn new(input: R, len_max: usize) -> Self {
        Self { scanner: JsonScanner::new(input, len_max), count: 0, is_over: false }
    }

    fn next(&mut self) -> Result<Option<JsonText<'_>>, JsonTextError> {
        if self.is_over {
            return Ok(None);
        }
        let expected = |scanner: &JsonScanner<R>, what| Err(JsonTextError::Expected(what, scanner.at()));
        if self.count == 0 {
            self.scanner.symbol(b'[', "an array")?;
        }
        let is_end = match (self.count, self.scanner.peek()?) {
            (_, Some(b']')) => true,
            (0, Some(_)) => false,
            (_, Some(b',')) => {
                self.scanner.bump()?;
                false
            }
            _ => return expected(&self.scanner, "a comma or the end of the array"),
        };
        if is_end {
            self.scanner.bump()?;
            self.is_over = true;
            if self.scanner.peek()?.is_some() {
                return expected(&self.scanner, "nothing after the array");
            }
            return Ok(None);
        }
        self.count += 1;
        self.scanner.value(true)?;
        let text = str::from_utf8(self.scanner.text())
            .map(str::trim)
            .map_err(|_| "the record is not UTF-8".to_owned());
        Ok(Some((InputPosition::Record(self.count), text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8]) -> Result<Vec<(u64, String)>, JsonTextError> {
        let mut values = JsonValues::new(text, LINE_LEN_MAX)?;
        let mut found = Vec::new();
        while let Some((position, text)) = values.next()? {
            let (InputPosition::Line(number) | InputPosition::Record(number)) = position;
            found.push((number, text.map_or_else(|why| format!("refused: {why:.20}"), str::to_owned)));
        }
        Ok(found)
    }

    fn found(items: &[(u64, &str)]) -> Vec<(u64, String)> {
        items.iter().map(|&(number, text)| (number, text.to_owned())).collect()
    }

    #[test]
    fn objects_are_on_lines_or_indented() {
        for (text, items) in [
            (
                "{\"a\":1}\n\n# comment\n {\"b\":[{}]} \r\n{}",
                &[(1, "{\"a\":1}"), (4, "{\"b\":[{}]}"), (5, "{}")][..],
            ),
            (
                "{\n \"a\": {\n  \"}\": 1\n }\n}\n{\"b\":[]}\n",
                &[(1, "{\n\"a\": {\n\"}\": 1\n}\n}"), (6, "{\"b\":[]}")],
            ),
            (
                "{\"a\":\n{\"b\":1}\n{\n  \"c\": [\n",
                &[(1, "{\"a\":\n"), (2, "{\"b\":1}"), (3, "{\n\"c\": [\n")],
            ),
            (
                "not json\n{\"a\": \"cut\n{\"b\":2}\n",
                &[(1, "not json"), (2, "{\"a\": \"cut"), (3, "{\"b\":2}")],
            ),
            ("{\"a\": \"\\\\\\\"{\"}\n}\n", &[(1, "{\"a\": \"\\\\\\\"{\"}"), (2, "}")]),
            ("", &[]),
            ("\n# only a comment", &[]),
        ] {
            assert_eq!(split(text.as_bytes()).unwrap(), found(items), "{text}");
        }
        let mut odd = b"{\n\xff\n{}\n".to_vec();
        odd.extend(vec![b'x'; LINE_LEN_MAX + 1]);
        odd.extend(b"\n{\"z\":0}");
        let items = [
            (1, "{\n"),
            (2, "refused: the line is not UTF-8"),
            (3, "{}"),
            (4, "refused: line too long: the m"),
            (5, "{\"z\":0}"),
        ];
        let seen: Vec<_> = split(&odd)
            .unwrap()
            .into_iter()
            .map(|(number, text)| (number, text[..text.len().min(29)].to_owned()))
            .collect();
        assert_eq!(
            seen,
            found(&items)
                .into_iter()
                .map(|(number, text)| (number, text[..text.len().min(29)].to_owned()))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn elements_of_an_array_are_numbered() {
        let text = "# comment\n [ {\"a\":[1,\"]\"]},\n{ \"b\": {} } , 7\n]\n";
        let items = [(1, "{\"a\":[1,\"]\"]}"), (2, "{ \"b\": {} }"), (3, "7")];
        assert_eq!(split(text.as_bytes()).unwrap(), found(&items));
        assert_eq!(split(b"[]").unwrap(), []);
        for bad in ["[", "[{}", "[{} {}]", "[{}]x", "[{},"] {
            assert!(split(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
