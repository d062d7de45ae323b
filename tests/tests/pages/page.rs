//! Blocks of a document, and the invisible comments that say what the test does with them.

use std::path::Path;

/// What the comment before a block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// The block is run: `<!-- run -->`, with details after a colon.
    Run(RunDetails),
    /// The block is a file, written before the first block is run: `<!-- file: PATH -->`.
    File(String),
    /// The block is added to a file in its turn: `<!-- added to: PATH -->`.
    Addition(String),
    /// The block is looked at by `tests/pages/NAME.sh`, as the file `$BLOCK`:
    /// `<!-- check: NAME -->`.
    Check(String),
    /// The block is not run, for a reason: `<!-- not run: REASON -->`.
    NotRun(String),
}

/// How a block is run, from the words of its comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunDetails {
    /// `after NAME`: `tests/pages/NAME.sh` is read before.
    pub(crate) preparations: Vec<String>,
    /// `in another terminal`: the block goes on while the next ones run.
    pub(crate) is_background: bool,
    /// `output varies`: the printed output of a console is an example.
    pub(crate) output_varies: bool,
    /// `fails`: its exit status is not 0.
    pub(crate) is_failure: bool,
    /// `prints TEXT`: what its output contains.
    pub(crate) printed: Vec<String>,
}

/// A block between three backticks.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The line of its first line of text, from 1.
    pub(crate) line: usize,
    /// What follows the backticks, as `sh`.
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) marker: Option<Marker>,
}

impl Block {
    /// Whether people type what is in it.
    pub(crate) fn has_commands(&self) -> bool {
        matches!(self.language.as_str(), "sh" | "bash" | "console")
    }

    /// The commands of a block, without prompts and output.
    pub(crate) fn commands(&self) -> String {
        self.console_lines(true)
    }

    /// The output that a console shows.
    pub(crate) fn shown_output(&self) -> String {
        if self.language == "console" { self.console_lines(false) } else { String::new() }
    }

    /// The lines that are typed, or those that are printed.
    fn console_lines(&self, is_typed_wanted: bool) -> String {
        let (mut found, mut continues) = (String::new(), false);
        for line in self.text.lines() {
            let prompt = line.strip_prefix("$ ").filter(|_| !continues);
            let is_typed = self.language != "console" || continues || prompt.is_some();
            if is_typed == is_typed_wanted {
                found += prompt.unwrap_or(line);
                found.push('\n');
            }
            continues = is_typed && line.ends_with('\\');
        }
        found
    }
}

/// Reads the blocks of a document.
///
/// # Errors
/// If a marker is not understood.
pub(crate) fn read_blocks(path: &Path) -> Result<Vec<Block>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut blocks, mut marker, mut lines) = (Vec::new(), None, text.lines().zip(1..));
    while let Some((whole, number)) = lines.next() {
        let line = whole.trim_start();
        if let Some(language) = line.strip_prefix("```") {
            // In a list, the whole block is indented.
            let indent = &whole[..whole.len() - line.len()];
            let inside = lines.by_ref().map(|(line, _)| line.strip_prefix(indent).unwrap_or(line));
            let text: String =
                inside.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            let (language, line) = (language.to_owned(), number + 1);
            blocks.push(Block { line, language, text, marker: marker.take() });
        } else if let Some(comment) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
            let read = read_marker(comment);
            marker = read.map_err(|error| format!("{}:{number}: {error}", path.display()))?;
        } else if !line.is_empty() {
            marker = None;
        }
    }
    Ok(blocks)
}

/// The marker in a comment; other comments are none.
fn read_marker(comment: &str) -> Result<Option<Marker>, String> {
    let (kind, rest) = comment.split_once(": ").unwrap_or((comment, ""));
    match kind {
        "run" => read_details(rest).map(|details| Some(Marker::Run(details))),
        "file" if !rest.is_empty() => Ok(Some(Marker::File(rest.to_owned()))),
        "added to" if !rest.is_empty() => Ok(Some(Marker::Addition(rest.to_owned()))),
        "check" if !rest.is_empty() => Ok(Some(Marker::Check(rest.to_owned()))),
        "not run" if !rest.is_empty() => Ok(Some(Marker::NotRun(rest.to_owned()))),
        "file" | "added to" | "check" | "not run" => Err(format!("`{comment}` has no text after a colon")),
        _ => Ok(None),
    }
}

fn read_details(text: &str) -> Result<RunDetails, String> {
    let mut details = RunDetails::default();
    for word in text.split(", ").filter(|word| !word.is_empty()) {
        if let Some(name) = word.strip_prefix("after ") {
            details.preparations.push(name.to_owned());
        } else if let Some(printed) = word.strip_prefix("prints ") {
            details.printed.push(printed.to_owned());
        } else if word == "in another terminal" {
            details.is_background = true;
        } else if word == "fails" {
            details.is_failure = true;
        } else if word == "output varies" {
            details.output_varies = true;
        } else {
            return Err(format!("`{word}` is not a word of a block that is run"));
        }
    }
    Ok(details)
}

/// Whether `output` is what a console shows. Numbers and the space around words may differ, and a
/// line `...` stands for any lines.
///
/// # Errors
/// The first line that is shown and was not printed.
pub(crate) fn compare_output(shown: &str, output: &str) -> Result<(), String> {
    let mut printed = output.lines().map(reduce).filter(|line| !line.is_empty());
    let mut may_skip = false;
    for line in shown.lines().filter(|line| !line.is_empty()) {
        if line == "..." {
            may_skip = true;
            continue;
        }
        let reduced = reduce(line);
        let is_printed = if may_skip {
            printed.any(|one| one == reduced)
        } else {
            printed.next().as_ref() == Some(&reduced)
        };
        if !is_printed {
            return Err(line.to_owned());
        }
        may_skip = false;
    }
    Ok(())
}

/// A line with each number as `0` and each run of spaces as one.
fn reduce(line: &str) -> String {
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut reduced = String::new();
    for c in words.chars() {
        let is_inside = c.is_ascii_digit() && reduced.ends_with('0');
        if !is_inside {
            reduced.push(if c.is_ascii_digit() { '0' } else { c });
        }
    }
    reduced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(text: &str) -> Block {
        Block { line: 1, language: "console".to_owned(), text: text.to_owned(), marker: None }
    }

    #[test]
    fn commands_of_a_console_are_apart_from_its_output() {
        let block = console("$ one \\\n    more\nprinted\n$ two\n");
        assert_eq!(block.commands(), "one \\\n    more\ntwo\n");
        assert_eq!(block.shown_output(), "printed\n");
    }

    #[test]
    fn output_may_differ_in_numbers_and_spaces_only() {
        compare_output("a 12 ms\n...\nend\n", "a  3 ms\nx\ny\nend\n").unwrap();
        assert_eq!(compare_output("a 12 ms\n", "b 12 ms\n"), Err("a 12 ms".to_owned()));
        assert_eq!(compare_output("a\nb\n", "a\n"), Err("b".to_owned()));
        assert_eq!(compare_output("a\nend\n", "a\nb\nend\n"), Err("end".to_owned()));
    }

    #[test]
    fn markers_are_read_and_misspelt_ones_refused() {
        let details = RunDetails {
            preparations: vec!["records".to_owned()],
            is_background: true,
            output_varies: true,
            is_failure: true,
            printed: vec!["x y".to_owned()],
        };
        let read = read_marker("run: after records, in another terminal, output varies, fails, prints x y");
        assert_eq!(read, Ok(Some(Marker::Run(details))));
        assert_eq!(read_marker("file: a.toml"), Ok(Some(Marker::File("a.toml".to_owned()))));
        assert_eq!(read_marker("added to: a.toml"), Ok(Some(Marker::Addition("a.toml".to_owned()))));
        assert_eq!(read_marker("not run: systemd"), Ok(Some(Marker::NotRun("systemd".to_owned()))));
        assert_eq!(read_marker("end of settings"), Ok(None));
        read_marker("not run").unwrap_err();
        read_marker("run: before records").unwrap_err();
    }
}
