//! Reads an input of any form as operations.

use super::{InputEntry, InputError, InputForm, InputPosition, InputReader, InputStream};
use crate::batch::{BatchBlock, BatchOperation, BatchReader, BatchValue, InvalidBlock, LineProblem};
use handle_proto::Values;
use std::io;

/// The operations of an input: those of a batch file, and of records that they are created.
///
/// The line of a block is the position of its record where records are not lines. After an invalid
/// block, reading continues with the next one.
#[derive(Debug)]
pub struct OperationReader<'r>(Operations<'r>);

#[derive(Debug)]
enum Operations<'r> {
    /// With everything that only batch files have, as identities.
    Blocks(Box<BatchReader<InputStream<'r>>>),
    Entries(InputReader<'r>),
}

impl<'r> OperationReader<'r> {
    /// Reads `input`. What does not begin like another form is a batch file.
    ///
    /// # Errors
    /// When the beginning cannot be read.
    pub fn new(mut input: InputStream<'r>) -> Result<Self, InputError> {
        Ok(Self(match InputForm::recognise(&mut input)? {
            Some(form @ (InputForm::Json | InputForm::Export | InputForm::Csv))
                if !input.peek(1)?.is_empty() =>
            {
                Operations::Entries(InputReader::new(input, form)?)
            }
            _ => Operations::Blocks(Box::new(BatchReader::new(input))),
        }))
    }
}

impl Iterator for OperationReader<'_> {
    type Item = io::Result<Result<BatchBlock, InvalidBlock>>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = match &mut self.0 {
            Operations::Blocks(blocks) => return blocks.next(),
            Operations::Entries(reader) => reader,
        };
        let (position, entry) = match reader.next() {
            Ok(entry) => entry?,
            Err(InputError::Io(error)) => return Some(Err(error)),
            Err(error) => return Some(Err(io::Error::other(error))),
        };
        let (InputPosition::Line(line) | InputPosition::Record(line)) = position;
        let text = |handle: &[u8]| String::from_utf8(handle.to_vec());
        let whole =
            |values: Values<'_>| values.iter().map(|value| BatchValue::whole((&value).into())).collect();
        let operation = match entry {
            InputEntry::Record(handle, values) => {
                text(handle).map(|handle| BatchOperation::Create(handle, whole(values)))
            }
            InputEntry::Deleted(handle) => text(handle).map(BatchOperation::Delete),
            InputEntry::Operation(operation) => Ok(operation),
            InputEntry::Homed(_) => return Some(Ok(Err(invalid(line, None, HOMED)))),
            InputEntry::Name(name) => return Some(Ok(Err(invalid(line, Some(name), NO_OPERATION)))),
            InputEntry::Refused(handle, why) => return Some(Ok(Err(invalid(line, handle.as_deref(), &why)))),
        };
        Some(Ok(operation.map_or_else(
            |_| Err(InvalidBlock { line, problem: LineProblem::NotUtf8 }),
            |operation| Ok(BatchBlock { line, operation }),
        )))
    }
}

const HOMED: &str =
    "a homed prefix is no operation on a record: home it with `hdl store home`, or HOME in a batch file";
const NO_OPERATION: &str = "a name without an operation";

fn invalid(line: u64, handle: Option<&str>, why: &str) -> InvalidBlock {
    let handle = handle.map(|handle| format!("{handle}: ")).unwrap_or_default();
    InvalidBlock { line, problem: LineProblem::NoRecord(format!("{handle}{why}")) }
}
