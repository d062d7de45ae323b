//! One reader for everything that programs and people hand over: records, names and operations.
//!
//! An input is read once, from its first byte to its last, so pipes and standard input serve as
//! well as files. [`InputStream`] unpacks it, [`InputForm`] recognises its form without taking
//! anything from it, and [`InputReader`] yields what is in it, entry by entry, in bounded memory.
//!
//! ```
//! use handle_formats::input::{InputEntry, InputForm, InputReader, InputStream};
//!
//! let file = "handle;index;type;data\n10.1045/a;1;URL;https://example.org/\n";
//! let mut stream = InputStream::new(file.as_bytes())?;
//! let form = InputForm::recognise(&mut stream)?.ok_or("an unknown form")?;
//! assert_eq!(form, InputForm::Csv);
//!
//! let mut reader = InputReader::new(stream, form)?;
//! let Some((_, InputEntry::Record(handle, values))) = reader.next()? else { panic!("a record") };
//! assert_eq!((handle, values.len()), (&b"10.1045/a"[..], 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod csv_table;
mod form;
mod json_values;
mod operations;
mod reader;
mod stream;

pub use csv_table::{CsvError, CsvRow, CsvTable};
pub use form::InputForm;
pub use json_values::{JsonObjects, JsonText};
pub use operations::OperationReader;
pub use reader::{InputEntry, InputError, InputReader};
pub use stream::InputStream;

use std::fmt;

/// Most bytes of a line, of an indented object, and of a row of a table. The largest possible
/// record is shorter.
pub const LINE_LEN_MAX: usize = 16 << 20;

/// The position of an entry in its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputPosition {
    /// The line on which it begins, from 1.
    Line(u64),
    /// Its position among the records, from 1, where records are not lines.
    Record(u64),
}

impl fmt::Display for InputPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record(record) => write!(f, "record {record}"),
        }
    }
}
