//! Files that an operator writes, as text.

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Longest text that is read, in bytes: a site record of ten thousand servers.
const TEXT_LEN_MAX: u64 = 16 << 20;

/// Reads the text at `path`; `what` says what it should be, as in "the site record".
///
/// # Errors
/// One sentence with the path, when it cannot be read, is longer than 16 MiB, or is no UTF-8.
pub fn read(path: &Path, what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let opened = File::open(path).and_then(|file| file.take(TEXT_LEN_MAX + 1).read_to_string(&mut text));
    opened.with_context(|| format!("cannot read {what} {}", path.display()))?;
    ensure!(
        text.len() as u64 <= TEXT_LEN_MAX,
        "{what} {} is longer than {TEXT_LEN_MAX} bytes",
        path.display()
    );
    Ok(text)
}

/// Reads a configuration, and gives the directory that paths in it are relative to.
///
/// # Errors
/// Those of [`read`], or the line that is not understood.
pub fn configuration<C: DeserializeOwned>(path: &Path) -> anyhow::Result<(C, &Path)> {
    let text = read(path, "the configuration")?;
    let config = toml::from_str(&text).with_context(|| format!("in the configuration {}", path.display()))?;
    Ok((config, path.parent().unwrap_or(Path::new(""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_be_as_long_as_the_limit_and_not_longer() {
        let path = std::env::temp_dir().join(format!("handle-text-{}", std::process::id()));
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
