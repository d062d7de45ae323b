//! The types of keys and values in the file, and their bytes.

use super::super::tables::number_in;

/// A type of keys or values in the file.
pub(super) trait RowPart: redb::Value + Send + 'static {
    /// Reads the bytes that [`with_bytes`](Self::with_bytes) makes.
    fn read(bytes: &[u8]) -> Self::SelfType<'_>;
    /// Calls `work` with the bytes.
    fn with_bytes<R>(part: Self::SelfType<'_>, work: impl FnOnce(&[u8]) -> R) -> R;
}

impl RowPart for &'static [u8] {
    fn read(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn with_bytes<R>(part: &[u8], work: impl FnOnce(&[u8]) -> R) -> R {
        work(part)
    }
}

impl RowPart for &'static str {
    fn read(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    fn with_bytes<R>(part: &str, work: impl FnOnce(&[u8]) -> R) -> R {
        work(part.as_bytes())
    }
}

impl RowPart for () {
    fn read(_: &[u8]) {}

    fn with_bytes<R>((): (), work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[])
    }
}

impl RowPart for u64 {
    fn read(bytes: &[u8]) -> Self {
        number_in(bytes)
    }

    fn with_bytes<R>(part: Self, work: impl FnOnce(&[u8]) -> R) -> R {
        work(&part.to_be_bytes())
    }
}

impl RowPart for (u64, u32) {
    fn read(bytes: &[u8]) -> Self {
        (number_in(bytes), short_number_in(bytes.get(8..).unwrap_or_default()))
    }

    fn with_bytes<R>((first, second): Self, work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[&first.to_be_bytes()[..], &second.to_be_bytes()].concat())
    }
}

impl RowPart for (u64, u64) {
    fn read(bytes: &[u8]) -> Self {
        (number_in(bytes), number_in(bytes.get(8..).unwrap_or_default()))
    }

    fn with_bytes<R>((first, second): Self, work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[first.to_be_bytes(), second.to_be_bytes()].concat())
    }
}

impl RowPart for (u64, u64, u32) {
    fn read(bytes: &[u8]) -> Self {
        let (first, rest) = bytes.split_at_checked(8).unwrap_or_default();
        let (second, third) = <(u64, u32) as RowPart>::read(rest);
        (number_in(first), second, third)
    }

    fn with_bytes<R>((first, second, third): Self, work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[&first.to_be_bytes()[..], &second.to_be_bytes(), &third.to_be_bytes()].concat())
    }
}

impl RowPart for (&'static [u8], u64) {
    fn read(bytes: &[u8]) -> (&[u8], u64) {
        let (name, number) = bytes.split_at(bytes.len().saturating_sub(8));
        (name, number_in(number))
    }

    fn with_bytes<R>((name, number): (&[u8], u64), work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[name, &number.to_be_bytes()].concat())
    }
}

impl RowPart for (bool, &'static [u8]) {
    fn read(bytes: &[u8]) -> (bool, &[u8]) {
        bytes.split_first().map_or((false, &[]), |(&first, rest)| (first != 0, rest))
    }

    fn with_bytes<R>((first, rest): (bool, &[u8]), work: impl FnOnce(&[u8]) -> R) -> R {
        work(&[&[u8::from(first)], rest].concat())
    }
}

fn short_number_in(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
