//! Records modelled on `tests/vectors/dois.jsonl`, with the same lengths and frequencies of
//! prefixes. All names differ.

use anyhow::Context as _;
use handle_proto::json::RecordLine;
use handle_proto::{Handle, Value, Values};
use std::collections::BTreeSet;
use std::path::Path;

/// Base-36 digits at the end of each name, which make it unique.
const DIGITS: u32 = 6;
/// Number of different names.
const NAMES_COUNT: u64 = 36u64.pow(DIGITS);

/// Makes the record of any number below [`RecordGenerator::RECORDS_MAX`].
///
/// A record has a URL, the name of a journal and an administrator: about 250 bytes in a layer.
#[derive(Debug)]
pub struct RecordGenerator {
    models: Vec<RecordModel>,
}

/// The parts of a real record that generated records share.
#[derive(Debug)]
struct RecordModel {
    /// The handle without its last characters.
    stem: Vec<u8>,
    /// The URL without the handle.
    url: Vec<u8>,
    journal: Vec<u8>,
    admin: Vec<u8>,
    timestamp: u32,
}

/// Buffers of one record, reused for the next.
#[derive(Debug, Default)]
pub struct RecordRoom {
    handle: Vec<u8>,
    url: Vec<u8>,
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct BenchRecord<'a> {
    /// The handle, in the spelling of its owner.
    pub handle: &'a [u8],
    /// Its values.
    pub values: [Value<'a>; 3],
}

impl RecordGenerator {
    /// Most records that differ.
    pub const RECORDS_MAX: u64 = NAMES_COUNT;

    /// Creates a generator, with the real records as models.
    ///
    /// # Errors
    /// When the real records cannot be read.
    pub fn new() -> anyhow::Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/dois.jsonl");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let models = text.lines().map(RecordModel::parse).collect::<anyhow::Result<_>>()?;
        Ok(Self { models })
    }

    /// Returns the prefixes of all records.
    #[must_use]
    pub fn prefixes(&self) -> BTreeSet<&[u8]> {
        self.models.iter().map(|model| Handle(&model.stem).naming_authority()).collect()
    }

    /// Appends the handle of record `n`.
    pub fn handle(&self, n: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.model(n).stem);
        push_digits(n, out);
    }

    /// Makes record `n`.
    pub fn record<'a>(&'a self, n: u64, room: &'a mut RecordRoom) -> BenchRecord<'a> {
        let model = self.model(n);
        room.handle.clear();
        self.handle(n, &mut room.handle);
        room.url.clear();
        room.url.extend_from_slice(&model.url);
        room.url.extend_from_slice(&room.handle);
        let value = |index, kind, data| Value { timestamp: model.timestamp, ..Value::new(index, kind, data) };
        let values = [
            value(1, b"URL", &*room.url),
            value(3, b"JOURNAL", &model.journal),
            value(100, b"HS_ADMIN", &model.admin),
        ];
        BenchRecord { handle: &room.handle, values }
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than the number of models")]
    fn model(&self, n: u64) -> &RecordModel {
        // Mixed, so that neighbours differ; the same on every machine.
        &self.models[(mix(n) % self.models.len() as u64) as usize]
    }
}

impl RecordModel {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let mut encoded = Vec::new();
        let record = RecordLine::parse(line, &mut encoded)?;
        let values = Values::from_encoded(record.values_count, &encoded)?;
        let data = |kind: &[u8]| values.iter().find(|value| value.kind == kind).map(|value| value.data);
        let handle = record.handle.as_bytes();
        let stem_len =
            handle.len().saturating_sub(DIGITS as usize).max(Handle(handle).naming_authority().len() + 1);
        let url = data(b"URL").context("a URL")?;
        Ok(Self {
            stem: handle[..stem_len].to_vec(),
            url: url.strip_suffix(handle).context("a URL that ends with the handle")?.to_vec(),
            journal: data(b"JOURNAL").context("a JOURNAL")?.to_vec(),
            admin: data(b"HS_ADMIN").context("a HS_ADMIN")?.to_vec(),
            timestamp: values.iter().next().map_or(0, |value| value.timestamp),
        })
    }
}

fn push_digits(n: u64, out: &mut Vec<u8>) {
    // The factor is coprime to 36, so that different numbers stay different, and neighbours look
    // unlike.
    let mut rest = n.wrapping_mul(1_000_000_007) % NAMES_COUNT;
    for _ in 0..DIGITS {
        out.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(rest % 36).unwrap_or_default()]);
        rest /= 36;
    }
}

/// Pseudorandom numbers from a seed, by SplitMix64.
#[derive(Clone, Debug)]
pub struct BenchRandom(pub u64);

impl BenchRandom {
    /// Returns the next number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        // The upper half of the product is as uniform as 64 bits allow.
        ((u128::from(mix(self.0)) * u128::from(end)) >> 64) as u64
    }

    /// Returns the next number below `end`, as an index.
    ///
    /// # Panics
    /// Never, because the number is below `end`.
    pub fn below_usize(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("the number is below a usize")
    }
}

const fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_records_are_of_usual_size() {
        let generator = RecordGenerator::new().unwrap();
        let mut room = RecordRoom::default();
        let (mut handles, mut len) = (BTreeSet::new(), 0);
        for n in 0..20_000 {
            let record = generator.record(n, &mut room);
            len += record.handle.len() + 16;
            len += record.values.iter().map(Value::encoded_len).sum::<usize>();
            handles.insert(record.handle.to_vec());
        }
        assert_eq!(handles.len(), 20_000);
        assert!((230..270).contains(&(len / 20_000)), "{} bytes a record", len / 20_000);
    }
}
