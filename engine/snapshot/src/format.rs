//! The layout of a layer file: every offset, width and flag.
//!
//! A layer is a header and three sections without gaps: records, homed prefixes, index. All numbers
//! are little-endian. `docs/snapshot-format.md` describes the same layout for readers in other
//! languages.

use core::fmt;
use handle_proto::limit;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// First bytes of a layer.
pub const MAGIC: [u8; 8] = *b"HDLLAYER";
/// Version of this layout. Readers refuse every other version.
pub const VERSION: u32 = 1;
/// Bytes of the header. Not a power of two, so that no flipped bit turns the offset of the first
/// record into zero, which means that there is none.
pub const HEADER_LEN: usize = 320;
const _: () = assert!(!HEADER_LEN.is_power_of_two());
/// Every section begins at a multiple of this, the length of a cache line.
pub const SECTION_ALIGN: usize = 64;

/// Header flag: local names are folded, so that all keys are upper case.
pub const FLAG_FOLDS: u32 = 1;
/// Header flag: the layer has the full table of homed prefixes. Without it, the table of an older
/// layer counts.
pub const FLAG_HOMED: u32 = 2;
/// Header flag: the prefix of every record is in the layer's own table of homed prefixes, so that a
/// lookup need not search the table.
pub const FLAG_WITHIN: u32 = 4;

/// Records begin at a multiple of this; the index counts in units of it.
pub const RECORD_ALIGN: usize = 8;
/// Bytes before the key of a record.
pub const RECORD_HEAD_LEN: usize = 20;
/// Bytes of the checksum at the start of a record. It covers the rest of the record.
pub const RECORD_SUM_LEN: usize = 4;
/// Record flag: the handle was deleted. Older layers are not searched.
pub const RECORD_TOMBSTONE: u8 = 1;
/// Bytes of the stored position before each private value.
pub const POSITION_LEN: usize = 2;

/// Bytes of a bucket of the index.
pub const BUCKET_LEN: usize = 64;
/// Slots of a bucket. Each has a fingerprint and a distance.
pub const BUCKET_SLOTS: usize = 14;
/// Number of records for which a builder adds one bucket.
pub const BUCKET_HANDLES: u64 = 8;
/// Bytes of records for which a builder adds one bucket, if that gives more buckets. Distances
/// reach four times as far.
pub const BUCKET_SPAN_LEN: u64 = 1 << 17;
/// Offset of the distances in a bucket, behind the fingerprints.
pub const DISTANCES_AT: usize = 28;
/// Offset of the base in a bucket.
pub const BASE_AT: usize = 56;
/// Bits of a base that are an offset, in units of [`RECORD_ALIGN`]. The bits above hold the
/// checksum of the bucket.
pub const BASE_BITS: u32 = 40;
/// Bits of the checksum of a bucket.
pub const BUCKET_SUM_BITS: u32 = 23;
/// Bit of a base: a record whose hash belongs into this bucket, or into an earlier one, is in a
/// later one.
pub const BASE_GOES_ON: u64 = 1 << 63;
const _: () =
    assert!(BASE_BITS + BUCKET_SUM_BITS == 63 && LAYER_LEN_MAX / RECORD_ALIGN as u64 <= 1 << BASE_BITS);
const _: () =
    assert!(2 * BUCKET_SLOTS == DISTANCES_AT && 2 * DISTANCES_AT == BASE_AT && BASE_AT + 8 == BUCKET_LEN);
/// Most buckets that a lookup searches for one hash, and that a builder spreads one hash over.
pub const PROBE_BUCKETS_MAX: usize = 64;

/// Most bytes of a key.
pub const KEY_LEN_MAX: usize = limit::HANDLE_LEN_MAX;
/// Most values of a record.
pub const VALUES_COUNT_MAX: usize = limit::VALUES_COUNT_MAX;
/// Bytes of a message that are reserved for everything but values.
pub const MESSAGE_OVERHEAD_LEN: usize = limit::MESSAGE_OVERHEAD_LEN;
/// Most bytes of all values of a record together, so that one message can carry them.
pub const VALUES_LEN_MAX: usize = limit::VALUES_LEN_MAX;
/// Most bytes of a record: the largest of each part.
pub const RECORD_LEN_MAX: usize =
    (RECORD_HEAD_LEN + KEY_LEN_MAX + VALUES_LEN_MAX + VALUES_COUNT_MAX * POSITION_LEN)
        .next_multiple_of(RECORD_ALIGN);
/// Most bytes of a layer.
pub const LAYER_LEN_MAX: u64 = 1 << 43;

/// Turns a handle into its key, in place. If the service folds, the key is upper case.
///
/// If the service does not fold, global handles are not folded either; shown by
/// `conversations.jsonl`, category `case`. Names without a slash have no key of their own: they
/// stand for `0.NA/` and the folded name.
pub fn fold_key(handle: &mut [u8], folds: bool) {
    if folds {
        handle_proto::fold::fold(handle);
    }
}

/// The hash by which keys are ordered and found.
#[must_use]
#[inline]
pub fn hash_key(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// The checksum of headers, sections and manifests.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of a record, over all its bytes but the checksum itself.
#[inline]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
pub fn record_sum(record: &[u8]) -> u32 {
    xxh3_64(record.get(RECORD_SUM_LEN..).unwrap_or_default()) as u32
}

/// The checksum of a bucket. The bits that store it count as zero.
#[must_use]
pub fn bucket_sum(bucket: &[u8; BUCKET_LEN]) -> u64 {
    let mut bytes = *bucket;
    let (_, base) = bytes.split_last_chunk_mut::<8>().expect("a bucket ends with its base");
    *base = (u64::from_le_bytes(*base) & !BUCKET_SUM_MASK).to_le_bytes();
    xxh3_64(&bytes) & (BUCKET_SUM_MASK >> BASE_BITS)
}

/// The bits of a base that hold the checksum of the bucket.
pub const BUCKET_SUM_MASK: u64 = ((1 << BUCKET_SUM_BITS) - 1) << BASE_BITS;

/// The bucket, below `buckets`, that a hash belongs into. Buckets are in the order of hashes.
#[must_use]
pub const fn bucket(hash: u64, buckets: u64) -> u64 {
    ((hash as u128 * buckets as u128) >> 64) as u64
}

/// Number of buckets that hashes are spread over, for `count` entries of `len` bytes together.
#[must_use]
pub const fn buckets_for(count: u64, len: u64) -> u64 {
    let (by_count, by_len) = (count.div_ceil(BUCKET_HANDLES), len.div_ceil(BUCKET_SPAN_LEN));
    let buckets = if by_count < by_len { by_len } else { by_count };
    if buckets == 0 { 1 } else { buckets }
}

/// The low bits of a hash, as a slot stores them; never zero, which marks an empty slot.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
pub const fn fingerprint(hash: u64) -> u16 {
    if hash as u16 == 0 { 1 } else { hash as u16 }
}

/// Why bytes do not open as a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// Fewer bytes than a header.
    Short {
        /// The length of the file.
        len: u64,
    },
    /// The bytes do not begin with the magic of a layer.
    Magic,
    /// The header is damaged, or was never written because a builder did not finish.
    Checksum,
    /// The version is unknown to this program.
    Version(u32),
    /// The file has another length than its header says.
    Length {
        /// The length in the header.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// A field of the header contradicts another.
    Layout {
        /// Name of the field.
        field: &'static str,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len } => write!(f, "{len} bytes are too few for the header of a layer"),
            Self::Magic => f.write_str("this is not a snapshot layer"),
            Self::Checksum => f.write_str("the header does not match its checksum"),
            Self::Version(version) if *version > VERSION => write!(
                f,
                "the layout is version {version}, this program reads version {VERSION}: update it, or publish the \
                 records with this program, to an empty directory"
            ),
            Self::Version(version) => write!(
                f,
                "the layout is version {version}, this program reads version {VERSION}: publish the records again, to \
                 an empty directory"
            ),
            Self::Length { expected, found } => {
                write!(
                    f,
                    "the file has {found} bytes, but its header says {expected}; copy or publish it again"
                )
            }
            Self::Layout { field } => write!(f, "the header has an invalid {field}"),
        }
    }
}

impl core::error::Error for OpenError {}

/// The header of a layer. Offsets and lengths are bytes of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is a row of the table in docs/snapshot-format.md")]
pub struct LayerHeader {
    pub flags: u32,
    pub file_len: u64,
    pub seed: u64,
    pub created_unix_ms: u64,
    pub handles_count: u64,
    pub tombstones_count: u64,
    pub records_at: u64,
    pub records_len: u64,
    pub records_sum: u64,
    pub homed_at: u64,
    pub homed_len: u64,
    pub homed_sum: u64,
    pub homed_count: u64,
    pub homed_buckets: u64,
    pub homed_index_len: u64,
    pub index_at: u64,
    pub index_len: u64,
    pub index_sum: u64,
    pub index_buckets: u64,
    pub private_count: u64,
    pub content_digest: Sha256Sum,
}

/// A SHA-256 digest. It is written in 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Sum(pub [u8; 32]);

impl fmt::Display for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Sha256Sum {
    /// Parses 64 hexadecimal digits in lower case; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let is_canonical =
            digits.len() == 64 && digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
        if !is_canonical {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// The offset of each field of the header.
#[expect(missing_docs, reason = "each is a row of the table in docs/snapshot-format.md")]
pub mod header_at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const FLAGS: usize = 12;
    pub const FILE_LEN: usize = 16;
    pub const SEED: usize = 24;
    pub const CREATED_UNIX_MS: usize = 32;
    pub const HANDLES_COUNT: usize = 40;
    pub const TOMBSTONES_COUNT: usize = 48;
    pub const RECORDS_AT: usize = 56;
    pub const RECORDS_LEN: usize = 64;
    pub const RECORDS_SUM: usize = 72;
    pub const HOMED_AT: usize = 80;
    pub const HOMED_LEN: usize = 88;
    pub const HOMED_SUM: usize = 96;
    pub const HOMED_COUNT: usize = 104;
    pub const HOMED_BUCKETS: usize = 112;
    pub const HOMED_INDEX_LEN: usize = 120;
    pub const INDEX_AT: usize = 128;
    pub const INDEX_LEN: usize = 136;
    pub const INDEX_SUM: usize = 144;
    pub const INDEX_BUCKETS: usize = 152;
    pub const PRIVATE_COUNT: usize = 160;
    pub const CONTENT_DIGEST: usize = 168;
    pub const RESERVED: usize = 200;
    pub const HEADER_SUM: usize = 312;
}
const _: () = assert!(header_at::HEADER_SUM + 8 == HEADER_LEN && HEADER_LEN.is_multiple_of(SECTION_ALIGN));

impl LayerHeader {
    /// Decodes and checks a header. `found_len` is the length of the file.
    ///
    /// # Errors
    /// When the header is damaged, or describes sections that are not exactly the rest of the file.
    pub fn decode(bytes: &[u8], found_len: u64) -> Result<Self, OpenError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(OpenError::Short { len: found_len });
        };
        let u32_at = |at: usize| u32::from_le_bytes(*chunk(bytes, at));
        let u64_at = |at: usize| u64::from_le_bytes(*chunk(bytes, at));
        if *chunk(bytes, header_at::MAGIC) != MAGIC {
            return Err(OpenError::Magic);
        }
        // Another version may have its checksum elsewhere.
        let version = u32_at(header_at::VERSION);
        if version != VERSION {
            return Err(OpenError::Version(version));
        }
        // The checksum is checked before the other fields, so that a torn header is reported as
        // torn and not by whatever its fields happen to say.
        if checksum(&bytes[..header_at::HEADER_SUM]) != u64_at(header_at::HEADER_SUM) {
            return Err(OpenError::Checksum);
        }
        if bytes[header_at::RESERVED..header_at::HEADER_SUM].iter().any(|&byte| byte != 0) {
            return Err(OpenError::Layout { field: "reserved field" });
        }
        let header = Self {
            flags: u32_at(header_at::FLAGS),
            file_len: u64_at(header_at::FILE_LEN),
            seed: u64_at(header_at::SEED),
            created_unix_ms: u64_at(header_at::CREATED_UNIX_MS),
            handles_count: u64_at(header_at::HANDLES_COUNT),
            tombstones_count: u64_at(header_at::TOMBSTONES_COUNT),
            records_at: u64_at(header_at::RECORDS_AT),
            records_len: u64_at(header_at::RECORDS_LEN),
            records_sum: u64_at(header_at::RECORDS_SUM),
            homed_at: u64_at(header_at::HOMED_AT),
            homed_len: u64_at(header_at::HOMED_LEN),
            homed_sum: u64_at(header_at::HOMED_SUM),
            homed_count: u64_at(header_at::HOMED_COUNT),
            homed_buckets: u64_at(header_at::HOMED_BUCKETS),
            homed_index_len: u64_at(header_at::HOMED_INDEX_LEN),
            index_at: u64_at(header_at::INDEX_AT),
            index_len: u64_at(header_at::INDEX_LEN),
            index_sum: u64_at(header_at::INDEX_SUM),
            index_buckets: u64_at(header_at::INDEX_BUCKETS),
            private_count: u64_at(header_at::PRIVATE_COUNT),
            content_digest: Sha256Sum(*chunk(bytes, header_at::CONTENT_DIGEST)),
        };
        header.check(found_len)?;
        Ok(header)
    }

    fn check(&self, found_len: u64) -> Result<(), OpenError> {
        let layout = |is_right: bool, field| {
            if is_right { Ok(()) } else { Err(OpenError::Layout { field }) }
        };
        if self.file_len != found_len {
            return Err(OpenError::Length { expected: self.file_len, found: found_len });
        }
        layout(self.flags & !(FLAG_FOLDS | FLAG_HOMED | FLAG_WITHIN) == 0, "flag")?;
        layout(self.flags & (FLAG_HOMED | FLAG_WITHIN) != FLAG_WITHIN, "flag")?;
        layout(self.file_len <= LAYER_LEN_MAX, "length of the file")?;
        let is_section = |len: u64| len.is_multiple_of(SECTION_ALIGN as u64);
        let ends_at = |at: u64, len: u64| at.checked_add(len);
        layout(self.records_at == HEADER_LEN as u64 && is_section(self.records_len), "records section")?;
        layout(ends_at(self.records_at, self.records_len) == Some(self.homed_at), "homed section")?;
        layout(is_section(self.homed_len) && self.homed_index_len <= self.homed_len, "homed section")?;
        layout(ends_at(self.homed_at, self.homed_len) == Some(self.index_at), "index section")?;
        layout(ends_at(self.index_at, self.index_len) == Some(self.file_len), "index section")?;
        let is_index = |buckets: u64, len: u64| {
            len.is_multiple_of(BUCKET_LEN as u64) && buckets >= 1 && buckets <= len / BUCKET_LEN as u64
        };
        layout(is_index(self.index_buckets, self.index_len), "number of buckets")?;
        if self.flags & FLAG_HOMED == 0 {
            layout(self.homed_len == 0 && self.homed_count == 0, "homed section")?;
        } else {
            layout(is_index(self.homed_buckets, self.homed_index_len), "number of homed buckets")?;
        }
        let slots = |len: u64| len / BUCKET_LEN as u64 * BUCKET_SLOTS as u64;
        let records_count = self.handles_count.checked_add(self.tombstones_count);
        layout(records_count.is_some_and(|count| count <= slots(self.index_len)), "number of records")?;
        layout(self.homed_count <= slots(self.homed_index_len), "number of homed prefixes")
    }

    /// The bytes of the header, with its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(header_at::MAGIC, &MAGIC);
        put(header_at::VERSION, &VERSION.to_le_bytes());
        put(header_at::FLAGS, &self.flags.to_le_bytes());
        for (at, number) in [
            (header_at::FILE_LEN, self.file_len),
            (header_at::SEED, self.seed),
            (header_at::CREATED_UNIX_MS, self.created_unix_ms),
            (header_at::HANDLES_COUNT, self.handles_count),
            (header_at::TOMBSTONES_COUNT, self.tombstones_count),
            (header_at::RECORDS_AT, self.records_at),
            (header_at::RECORDS_LEN, self.records_len),
            (header_at::RECORDS_SUM, self.records_sum),
            (header_at::HOMED_AT, self.homed_at),
            (header_at::HOMED_LEN, self.homed_len),
            (header_at::HOMED_SUM, self.homed_sum),
            (header_at::HOMED_COUNT, self.homed_count),
            (header_at::HOMED_BUCKETS, self.homed_buckets),
            (header_at::HOMED_INDEX_LEN, self.homed_index_len),
            (header_at::INDEX_AT, self.index_at),
            (header_at::INDEX_LEN, self.index_len),
            (header_at::INDEX_SUM, self.index_sum),
            (header_at::INDEX_BUCKETS, self.index_buckets),
            (header_at::PRIVATE_COUNT, self.private_count),
        ] {
            put(at, &number.to_le_bytes());
        }
        put(header_at::CONTENT_DIGEST, &self.content_digest.0);
        let sum = checksum(&bytes[..header_at::HEADER_SUM]);
        bytes[header_at::HEADER_SUM..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

fn chunk<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("each field ends inside the header")
}

/// The bytes of a record before its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHead {
    /// The checksum of the record; see [`record_sum`].
    pub sum: u32,
    /// Bytes of the whole record, a multiple of [`RECORD_ALIGN`].
    pub record_len: u32,
    /// Bytes of the key.
    pub key_len: u16,
    /// Number of public values.
    pub public_count: u16,
    /// Bytes of the public values.
    pub public_len: u32,
    /// Number of values that are not public.
    pub private_count: u16,
    /// [`RECORD_TOMBSTONE`] or 0.
    pub flags: u8,
    /// Zero bytes at the end of the record.
    pub padding: u8,
}

impl RecordHead {
    /// Decodes the fields; the caller checks them.
    #[must_use]
    pub const fn decode(bytes: &[u8; RECORD_HEAD_LEN]) -> Self {
        let [s0, s1, s2, s3, l0, l1, l2, l3, k0, k1, c0, c1, p0, p1, p2, p3, v0, v1, flags, padding] = *bytes;
        Self {
            sum: u32::from_le_bytes([s0, s1, s2, s3]),
            record_len: u32::from_le_bytes([l0, l1, l2, l3]),
            key_len: u16::from_le_bytes([k0, k1]),
            public_count: u16::from_le_bytes([c0, c1]),
            public_len: u32::from_le_bytes([p0, p1, p2, p3]),
            private_count: u16::from_le_bytes([v0, v1]),
            flags,
            padding,
        }
    }

    /// The bytes before the key.
    #[must_use]
    pub const fn encode(&self) -> [u8; RECORD_HEAD_LEN] {
        let [s0, s1, s2, s3] = self.sum.to_le_bytes();
        let [l0, l1, l2, l3] = self.record_len.to_le_bytes();
        let [k0, k1] = self.key_len.to_le_bytes();
        let [c0, c1] = self.public_count.to_le_bytes();
        let [p0, p1, p2, p3] = self.public_len.to_le_bytes();
        let [v0, v1] = self.private_count.to_le_bytes();
        let (flags, padding) = (self.flags, self.padding);
        [s0, s1, s2, s3, l0, l1, l2, l3, k0, k1, c0, c1, p0, p1, p2, p3, v0, v1, flags, padding]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_every_flip_is_seen() {
        let header = LayerHeader {
            flags: FLAG_FOLDS,
            file_len: 320 + 64 + 64,
            seed: 7,
            created_unix_ms: 1,
            handles_count: 1,
            records_at: 320,
            records_len: 64,
            homed_at: 384,
            index_at: 384,
            index_len: 64,
            index_buckets: 1,
            ..LayerHeader::default()
        };
        let bytes = header.encode();
        assert_eq!(LayerHeader::decode(&bytes, 448), Ok(header));
        assert_eq!(LayerHeader::decode(&bytes, 447), Err(OpenError::Length { expected: 448, found: 447 }));
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(LayerHeader::decode(&bytes, 448).is_err(), "bit {bit}");
        }
        for version in [0, 2, u32::MAX] {
            let mut bytes = bytes;
            bytes[header_at::VERSION..][..4].copy_from_slice(&version.to_le_bytes());
            assert_eq!(LayerHeader::decode(&bytes, 448), Err(OpenError::Version(version)));
        }
        for len in 0..HEADER_LEN {
            assert_eq!(LayerHeader::decode(&bytes[..len], 448), Err(OpenError::Short { len: 448 }));
        }
    }

    #[test]
    fn buckets_are_enough_for_many_and_for_long_records() {
        assert_eq!([0, 1, 8, 9].map(|count| buckets_for(count, 64)), [1, 1, 1, 2]);
        let len = RECORD_LEN_MAX as u64;
        assert_eq!(buckets_for(1000, 1000 * len), (1000 * len).div_ceil(BUCKET_SPAN_LEN));
        assert_eq!((bucket(u64::MAX, 10), bucket(0, 10)), (9, 0));
        assert_eq!([0x1_0000, 0x1_0001, 0xdead_beef].map(fingerprint), [1, 1, 0xbeef]);
    }

    #[test]
    fn global_handles_fold_everywhere() {
        for (handle, folds, key) in
            [("10.1/a", true, "10.1/A"), ("10.1/a", false, "10.1/a"), ("0.na/a", false, "0.na/a")]
        {
            let mut folded = std::vec::Vec::from(handle.as_bytes());
            fold_key(&mut folded, folds);
            assert_eq!(folded, key.as_bytes(), "{handle} {folds}");
        }
    }
}
