//! Encodes one record.

use crate::format::{
    KEY_LEN_MAX, RECORD_ALIGN, RECORD_HEAD_LEN, RECORD_LEN_MAX, RECORD_SUM_LEN, RECORD_TOMBSTONE, RecordHead,
    VALUES_COUNT_MAX, VALUES_LEN_MAX, fold_key, record_sum,
};
use crate::record::RecordRefusal;
use handle_proto::{Value, limit};
use std::vec::Vec;

/// Encodes records, and reuses its buffers.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    private: Vec<u8>,
    indexes: Vec<i32>,
}

impl Encoder {
    /// Appends a record to `out`, whose length is a multiple of [`RECORD_ALIGN`] before and after.
    pub(crate) fn record<'v>(
        &mut self,
        out: &mut Vec<u8>,
        handle: &[u8],
        folds: bool,
        values: impl IntoIterator<Item = Value<'v>>,
    ) -> Result<(), RecordRefusal> {
        let start = out.len();
        let result = self.try_record(out, handle, folds, values);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn try_record<'v>(
        &mut self,
        out: &mut Vec<u8>,
        handle: &[u8],
        folds: bool,
        values: impl IntoIterator<Item = Value<'v>>,
    ) -> Result<(), RecordRefusal> {
        let start = begin(out, handle, folds)?;
        let public_at = out.len();
        self.private.clear();
        self.indexes.clear();
        let mut private_count = 0_u16;
        let mut values_len = 0;
        for (position, value) in values.into_iter().enumerate() {
            check(&value)?;
            values_len += value.encoded_len();
            if position >= VALUES_COUNT_MAX {
                return Err(RecordRefusal::ValuesCount);
            }
            if values_len > VALUES_LEN_MAX {
                return Err(RecordRefusal::ValuesLen);
            }
            self.indexes.push(value.index);
            if value.is_public() {
                value.encode(out);
            } else {
                private_count += 1;
                self.private.extend_from_slice(&small::<u16>(position).to_le_bytes());
                value.encode(&mut self.private);
            }
        }
        let public_len = small(out.len() - public_at);
        let public_count = small(self.indexes.len() - usize::from(private_count));
        self.check_indexes()?;
        out.extend_from_slice(&self.private);
        let key_len = small(handle.len());
        finish(out, start, RecordHead { key_len, public_count, public_len, private_count, ..<_>::default() });
        Ok(())
    }

    fn check_indexes(&mut self) -> Result<(), RecordRefusal> {
        if !self.indexes.is_sorted() {
            self.indexes.sort_unstable();
        }
        match self.indexes.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(RecordRefusal::IndexTwice(pair[0])),
            None => Ok(()),
        }
    }
}

/// Appends a tombstone: the record of a deleted handle.
pub(crate) fn tombstone(out: &mut Vec<u8>, handle: &[u8], folds: bool) -> Result<(), RecordRefusal> {
    let start = begin(out, handle, folds)?;
    let key_len = small(handle.len());
    finish(out, start, RecordHead { key_len, flags: RECORD_TOMBSTONE, ..<_>::default() });
    Ok(())
}

fn check(value: &Value<'_>) -> Result<(), RecordRefusal> {
    let count = value.references.len();
    if value.index < 1 {
        return Err(RecordRefusal::Index(value.index));
    }
    if count > limit::REFERENCES_COUNT_MAX {
        return Err(RecordRefusal::ReferencesCount { index: value.index, count });
    }
    Ok(())
}

fn begin(out: &mut Vec<u8>, handle: &[u8], folds: bool) -> Result<usize, RecordRefusal> {
    if handle.len() > KEY_LEN_MAX {
        return Err(RecordRefusal::HandleLen(handle.len()));
    }
    if !handle.contains(&b'/') {
        return Err(RecordRefusal::NoSlash);
    }
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEAD_LEN]);
    out.extend_from_slice(handle);
    fold_key(&mut out[start + RECORD_HEAD_LEN..], folds);
    Ok(start)
}

fn finish(out: &mut Vec<u8>, start: usize, mut head: RecordHead) {
    let len = out.len() - start;
    let record_len = len.next_multiple_of(RECORD_ALIGN);
    out.resize(start + record_len, 0);
    head.record_len = small(record_len);
    head.padding = small(record_len - len);
    let record = &mut out[start..];
    record[..RECORD_HEAD_LEN].copy_from_slice(&head.encode());
    let sum = record_sum(record);
    record[..RECORD_SUM_LEN].copy_from_slice(&sum.to_le_bytes());
}

const _: () = assert!(KEY_LEN_MAX <= u16::MAX as usize && VALUES_COUNT_MAX <= u16::MAX as usize);
const _: () = assert!(RECORD_LEN_MAX <= u32::MAX as usize);

fn small<T: TryFrom<usize>>(number: usize) -> T {
    T::try_from(number).ok().expect("keys, counts and records are limited to less")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EncodedRecord;
    use handle_proto::{Permissions, wire::list::References};

    fn encode(handle: &[u8], values: &[Value<'_>]) -> Result<Vec<u8>, RecordRefusal> {
        let mut out = Vec::new();
        Encoder::default().record(&mut out, handle, true, values.iter().copied())?;
        Ok(out)
    }

    fn private(index: i32) -> Value<'static> {
        Value { permissions: Permissions(0x0c), ..Value::new(index, b"HS_SECKEY", b"secret") }
    }

    #[test]
    fn keeps_order_and_separates_what_is_private() {
        let orders: [&[Value<'_>]; 5] = [
            &[],
            &[private(1)],
            &[
                private(9),
                Value::new(1, b"URL", b"http://a/"),
                private(3),
                private(2),
                Value::new(7, b"", b""),
            ],
            &[Value::new(2, b"URL", b"u"), private(1)],
            &[Value::new(2, b"URL", b"u"), Value::new(1, b"EMAIL", b"e")],
        ];
        for values in orders {
            let bytes = encode(b"10.1/abc", values).unwrap();
            let (record, rest) = EncodedRecord::split(&bytes).unwrap();
            assert!(rest.is_empty() && !record.is_tombstone());
            assert_eq!(record.key(), b"10.1/ABC");
            let again: Vec<_> = record.values_in_order().map(Result::unwrap).collect();
            assert_eq!(again, values);
            assert_eq!(record.private().count(), values.iter().filter(|value| !value.is_public()).count());
            assert_eq!(record.values_count(), values.len());
            for (position, encoded) in record.private() {
                assert_eq!(Value::split(encoded).unwrap().0, values[usize::from(position)]);
            }
            let public = handle_proto::Values::from_encoded(record.public_count(), record.public_bytes());
            let expected: Vec<_> = values.iter().copied().filter(Value::is_public).collect();
            assert_eq!(public.unwrap().iter().collect::<Vec<_>>(), expected);
            assert_eq!(record.public_values().map(Result::unwrap).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn damaged_records_end_early() {
        let whole = encode(b"10.1/a", &[private(3), Value::new(1, b"URL", b"u"), private(2)]).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some((record, _)) = EncodedRecord::split(&bytes) {
                assert!(record.values_in_order().count() <= usize::from(u16::MAX) * 2);
                record.private().count();
                let public = handle_proto::Values::from_encoded(record.public_count(), record.public_bytes());
                let is_whole = record.public_values().all(|value| value.is_ok());
                assert_eq!(is_whole, public.is_ok(), "bit {bit}");
                assert!(record.public_values().count() <= usize::from(u16::MAX) + 1);
            }
        }
        for len in 0..whole.len() {
            assert!(EncodedRecord::split(&whole[..len]).is_none());
        }
    }

    #[test]
    fn refuses_what_cannot_be_served() {
        let url = Value::new(1, b"URL", b"u");
        assert_eq!(encode(b"10.1", &[]), Err(RecordRefusal::NoSlash));
        assert_eq!(encode(b"", &[]), Err(RecordRefusal::NoSlash));
        assert_eq!(encode(&[b'/'; KEY_LEN_MAX + 1], &[]), Err(RecordRefusal::HandleLen(KEY_LEN_MAX + 1)));
        assert!(encode(&[b'/'; KEY_LEN_MAX], &[]).is_ok());
        assert_eq!(encode(b"1/a", &[Value { index: 0, ..url }]), Err(RecordRefusal::Index(0)));
        assert_eq!(encode(b"1/a", &[Value { index: -1, ..url }]), Err(RecordRefusal::Index(-1)));
        assert_eq!(encode(b"1/a", &[url, private(5), url]), Err(RecordRefusal::IndexTwice(1)));
        let many: Vec<_> = (1..=VALUES_COUNT_MAX + 1).map(|n| Value::new(small(n), b"", b"")).collect();
        assert_eq!(encode(b"1/a", &many), Err(RecordRefusal::ValuesCount));
        assert!(encode(b"1/a", &many[1..]).is_ok());
        let data = std::vec![0; VALUES_LEN_MAX - Value::LEN_MIN];
        assert!(encode(b"1/a", &[Value::new(1, b"", &data)]).is_ok());
        assert_eq!(encode(b"1/a", &[Value::new(1, b"x", &data)]), Err(RecordRefusal::ValuesLen));
        let references = [0; 8 * (limit::REFERENCES_COUNT_MAX + 1)];
        let of = |count: usize| References::from_encoded(count, &references[..8 * count]).unwrap();
        let max = limit::REFERENCES_COUNT_MAX;
        assert!(encode(b"1/a", &[Value { references: of(max), ..url }]).is_ok());
        assert_eq!(
            encode(b"1/a", &[Value { references: of(max + 1), ..url }]),
            Err(RecordRefusal::ReferencesCount { index: 1, count: max + 1 })
        );
    }
}
