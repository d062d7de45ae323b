//! Decoding of the Huffman code of HPACK. RFC 7541 section 5.2 and appendix B.

/// Length in bits of the code of each byte. Codes are given in the order of their lengths, and of
/// bytes among those of equal length.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Length of the longest code.
const LENGTH_MAX: usize = 30;

/// The codes of one length.
#[derive(Clone, Copy)]
struct CodeLength {
    /// The first of them.
    first: u32,
    /// How many there are.
    count: u32,
    /// Where their bytes begin in [`CodeTable::bytes`].
    at: usize,
}

struct CodeTable {
    lengths: [CodeLength; LENGTH_MAX + 1],
    /// All bytes in the order of their codes.
    bytes: [u8; 256],
}

const TABLE: CodeTable = {
    let mut table =
        CodeTable { lengths: [CodeLength { first: 0, count: 0, at: 0 }; LENGTH_MAX + 1], bytes: [0; 256] };
    let (mut length, mut at, mut code) = (1, 0, 0);
    while length <= LENGTH_MAX {
        code <<= 1;
        table.lengths[length] = CodeLength { first: code, count: 0, at };
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                #[expect(clippy::cast_possible_truncation, reason = "below 256")]
                let of_code = byte as u8;
                table.bytes[at] = of_code;
                (at, code) = (at + 1, code + 1);
                table.lengths[length].count += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    table
};

/// Bits that one look into [`SHORT`] sees.
const SHORT_BITS: u32 = 8;

/// What the next bits begin with: a byte and the length of its code, which is 0 for longer codes.
/// Most paths have only short ones.
const SHORT: [(u8, u8); 1 << SHORT_BITS] = {
    let mut short = [(0, 0); 1 << SHORT_BITS];
    let mut length = 1;
    while length <= SHORT_BITS {
        let of_length = TABLE.lengths[length as usize];
        let mut nth = 0;
        while nth < of_length.count {
            let unread_bits = SHORT_BITS - length;
            let first = (of_length.first + nth) << unread_bits;
            let mut at = first;
            while at < first + (1 << unread_bits) {
                #[expect(clippy::cast_possible_truncation, reason = "at most 8")]
                let length = length as u8;
                short[at as usize] = (TABLE.bytes[of_length.at + nth as usize], length);
                at += 1;
            }
            nth += 1;
        }
        length += 1;
    }
    short
};

/// The bytes of a compressed string. After the last one, [`is_whole`](Self::is_whole) says whether
/// the string is one.
#[derive(Clone, Debug)]
pub(super) struct HuffmanBytes<'b> {
    rest: std::slice::Iter<'b, u8>,
    /// Bits that were taken from `rest` and not decoded, from the highest on.
    bits: u64,
    bits_count: u32,
    is_broken: bool,
}

impl<'b> HuffmanBytes<'b> {
    /// The bytes of `compressed`.
    pub(super) fn new(compressed: &'b [u8]) -> Self {
        Self { rest: compressed.iter(), bits: 0, bits_count: 0, is_broken: false }
    }

    /// Whether all was decoded but the start of the longest code, which has ones only.
    pub(super) fn is_whole(&self) -> bool {
        let is_over = !self.is_broken && self.bits_count < u8::BITS && self.rest.len() == 0;
        is_over && self.bits == !(u64::MAX >> self.bits_count)
    }

    /// A byte with a code that is longer than one look.
    fn next_long(&mut self) -> Option<u8> {
        for length in SHORT_BITS + 1..=self.bits_count {
            let Some(of_length) = TABLE.lengths.get(length as usize) else {
                self.is_broken = true;
                return None;
            };
            let code = u32::try_from(self.bits >> (u64::BITS - length)).unwrap_or(u32::MAX);
            if let Some(nth) = code.checked_sub(of_length.first).filter(|&nth| nth < of_length.count) {
                self.take(length);
                return Some(TABLE.bytes[of_length.at + nth as usize]);
            }
        }
        None
    }

    const fn take(&mut self, length: u32) {
        self.bits <<= length;
        self.bits_count -= length;
    }
}

impl Iterator for HuffmanBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        while self.bits_count <= u64::BITS - u8::BITS
            && let Some(&byte) = self.rest.next()
        {
            self.bits |= u64::from(byte) << (u64::BITS - u8::BITS - self.bits_count);
            self.bits_count += u8::BITS;
        }
        let (byte, length) = SHORT[usize::from(self.bits.to_be_bytes()[0])];
        if length == 0 {
            return self.next_long();
        }
        // Behind the last bits there are zeros.
        let is_there = u32::from(length) <= self.bits_count;
        is_there.then(|| {
            self.take(length.into());
            byte
        })
    }
}

/// The decoded string; `None` if it is not one.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = HuffmanBytes::new(bytes);
    let decoded = bytes.by_ref().collect();
    bytes.is_whole().then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: bit for bit.
    fn decode_bits(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        let (mut code, mut length) = (0_u32, 0);
        for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1))) {
            (code, length) = ((code << 1) | bit, length + 1);
            let of_length = TABLE.lengths.get(length)?;
            if let Some(nth) = code.checked_sub(of_length.first).filter(|&nth| nth < of_length.count) {
                decoded.push(TABLE.bytes[of_length.at + nth as usize]);
                (code, length) = (0, 0);
            }
        }
        (length < 8 && code == (1 << length) - 1).then_some(decoded)
    }

    /// The compressed string, with ones after its last bit.
    fn encode(bytes: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for byte in bytes {
            let length = usize::from(LENGTHS[usize::from(*byte)]);
            let of_length = TABLE.lengths[length];
            let nth = (0..).find(|nth| TABLE.bytes[of_length.at + nth] == *byte).unwrap();
            bits += &format!("{:0length$b}", of_length.first as usize + nth);
        }
        let padded = format!("{bits:1<0$}", bits.len().next_multiple_of(8));
        padded
            .as_bytes()
            .chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| (byte << 1) | (bit - b'0')))
            .collect()
    }

    proptest! {
        #[test]
        fn strings_are_those_of_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..40), cut in 0..40_usize) {
            prop_assert_eq!(decode(&bytes), decode_bits(&bytes));
            let mut compressed = encode(&bytes);
            prop_assert_eq!(decode(&compressed), Some(bytes));
            compressed.truncate(cut);
            prop_assert_eq!(decode(&compressed), decode_bits(&compressed));
        }
    }

    #[test]
    fn each_byte_has_a_code_of_its_length() {
        for byte in 0..=255 {
            for bytes in [vec![byte], vec![byte; 9], vec![b'a', byte, b'/']] {
                assert_eq!(decode(&encode(&bytes)), Some(bytes.clone()), "{bytes:?}");
            }
        }
    }
}
