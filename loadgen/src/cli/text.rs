//! Where the text for people goes, while files and standard output get what was asked for.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use handle_proto::printable::PrintableLines;

use super::files::is_stdout;

/// The text of one command. Nobody has to read it: a pipe that is closed ends neither a run nor its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextOutput {
    to_stderr: bool,
}

impl TextOutput {
    /// To standard output, or to standard error when one of the `files` is standard output.
    pub(super) fn beside(files: &[Option<&Path>]) -> Self {
        Self { to_stderr: files.iter().flatten().any(|path| is_stdout(path)) }
    }

    /// Whether standard output is for text.
    pub(super) const fn is_on_stdout(self) -> bool {
        !self.to_stderr
    }

    /// Writes `text` with its lines. What else a terminal would obey is escaped.
    pub(super) fn put(self, text: impl Display) {
        let text = PrintableLines(text);
        let _ = if self.to_stderr {
            write!(io::stderr(), "{text}")
        } else {
            let mut out = io::stdout().lock();
            write!(out, "{text}").and_then(|()| out.flush())
        };
    }

    /// Writes `text` and ends the line.
    pub(super) fn line(self, text: impl Display) {
        self.put(format_args!("{text}\n"));
    }
}
