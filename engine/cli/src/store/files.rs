//! Passes the records, prefixes and names of files on, whatever form the files have.

use crate::input::{InputEntry, InputPosition, RecordInputs, SortingSpace};
use anyhow::bail;
use handle_formats::input::InputForm;
use handle_proto::wire::list::Values;
use indicatif::ProgressBar;

/// The format of files with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RecordFormat {
    /// Lines of JSON, indented objects, or an array of records.
    Lines,
    /// The JSON export of a reference server.
    Export,
    /// The SQL tables of a reference server.
    Sql,
    /// CSV: the first line names the columns handle, index, type, data, and perhaps ttl,
    /// permissions and timestamp.
    Csv,
    /// A batch file that creates records.
    Batch,
    /// One name per line: for an import, of a prefix to home, as 10.1045 or 0.NA/10.1045.
    #[value(alias = "prefixes")]
    Names,
}

impl From<RecordFormat> for InputForm {
    fn from(format: RecordFormat) -> Self {
        match format {
            RecordFormat::Lines => Self::Json,
            RecordFormat::Export => Self::Export,
            RecordFormat::Sql => Self::Sql,
            RecordFormat::Csv => Self::Csv,
            RecordFormat::Batch => Self::Batch,
            RecordFormat::Names => Self::Names,
        }
    }
}

/// Takes what is read from files.
pub(crate) trait RecordSink {
    /// Takes a record; `position` tells its origin.
    fn record(
        &mut self,
        handle: &[u8],
        values: Values<'_>,
        position: &dyn Fn() -> InputPosition,
    ) -> anyhow::Result<()>;

    /// Takes note of an entry that cannot be read, of `handle` if it names one.
    fn refused(&mut self, position: &InputPosition, handle: Option<&str>, why: &str) -> anyhow::Result<()> {
        let handle = handle.map(|handle| format!("{handle}: ")).unwrap_or_default();
        bail!("{position}: {handle}{why}")
    }

    /// Takes a homed prefix.
    fn homed(&mut self, prefix: &[u8]);

    /// Takes a line of a list, which is a prefix or a handle.
    fn name(&mut self, name: &str) -> anyhow::Result<()>;
}

/// Passes everything in the inputs to `sink`.
///
/// # Errors
/// When an input cannot be read, with its name and the position in it; and those of `sink`.
pub(crate) fn read_all(
    inputs: &RecordInputs<'_>,
    bar: &ProgressBar,
    sorting: SortingSpace<'_>,
    sink: &mut impl RecordSink,
) -> anyhow::Result<()> {
    inputs.each(bar, sorting, |origin, entry| match entry {
        InputEntry::Record(handle, values) => sink.record(handle, values, &|| inputs.position(origin)),
        InputEntry::Homed(prefix) => {
            sink.homed(prefix);
            Ok(())
        }
        InputEntry::Name(name) => {
            sink.name(name).map_err(|error| anyhow::anyhow!("{}: {error:#}", inputs.position(origin)))
        }
        InputEntry::Deleted(handle) => {
            let handle = String::from_utf8_lossy(handle);
            sink.refused(&inputs.position(origin), Some(&handle), "a deletion is not a record")
        }
        InputEntry::Refused(handle, why) => sink.refused(&inputs.position(origin), handle, &why),
    })?;
    bar.finish_and_clear();
    Ok(())
}
