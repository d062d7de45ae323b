//! Text output for people, kept apart from files and standard output with results.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use handle_proto::printable::PrintableLines;

use super::files::is_stdout;

/// The text output of one command. A closed pipe ends neither a run nor its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextOutput {
    to_stderr: bool,
}

impl TextOutput {
    /// To standard output, or to standard error if one of the `files` is standard output.
    pub(super) fn beside(files: &[Option<&Path>]) -> Self {
        Self { to_stderr: files.iter().flatten().any(|path| is_stdout(path)) }
    }

    /// Whether the text goes to standard output.
    pub(super) const fn is_on_stdout(self) -> bool {
        !self.to_stderr
    }

    /// Writes `text` with its line ends. Escapes other terminal control characters.
    pub(super) fn put(self, text: impl Display) {
        let text = PrintableLines(text);
        let _ = if self.to_stderr {
            write!(io::stderr(), "{text}")
        } else {
            let mut out = io::stdout().lock();
            write!(out, "{text}").and_then(|()| out.flush())
        };
    }

    /// Writes `text` and a line end.
    pub(super) fn line(self, text: impl Display) {
        self.put(format_args!("{text}\n"));
    }
}
