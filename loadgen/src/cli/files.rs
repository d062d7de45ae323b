//! Files that results are written to, or standard output for `-`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail};
use handle_loadgen::Error;
use handle_proto::printable::PrintableLines;
use serde::Serialize;

/// Makes sure that results can be written before hours are spent on them, and that none takes the place of another.
pub(super) fn check_files(files: &[Option<&Path>]) -> anyhow::Result<()> {
    let files: Vec<_> = files.iter().flatten().filter(|path| !is_device(path)).collect();
    for (number, path) in files.iter().enumerate() {
        if files[..number].contains(path) {
            bail!(Error::Option(format!("{} is named for two files", path.display())));
        }
        check(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A pipe or a device: what opens it may be waited for, and to write to it twice is no loss.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Leaves everything as it was.
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

/// Whether a file is named that stands for standard output.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file for writing, or standard output.
pub(super) fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    Ok(if is_stdout(path) { Box::new(io::stdout()) } else { Box::new(File::create(path)?) })
}

/// Writes `report` as JSON, if there is a file for it. What a terminal would obey is escaped in it.
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

/// Writes what `fill` gives.
pub(super) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let written = create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        fill(&mut file)?;
        file.flush()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}
