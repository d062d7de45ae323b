//! The full check of a layer, made once before it goes live.

use crate::format::{
    BASE_AT, BASE_BITS, BUCKET_LEN, BUCKET_SLOTS, BUCKET_SUM_MASK, KEY_LEN_MAX, LayerHeader, SECTION_ALIGN,
    Sha256Sum, VALUES_COUNT_MAX, VALUES_LEN_MAX, bucket, bucket_sum, buckets_for, checksum, hash_key,
};
use crate::reader::Layer;
use crate::record::{EncodedRecord, RecordRefusal};
use core::fmt;
use core::ops::{ControlFlow, Range};
use handle_proto::{Handle, Value, limit};
use sha2::{Digest as _, Sha256};
use std::vec::Vec;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes that are read between two calls of `passed`.
pub(crate) const PASS_LEN: usize = 8 << 20;

/// The content of a verified layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of records that are not tombstones.
    pub handles_count: u64,
    /// Number of tombstones.
    pub tombstones_count: u64,
    /// Number of public values.
    pub public_count: u64,
    /// Number of values that are not public.
    pub private_count: u64,
    /// Number of homed prefixes, if the layer has the table.
    pub homed_count: Option<u64>,
    /// Bytes of records.
    pub records_len: u64,
    /// Bytes of the index.
    pub index_len: u64,
}

/// The first fault of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerFault {
    /// Offset of the fault in the file.
    pub at: u64,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is a sentence in `Display`")]
pub enum FaultKind {
    RecordsSum,
    HomedSum,
    IndexSum,
    ContentDigest,
    RecordSum,
    BucketSum,
    Padding,
    Record,
    Key,
    Order,
    Values,
    Value(RecordRefusal),
    Position,
    Public,
    Tombstone,
    NotFound,
    Counts,
    Slots,
    Buckets,
    Homed,
    Within,
}

impl fmt::Display for LayerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            FaultKind::RecordsSum => "the records do not match their checksum",
            FaultKind::HomedSum => "the homed prefixes do not match their checksum",
            FaultKind::IndexSum => "the index does not match its checksum",
            FaultKind::ContentDigest => "the content does not match its digest",
            FaultKind::RecordSum => "a record does not match its checksum",
            FaultKind::BucketSum => "a bucket of an index does not match its checksum",
            FaultKind::Padding => "the padding is not zero",
            FaultKind::Record => "the lengths in a record contradict each other",
            FaultKind::Key => "a key is not in the form that lookups use",
            FaultKind::Order => "records are not in ascending order",
            FaultKind::Values => "the values of a record do not decode",
            FaultKind::Value(why) => return write!(f, "a record cannot be served (byte {}): {why}", self.at),
            FaultKind::Position => "a private value has an invalid position",
            FaultKind::Public => "a value is in the wrong group, public or private, for its permissions",
            FaultKind::Tombstone => "a tombstone has values",
            FaultKind::NotFound => "the index does not lead to an existing record",
            FaultKind::Counts => "the number of records differs from the header",
            FaultKind::Slots => "the index has slots without a record",
            FaultKind::Buckets => "the index has the wrong size for its records",
            FaultKind::Homed => "the table of homed prefixes contradicts itself",
            FaultKind::Within => "the prefix of a record is not homed, but the header says that all are",
        };
        write!(f, "{text} (byte {})", self.at)
    }
}

impl core::error::Error for LayerFault {}

impl LayerFault {
    /// Whether the bytes changed after they were written. Otherwise the builder wrote them wrong.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::RecordsSum | FaultKind::HomedSum | FaultKind::IndexSum | FaultKind::ContentDigest
        )
    }
}

fn ensure(is_right: bool, at: u64, what: FaultKind) -> Result<(), LayerFault> {
    if is_right { Ok(()) } else { Err(LayerFault { at, kind: what }) }
}

/// Checks all of a layer: checksums, each record and value, that each record is found, the index
/// and the homed prefixes.
///
/// # Errors
/// The first fault.
pub fn layer<B: AsRef<[u8]>>(layer: &Layer<B>) -> Result<VerifyReport, LayerFault> {
    let report = layer_in_steps(layer, |_| ControlFlow::Continue(()))?;
    Ok(report.expect("nothing stops it"))
}

/// Checks the table of homed prefixes alone, by its checksum.
///
/// # Errors
/// When it is damaged.
pub fn homed_sum<B: AsRef<[u8]>>(layer: &Layer<B>) -> Result<(), LayerFault> {
    let header = layer.header();
    let homed = section(layer, header.homed_at..header.index_at);
    ensure(checksum(homed) == header.homed_sum, header.homed_at, FaultKind::HomedSum)
}

/// As [`layer`], in steps of some mebibytes. After each step `passed` is called with the range of
/// the file that was read; some ranges are read twice. The caller can give the memory of a range
/// back, wait, or stop the check, which returns `None`.
///
/// # Errors
/// The first fault.
pub fn layer_in_steps<B: AsRef<[u8]>>(
    layer: &Layer<B>,
    mut passed: impl FnMut(Range<u64>) -> ControlFlow<()>,
) -> Result<Option<VerifyReport>, LayerFault> {
    // Checksums first: if one is wrong, the disk is at fault, otherwise the builder.
    match sums(layer, &mut passed)? {
        ControlFlow::Continue(()) => content(layer, passed, |_, _| {}),
        ControlFlow::Break(()) => Ok(None),
    }
}

/// Checks all of a layer but the checksums of its sections, and calls `each` with the offset of
/// each record and the record. Otherwise as [`layer_in_steps`].
pub(crate) fn content<'l, B: AsRef<[u8]>>(
    layer: &'l Layer<B>,
    mut passed: impl FnMut(Range<u64>) -> ControlFlow<()>,
    each: impl FnMut(u64, &EncodedRecord<'l>),
) -> Result<Option<VerifyReport>, LayerFault> {
    let header = layer.header();
    match records(layer, header.records_at..header.homed_at, &mut passed, each)? {
        Some(checked) => all_but_records(layer, &checked, passed),
        None => Ok(None),
    }
}

/// As [`layer_in_steps`], but without the checksums of sections, and by two threads, each of which
/// checks half of the records. It finds all damage except in the table of homed prefixes: each
/// record and each bucket of the index has a checksum of its own.
///
/// # Errors
/// The first fault of one of the halves.
pub fn content_in_halves<B: AsRef<[u8]> + Sync>(
    layer: &Layer<B>,
    passed: impl Fn(Range<u64>) -> ControlFlow<()> + Sync,
) -> Result<Option<VerifyReport>, LayerFault> {
    let header = layer.header();
    let whole = header.records_at..header.homed_at;
    // It comes from the index, which may be damaged.
    let Some(middle) = layer.view(false).middle().filter(|at| whole.contains(at)) else {
        return content(layer, passed, |_, _| {});
    };
    let check = |range| records(layer, range, &mut |range| passed(range), |_, _| {});
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| check(whole.start..middle));
        let second = check(middle..whole.end);
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    let (Some(first), Some(second)) = (first?, second?) else { return Ok(None) };
    let is_record = first.end == middle && second.first.is_some();
    ensure(is_record, middle, FaultKind::NotFound)?;
    ensure(first.last < second.first, middle, FaultKind::Order)?;
    let [first_report, second_report] = [first.report, second.report];
    let report = VerifyReport {
        handles_count: first_report.handles_count + second_report.handles_count,
        tombstones_count: first_report.tombstones_count + second_report.tombstones_count,
        public_count: first_report.public_count + second_report.public_count,
        private_count: first_report.private_count + second_report.private_count,
        ..second_report
    };
    all_but_records(layer, &CheckedRecords { report, ..second }, passed)
}

/// Records that have been checked.
struct CheckedRecords<'l> {
    /// Their numbers.
    report: VerifyReport,
    /// Hash and key of the first one.
    first: Option<(u64, &'l [u8])>,
    /// Hash and key of the last one.
    last: Option<(u64, &'l [u8])>,
    /// Offset of the first byte behind them.
    end: u64,
}

/// Checks the records in a range of the file, up to padding or the end of the range.
fn records<'l, B: AsRef<[u8]>>(
    layer: &'l Layer<B>,
    range: Range<u64>,
    passed: &mut impl FnMut(Range<u64>) -> ControlFlow<()>,
    mut each: impl FnMut(u64, &EncodedRecord<'l>),
) -> Result<Option<CheckedRecords<'l>>, LayerFault> {
    let header = layer.header();
    // Buckets and records are in the same order.
    let index_at = |hash| header.index_at + bucket(hash, header.index_buckets) * BUCKET_LEN as u64;
    let (mut at, mut rest) = (range.start, section(layer, range));
    let mut checked = CheckedRecords { report: VerifyReport::default(), first: None, last: None, end: at };
    let (mut passed_to, mut index_passed_to, mut indexes) = (at, header.index_at, Vec::new());
    while !is_padding(rest, SECTION_ALIGN) {
        if at - passed_to >= PASS_LEN as u64 {
            let index_at = checked.last.map_or(index_passed_to, |(hash, _)| index_at(hash));
            if passed(passed_to..at).is_break() || passed(index_passed_to..index_at).is_break() {
                return Ok(None);
            }
            (passed_to, index_passed_to) = (at, index_at);
        }
        let split = EncodedRecord::split(rest);
        let (record, behind) = split.ok_or(LayerFault { at, kind: FaultKind::Record })?;
        ensure(record.is_whole(), at, FaultKind::RecordSum)?;
        let hash = hash_key(layer.seed(), record.key());
        ensure(is_key(record.key(), layer.folds()), at, FaultKind::Key)?;
        let this = Some((hash, record.key()));
        ensure(checked.last < this, at, FaultKind::Order)?;
        checked.last = this;
        if checked.first.is_none() {
            (checked.first, index_passed_to) = (this, index_at(hash));
        }
        values(&record, &mut indexes).map_err(|what| LayerFault { at, kind: what })?;
        let prefix = Handle(record.key()).naming_authority();
        let is_homed = || layer.homed().is_some_and(|homed| homed.has(prefix));
        ensure(!layer.is_within() || record.is_tombstone() || is_homed(), at, FaultKind::Within)?;
        let found = layer.find(hash, record.key()).ok().flatten();
        let is_found = found.is_some_and(|found| core::ptr::eq(found.as_bytes(), record.as_bytes()));
        ensure(is_found, at, FaultKind::NotFound)?;
        let report = &mut checked.report;
        report.handles_count += u64::from(!record.is_tombstone());
        report.tombstones_count += u64::from(record.is_tombstone());
        report.public_count += record.public_count() as u64;
        report.private_count += record.private_count() as u64;
        each(at, &record);
        (at, rest) = (at + record.as_bytes().len() as u64, behind);
    }
    checked.end = at;
    Ok(Some(checked))
}

/// Checks what is not a record: their number, the index and the homed prefixes.
fn all_but_records<B: AsRef<[u8]>>(
    layer: &Layer<B>,
    checked: &CheckedRecords<'_>,
    mut passed: impl FnMut(Range<u64>) -> ControlFlow<()>,
) -> Result<Option<VerifyReport>, LayerFault> {
    let (header, report) = (layer.header(), checked.report);
    let counts = (report.handles_count, report.tombstones_count, report.private_count);
    let counted = (header.handles_count, header.tombstones_count, header.private_count);
    ensure(counts == counted, header.records_at, FaultKind::Counts)?;
    let records_count = report.handles_count + report.tombstones_count;
    if index_slots(layer, records_count, &mut passed)?.is_break() {
        return Ok(None);
    }
    let section = section(layer, header.homed_at..header.index_at);
    let homed_count = homed(layer, section).map_err(|what| LayerFault { at: header.homed_at, kind: what })?;
    let (records_len, index_len) = (header.records_len, header.index_len);
    Ok(Some(VerifyReport { records_len, index_len, homed_count, ..report }))
}

/// The bytes of a section.
fn section<B: AsRef<[u8]>>(layer: &Layer<B>, range: Range<u64>) -> &[u8] {
    let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
    layer.as_bytes().get(start..end).unwrap_or_default()
}

/// Compares the sections with their checksums.
pub(crate) fn sums<B: AsRef<[u8]>>(
    layer: &Layer<B>,
    passed: &mut impl FnMut(Range<u64>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, LayerFault> {
    let header = layer.header();
    let (mut sum, mut content) = (Xxh3Default::new(), Sha256::new());
    let records = in_pieces(layer, header.records_at..header.homed_at, passed, |piece| {
        sum.update(piece);
        content.update(piece);
    });
    if records.is_break() {
        return Ok(records);
    }
    if sum.digest() != header.records_sum {
        return Err(LayerFault { at: first_damaged(layer), kind: FaultKind::RecordsSum });
    }
    homed_sum(layer)?;
    content.update(section(layer, header.homed_at..header.index_at));
    sum.reset();
    let index = in_pieces(layer, header.index_at..header.file_len, passed, |piece| {
        sum.update(piece);
        content.update(piece);
    });
    if index.is_break() {
        return Ok(index);
    }
    ensure(sum.digest() == header.index_sum, header.index_at, FaultKind::IndexSum)?;
    let is_content = content.finalize()[..] == header.content_digest.0;
    ensure(is_content, header.records_at, FaultKind::ContentDigest)?;
    Ok(ControlFlow::Continue(()))
}

/// Calls `each` with the pieces of a section, and `passed` with the range of each piece after it.
fn in_pieces<'l, B: AsRef<[u8]>>(
    layer: &'l Layer<B>,
    range: Range<u64>,
    passed: &mut impl FnMut(Range<u64>) -> ControlFlow<()>,
    mut each: impl FnMut(&'l [u8]),
) -> ControlFlow<()> {
    let mut at = range.start;
    for piece in section(layer, range).chunks(PASS_LEN) {
        each(piece);
        passed(at..at + piece.len() as u64)?;
        at += piece.len() as u64;
    }
    ControlFlow::Continue(())
}

/// Offset of the first record that does not match its checksum, as far as it can be determined.
fn first_damaged<B: AsRef<[u8]>>(layer: &Layer<B>) -> u64 {
    let mut records = layer.records();
    loop {
        let at = records.at();
        match records.next() {
            Some(Ok(record)) if record.is_whole() => {}
            // If no record is damaged, the padding behind the last one is.
            Some(_) | None => return at,
        }
    }
}

fn is_padding(bytes: &[u8], align: usize) -> bool {
    bytes.len() < align && bytes.iter().all(|&byte| byte == 0)
}

fn is_key(key: &[u8], folds: bool) -> bool {
    let is_folded = !key.iter().any(u8::is_ascii_lowercase);
    key.len() <= KEY_LEN_MAX && key.contains(&b'/') && (is_folded || !folds)
}

fn values(record: &EncodedRecord<'_>, indexes: &mut Vec<i32>) -> Result<(), FaultKind> {
    let ensure = |is_right: bool, what| if is_right { Ok(()) } else { Err(what) };
    let mut values_len = record.public_bytes().len();
    indexes.clear();
    let mut public = record.public_bytes();
    for _ in 0..record.public_count() {
        let (value, rest) = Value::split(public).map_err(|_| FaultKind::Values)?;
        ensure(value.is_public(), FaultKind::Public)?;
        one(&value, indexes)?;
        public = rest;
    }
    ensure(public.is_empty(), FaultKind::Values)?;
    let mut private = record.private();
    let mut position_min = 0;
    let mut private_count = 0;
    for (position, encoded) in &mut private {
        let (value, _) = Value::split(encoded).map_err(|_| FaultKind::Values)?;
        ensure(!value.is_public(), FaultKind::Public)?;
        one(&value, indexes)?;
        let position = usize::from(position);
        ensure((position_min..record.values_count()).contains(&position), FaultKind::Position)?;
        position_min = position + 1;
        private_count += 1;
        values_len += encoded.len();
    }
    ensure(private_count == record.private_count() && private.rest().is_empty(), FaultKind::Values)?;
    ensure(record.values_count() <= VALUES_COUNT_MAX, FaultKind::Value(RecordRefusal::ValuesCount))?;
    ensure(values_len <= VALUES_LEN_MAX, FaultKind::Value(RecordRefusal::ValuesLen))?;
    ensure(!record.is_tombstone() || record.values_count() == 0, FaultKind::Tombstone)?;
    indexes.sort_unstable();
    match indexes.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(FaultKind::Value(RecordRefusal::IndexTwice(pair[0]))),
        None => Ok(()),
    }
}

fn one(value: &Value<'_>, indexes: &mut Vec<i32>) -> Result<(), FaultKind> {
    let count = value.references.len();
    if value.index < 1 {
        return Err(FaultKind::Value(RecordRefusal::Index(value.index)));
    }
    if count > limit::REFERENCES_COUNT_MAX {
        return Err(FaultKind::Value(RecordRefusal::ReferencesCount { index: value.index, count }));
    }
    indexes.push(value.index);
    Ok(())
}

/// Checks that the index holds nothing but the `count` entries, all of which were found.
fn index_slots<B: AsRef<[u8]>>(
    layer: &Layer<B>,
    count: u64,
    passed: &mut impl FnMut(Range<u64>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, LayerFault> {
    let header = layer.header();
    let fault = |kind| LayerFault { at: header.index_at, kind };
    ensure_buckets(header.index_len, header.index_buckets, count, header.records_len).map_err(fault)?;
    let mut used_in_all = Ok(0);
    let pieces = in_pieces(layer, header.index_at..header.file_len, passed, |piece| {
        used_in_all = used_in_all.and_then(|sum| Ok(sum + used_slots(piece)?));
    });
    match used_in_all.map_err(fault)? {
        used if used == count || pieces.is_break() => Ok(pieces),
        _ => Err(fault(FaultKind::Slots)),
    }
}

/// As [`index_slots`], for the index of the homed prefixes, of `len` bytes together.
fn slots(index: &[u8], buckets: u64, count: u64, len: u64) -> Result<(), FaultKind> {
    ensure_buckets(index.len() as u64, buckets, count, len)?;
    if used_slots(index)? == count { Ok(()) } else { Err(FaultKind::Slots) }
}

/// Checks the size of an index for `count` entries of `len` bytes together.
fn ensure_buckets(index_len: u64, buckets: u64, count: u64, len: u64) -> Result<(), FaultKind> {
    let is_right = buckets == buckets_for(count, len) && index_len.is_multiple_of(BUCKET_LEN as u64);
    if is_right { Ok(()) } else { Err(FaultKind::Buckets) }
}

/// Number of slots in use in a part of an index. The others are empty.
fn used_slots(part: &[u8]) -> Result<u64, FaultKind> {
    part.as_chunks::<BUCKET_LEN>().0.iter().try_fold(0, |sum, bucket| Ok(sum + used_slots_of(bucket)?))
}

fn used_slots_of(bucket: &[u8; BUCKET_LEN]) -> Result<u64, FaultKind> {
    let (words, _) = bucket.as_chunks::<2>();
    let (fingerprints, distances) = (&words[..BUCKET_SLOTS], &words[BUCKET_SLOTS..2 * BUCKET_SLOTS]);
    let used = fingerprints.iter().take_while(|word| **word != [0; 2]).count();
    let unused = fingerprints[used..].iter().chain(&distances[used..]);
    let base = bucket[BASE_AT..].first_chunk().map_or(0, |base| u64::from_le_bytes(*base));
    if (base & BUCKET_SUM_MASK) >> BASE_BITS != bucket_sum(bucket) {
        return Err(FaultKind::BucketSum);
    }
    let has_base = base & !BUCKET_SUM_MASK != 0;
    if unused.into_iter().any(|word| *word != [0; 2]) || (used == 0 && has_base) {
        return Err(FaultKind::Slots);
    }
    Ok(used as u64)
}

fn homed<B: AsRef<[u8]>>(layer: &Layer<B>, section: &[u8]) -> Result<Option<u64>, FaultKind> {
    let Some(homed) = layer.homed() else { return Ok(None) };
    let mut last: Option<(u64, &[u8])> = None;
    let mut prefixes = homed.iter();
    let mut count = 0;
    for prefix in &mut prefixes {
        let is_folded = !prefix.iter().any(u8::is_ascii_lowercase);
        let this = (hash_key(layer.seed(), prefix), prefix);
        if last.is_some_and(|last| last >= this) || !is_folded || !homed.has(prefix) {
            return Err(FaultKind::Homed);
        }
        last = Some(this);
        count += 1;
    }
    if count != homed.len() {
        return Err(FaultKind::Homed);
    }
    if !is_padding(prefixes.rest(), SECTION_ALIGN) {
        return Err(FaultKind::Padding);
    }
    let header = layer.header();
    let index_len = usize::try_from(header.homed_index_len).unwrap_or(usize::MAX);
    let (index, entries) = section.split_at_checked(index_len).unwrap_or_default();
    let entries_len = entries.len() - prefixes.rest().len();
    slots(index, header.homed_buckets, count, entries_len as u64)?;
    Ok(Some(count))
}

/// The digest that names a layer in a manifest: that of its header, which has the digest of
/// everything behind it.
#[must_use]
pub fn layer_digest(header: &LayerHeader) -> Sha256Sum {
    Sha256Sum(Sha256::digest(header.encode()).into())
}
