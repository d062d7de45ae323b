//! The stored form of a record: the last transaction that changed it, and its values in wire form.

use super::StoreError;
use handle_proto::{Value, Values};

/// Bytes before the values: number, time and count.
pub(super) const HEAD_LEN: usize = 20;

/// A stored record: its values, and the time of their last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRecord<'a> {
    /// The last transaction that changed it.
    pub id: u64,
    /// The time of that transaction, in milliseconds since 1970; each change of a record has a
    /// later one.
    pub unix_ms: u64,
    /// The values in the order of answers.
    pub values: Values<'a>,
}

impl<'a> StoreRecord<'a> {
    /// Decodes a stored record.
    ///
    /// # Errors
    /// When the bytes are not a record.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, StoreError> {
        const NO_RECORD: StoreError = StoreError::Damaged("a record does not decode");
        let (head, items) = bytes.split_first_chunk().ok_or(NO_RECORD)?;
        // Number, time, count.
        let [i0, i1, i2, i3, i4, i5, i6, i7, t0, t1, t2, t3, t4, t5, t6, t7, c0, c1, c2, c3]: [u8; HEAD_LEN] =
            *head;
        let count = u32::from_be_bytes([c0, c1, c2, c3]) as usize;
        Ok(Self {
            id: u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            unix_ms: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            values: Values::from_encoded(count, items).map_err(|_| NO_RECORD)?,
        })
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.unix_ms.to_be_bytes());
        self.values.encode(out);
    }

    /// The value with this index.
    #[must_use]
    pub fn value(&self, index: i32) -> Option<Value<'a>> {
        self.values.iter().find(|value| value.index == index)
    }
}

/// An owned, checked [`StoreRecord`] in its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordBuf(Vec<u8>);

impl RecordBuf {
    /// Checks and takes the stored form.
    ///
    /// # Errors
    /// When the bytes are not a record.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, StoreError> {
        StoreRecord::decode(&bytes)?;
        Ok(Self(bytes))
    }

    /// A record with `values` that no transaction of this store has made.
    #[must_use]
    pub fn unlogged(values: Values<'_>) -> Self {
        let mut bytes = Vec::new();
        StoreRecord { id: 0, unix_ms: 0, values }.encode(&mut bytes);
        Self(bytes)
    }

    /// Bytes of the stored form.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a record has a head, so it is never empty")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The record.
    #[must_use]
    pub fn view(&self) -> StoreRecord<'_> {
        StoreRecord::decode(&self.0).expect("checked when it was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_refuse_every_truncation() {
        let mut storage = Vec::new();
        let values =
            Values::build([Value::new(1, b"URL", b"http://a"), Value::new(7, b"", b"")], &mut storage);
        let record = StoreRecord { id: 0x0102_0304_0506_0708, unix_ms: 9, values };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(StoreRecord::decode(&bytes).unwrap(), record);
        assert_eq!(record.value(7).unwrap().index, 7);
        assert!(record.value(2).is_none());
        for len in 0..bytes.len() {
            assert!(RecordBuf::from_bytes(bytes[..len].to_vec()).is_err(), "cut to {len}");
        }
        bytes.push(0);
        assert!(RecordBuf::from_bytes(bytes).is_err(), "a byte too many");
    }
}
