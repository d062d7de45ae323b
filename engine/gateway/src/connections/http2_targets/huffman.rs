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

/// The decoded string; `None` if it is not one.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(bytes.len() * 2);
    let (mut code, mut length) = (0_u32, 0);
    let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1)));
    for bit in bits {
        (code, length) = (code << 1 | bit, length + 1);
        let of_length = TABLE.lengths.get(length)?;
        if let Some(nth) = code.checked_sub(of_length.first).filter(|&nth| nth < of_length.count) {
            decoded.push(TABLE.bytes[of_length.at + nth as usize]);
            (code, length) = (0, 0);
        }
    }
    // The rest is the start of the longest code, which has ones only.
    (length < 8 && code == (1 << length) - 1).then_some(decoded)
}
