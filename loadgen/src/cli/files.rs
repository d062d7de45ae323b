//! The files for results; `-` is standard output.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::Error;
use anyhow::{Context, bail};
use handle_proto::printable::PrintableLines;
use serde::Serialize;

/// Checks before a run that all results can be written, and that no two go to the same file.
pub(super) fn check_files(files: &[Option<&Path>]) -> anyhow::Result<()> {
    let files: Vec<_> = files.iter().flatten().filter(|path| !is_device(path)).collect();
    for (number, path) in files.iter().enumerate() {
        if files[..number].contains(path) {
            bail!(Error::Option(format!("{} is used for two outputs", path.display())));
        }
        check(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Whether it is a pipe or a device: opening it could block, and writing twice to it loses nothing.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Checks without changing anything.
fn check(path: &Path) -> io::Result<()> {
    if is_stdout(path) {
        return Ok(());
    }
    match File::create_new(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Whether one of the files is standard output.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file for writing, or standard output.
pub(super) fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    Ok(if is_stdout(path) { Box::new(io::stdout()) } else { Box::new(File::create(path)?) })
}

/// Writes `report` as JSON if a file is given. Escapes terminal control characters.
pub(super) fn write_json(path: Option<&Path>, report: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report).context("cannot write the report as JSON")?;
    text.push('\n');
    write_text(path, &PrintableLines(text).to_string())
}

/// Writes `text`.
pub(super) fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, |file| file.write_all(text.as_bytes()))
}

/// Writes the output of `fill`.
pub(super) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let written = create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        fill(&mut file)?;
        file.flush()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}
