//! Files that an operator writes, as text.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Items as operators read them in logs: with commas between them, without quotes and brackets.
#[must_use]
pub fn listed<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Longest text that is read, in bytes: a site record of ten thousand servers.
const TEXT_LEN_MAX: u64 = 16 << 20;

/// Why a text cannot be read.
#[derive(Debug)]
pub struct TextError {
    /// What the text should be.
    what: &'static str,
    path: PathBuf,
    /// The error of the operating system; without it, the text is too long.
    error: Option<io::Error>,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, path) = (self.what, self.path.display());
        match &self.error {
            Some(_) => write!(f, "cannot read {what} {path}"),
            None => write!(f, "{what} {path} is longer than {TEXT_LEN_MAX} bytes"),
        }
    }
}

impl std::error::Error for TextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// Reads the text at `path`; `what` names it in errors, as in "the site record".
///
/// # Errors
/// When it cannot be read, is longer than 16 MiB, or is not UTF-8.
pub fn read(path: &Path, what: &'static str) -> Result<String, TextError> {
    let error = |error| TextError { what, path: path.to_owned(), error };
    let mut text = String::new();
    let opened = File::open(path).and_then(|file| file.take(TEXT_LEN_MAX + 1).read_to_string(&mut text));
    opened.map_err(|why| error(Some(why)))?;
    if text.len() as u64 > TEXT_LEN_MAX { Err(error(None)) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_be_as_long_as_the_limit_and_not_longer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        let file = File::create(&path).unwrap();
        file.set_len(TEXT_LEN_MAX).unwrap();
        assert_eq!(read(&path, "it").unwrap().len() as u64, TEXT_LEN_MAX);
        file.set_len(TEXT_LEN_MAX + 1).unwrap();
        let error = read(&path, "it").unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = read(&path, "it").unwrap_err().to_string();
        assert!(error.starts_with("cannot read it "), "{error}");
    }
}
