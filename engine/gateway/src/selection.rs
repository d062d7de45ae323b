//! The values that a request names: by index, and by type.
//!
//! What a request names is compared with each value of a record, and is part of questions to other
//! services. Its length is bounded, so that neither costs more than a small request should.

use crate::parameters::Parameters;
use handle_client::Question;
use handle_client::question::AnswerWants;
use handle_proto::Value;
use handle_proto::value::type_matches;
use std::fmt;

/// Most bytes of the indexes and types of a request, with four more for each.
pub const SELECTION_LEN_MAX: usize = 1024;

/// A request names more than [`SELECTION_LEN_MAX`] bytes of indexes and types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionTooLong;

impl fmt::Display for SelectionTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Too many indexes and types: at most {SELECTION_LEN_MAX} bytes, with 4 more for each")
    }
}

impl std::error::Error for SelectionTooLong {}

/// Indexes and types, of bounded length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueSelection {
    indexes: Vec<i32>,
    types: Vec<Vec<u8>>,
    len: usize,
}

impl ValueSelection {
    /// The parameters `index` and `type`.
    ///
    /// # Errors
    /// One sentence, when an index is not a number or the selection is too long.
    pub fn of_parameters(parameters: &Parameters<'_>) -> Result<Self, String> {
        let mut selection = Self::default();
        for text in parameters.all("index") {
            let index = text.parse().map_err(|_| format!("Invalid index: {text:?} is not a number"))?;
            selection.add_index(index).map_err(|error| error.to_string())?;
        }
        for kind in parameters.all("type") {
            selection.add_type(kind.as_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(selection)
    }

    fn grow(&mut self, len: usize) -> Result<(), SelectionTooLong> {
        self.len = self.len.saturating_add(len).saturating_add(4);
        match self.len > SELECTION_LEN_MAX {
            true => Err(SelectionTooLong),
            false => Ok(()),
        }
    }

    /// Adds the value with this index.
    ///
    /// # Errors
    /// When the selection is too long.
    pub fn add_index(&mut self, index: i32) -> Result<(), SelectionTooLong> {
        self.grow(0)?;
        self.indexes.push(index);
        Ok(())
    }

    /// Adds the values with this type.
    ///
    /// # Errors
    /// When the selection is too long.
    pub fn add_type(&mut self, kind: &[u8]) -> Result<(), SelectionTooLong> {
        self.grow(kind.len())?;
        self.types.push(kind.to_vec());
        Ok(())
    }

    /// Whether nothing is selected, which means all values.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.indexes.is_empty() && self.types.is_empty()
    }

    /// Whether a type is selected.
    #[must_use]
    pub const fn has_types(&self) -> bool {
        !self.types.is_empty()
    }

    /// Whether a value is selected: by its index or by its type, or because nothing is.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        self.is_empty()
            || self.indexes.contains(&value.index)
            || self.types.iter().any(|kind| type_matches(kind, value.kind))
    }

    /// The question for these values of `handle`.
    #[must_use]
    pub fn question(&self, handle: &[u8], wants: AnswerWants) -> Question {
        let (indexes, types) = (self.indexes.clone(), self.types.clone());
        Question { handle: handle.to_vec(), indexes, types, wants }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_has_at_most_its_length() {
        let mut selection = ValueSelection::default();
        selection.add_type(&[b'a'; SELECTION_LEN_MAX - 8]).unwrap();
        selection.add_index(1).unwrap();
        assert_eq!(selection.clone().add_index(2), Err(SelectionTooLong));
        assert_eq!(selection.add_type(b""), Err(SelectionTooLong));
        assert_eq!((&*selection.indexes, selection.types.len()), (&[1][..], 1));
        let mut indexes = ValueSelection::default();
        let count = (0..).take_while(|&index| indexes.add_index(index).is_ok()).count();
        assert_eq!(count, SELECTION_LEN_MAX / 4);
    }
}
