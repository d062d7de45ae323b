//! The values that a request names: by index, and by type.
//!
//! What a request names is compared with each value of a record, and is part of questions to other
//! services. Its length is bounded, so that neither costs more than a small request should.

use handle_client::Question;
use handle_client::question::{AnswerWants, sorted_lists};
use handle_console::parameters::Parameters;
use handle_proto::Value;
use handle_proto::fold;
use handle_proto::value::type_matches;
use handle_proto::wire::query::SortedQuery;
use std::fmt;
use std::sync::OnceLock;

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

/// Indexes and types, of bounded length. Those that are repeated are there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueSelection {
    indexes: Vec<i32>,
    types: Vec<Vec<u8>>,
    /// Length of all that were named, also repeatedly.
    len: usize,
    /// Both, sorted, once they are compared with values; `None` in it if they are few.
    sorted: OnceLock<Option<SortedQuery>>,
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
        self.sorted = OnceLock::new();
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
        if !self.indexes.contains(&index) {
            self.indexes.push(index);
        }
        Ok(())
    }

    /// Adds the values with this type.
    ///
    /// # Errors
    /// When the selection is too long.
    pub fn add_type(&mut self, kind: &[u8]) -> Result<(), SelectionTooLong> {
        self.grow(kind.len())?;
        if !self.types.iter().any(|known| fold::eq(known, kind)) {
            self.types.push(kind.to_vec());
        }
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
        if self.is_empty() {
            return true;
        }
        match self.sorted.get_or_init(|| sorted_lists(&self.indexes, &self.types)) {
            Some(sorted) => sorted.selects(value),
            None => {
                self.indexes.contains(&value.index)
                    || self.types.iter().any(|kind| type_matches(kind, value.kind))
            }
        }
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
    fn what_is_repeated_is_selected_once_and_many_select_the_same_as_each_alone() {
        let mut selection = ValueSelection::default();
        for _ in 0..5 {
            selection.add_index(7).unwrap();
            selection.add_type(b"URL").unwrap();
            selection.add_type(b"url").unwrap();
        }
        assert_eq!((&*selection.indexes, selection.types.len()), (&[7][..], 1));
        let value = |index, kind| Value::new(index, kind, b"");
        let values = [
            value(7, &b"X"[..]),
            value(8, b"Url"),
            value(9, b"URL.A"),
            value(10, b"T3"),
            value(11, b"S.x.y"),
            value(12, b"S"),
            value(13, b"SX"),
        ];
        let selected = |selection: &ValueSelection| {
            values
                .iter()
                .filter(|value| selection.selects(value))
                .map(|value| value.index)
                .collect::<Vec<_>>()
        };
        assert_eq!(selected(&selection), [7, 8]);
        for kind in ["T1", "T2", "T3", "T4", "T5", "T6", "S."] {
            selection.add_type(kind.as_bytes()).unwrap();
        }
        let question = selection.question(b"1/a", AnswerWants::default());
        assert!(selection.indexes.len() + selection.types.len() > 8, "so many are sorted");
        let one_by_one: Vec<i32> =
            values.iter().filter(|value| question.selects(value)).map(|value| value.index).collect();
        assert_eq!((selected(&selection), one_by_one), (vec![7, 8, 10, 11, 12], vec![7, 8, 10, 11, 12]));
    }

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
