//! Reference data without a published set: a file of records, or the answers of a first pass.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;

use handle_formats::input::{InputEntry, InputError, InputForm, InputPosition, InputReader, InputStream};
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::value::Values;
use handle_proto::wire::Message;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::{Handle, ResponseCode, fold};

use crate::error::Error;
use crate::judge::expect::{ContentSource, EachValue, SetContent, each_of};
use crate::read::{Interrupt, StoppableFile};

/// The records of a file in memory, with the semantics of a server that ignores case.
#[derive(Debug, Default)]
pub struct ExpectedRecords {
    records: HashMap<Vec<u8>, ExpectedRecord>,
    /// Prefixes that are homed or have a record.
    prefixes: HashSet<Vec<u8>>,
    homed: ListedPrefixes,
}

/// The homed prefixes that a file of records lists, folded.
#[derive(Debug, Default)]
pub(crate) struct ListedPrefixes(HashSet<Vec<u8>>);

impl ListedPrefixes {
    pub(crate) fn add(&mut self, prefix: Vec<u8>) {
        self.0.insert(prefix);
    }

    /// Whether a server with these prefixes answers for this handle. A file that lists none does
    /// not tell.
    pub(crate) fn has(&self, handle: &[u8]) -> bool {
        let name = folded(handle);
        let ancestors = std::iter::successors(Handle(&name).parent_prefix_record(), |ancestor| {
            ancestor.parent_prefix_record()
        });
        self.0.is_empty()
            || self.0.contains(Handle(&name).naming_authority())
            || ancestors.map(|ancestor| ancestor.0).any(|ancestor| self.0.contains(ancestor))
    }
}

#[derive(Debug)]
struct ExpectedRecord {
    count: u32,
    values: Vec<u8>,
    public_count: u32,
    public: Vec<u8>,
}

impl ExpectedRecords {
    /// Reads records, in lines of JSON as `hdl export` writes them, or in another form that
    /// `handle_formats::input` reads. Of two records with the same handle the later one counts.
    /// Checks from time to time whether to continue.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, a line is not a record, or the user stopped it.
    pub fn read(path: &Path, mut go_on: impl FnMut() -> ControlFlow<()>) -> Result<Self, Error> {
        let (read_error, mut interrupt) = (|source| Error::read(path, source), Interrupt::new(&mut go_on));
        let cannot_go_on = |error| match error {
            InputError::Io(error) => Error::read(path, error),
            other => Error::read(path, std::io::Error::other(other)),
        };
        let file = StoppableFile::open(path, &mut interrupt).map_err(read_error)?;
        let mut stream = InputStream::new(file).map_err(read_error)?;
        let form = InputForm::recognise(&mut stream).map_err(read_error)?.unwrap_or(InputForm::Json);
        let mut reader = InputReader::new(stream, form).map_err(cannot_go_on)?;
        let mut records = Self::default();
        while let Some((position, entry)) = reader.next().map_err(cannot_go_on)? {
            let added = match entry {
                InputEntry::Record(handle, values) => records.add(handle, values),
                InputEntry::Homed(prefix) => {
                    records.prefixes.insert(folded_prefix(prefix));
                    records.homed.add(folded_prefix(prefix));
                    Ok(())
                }
                InputEntry::Refused(_, why) => Err(why),
                InputEntry::Deleted(_) | InputEntry::Name(_) | InputEntry::Operation(_) => {
                    Err("not a record".to_owned())
                }
            };
            let (InputPosition::Line(line) | InputPosition::Record(line)) = position;
            added.map_err(|reason| Error::Line { path: path.to_owned(), line, reason })?;
        }
        Ok(records)
    }

    fn add(&mut self, handle: &[u8], record: Values<'_>) -> Result<(), String> {
        let count = u32::try_from(record.len()).map_err(|error| error.to_string())?;
        let values = record.as_bytes().to_vec();
        let (mut public_count, mut public) = (0, Vec::new());
        each_of(count, &values, &mut |value, encoded| {
            if value.is_public() {
                public_count += 1;
                public.extend_from_slice(encoded);
            }
        })?;
        let mut name = handle.to_vec();
        fold::fold(&mut name);
        if self.homed.has(&name) {
            self.prefixes.insert(Handle(&name).naming_authority().to_vec());
        }
        self.records.insert(name, ExpectedRecord { count, values, public_count, public });
        Ok(())
    }

    fn find(&self, handle: &[u8]) -> Option<&ExpectedRecord> {
        self.records.get(&folded(handle))
    }
}

/// A prefix without `0.NA/`, folded.
pub(crate) fn folded_prefix(homed: &[u8]) -> Vec<u8> {
    let mut name = homed.to_vec();
    fold::fold(&mut name);
    name.strip_prefix(PREFIX_RECORDS).map_or(name.clone(), <[u8]>::to_vec)
}

fn folded(handle: &[u8]) -> Vec<u8> {
    let mut name = Handle(handle).looked_up();
    fold::fold(&mut name);
    name
}

impl ContentSource for ExpectedRecords {
    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String> {
        Ok(match self.find(handle) {
            // A server refers to the service that has it, and a gateway may answer from its set.
            Some(_) if !self.homed.has(handle) => SetContent::Unknown,
            Some(record) if record.public_count == 0 => SetContent::NothingPublic,
            Some(record) => SetContent::Values { count: record.public_count, bytes: &record.public },
            None if self.prefixes.contains(Handle(&folded(handle)).naming_authority()) => SetContent::Absent,
            None => SetContent::NotHomed,
        })
    }

    fn each_value(&self, handle: &[u8], each: EachValue<'_>) -> Result<(), String> {
        self.find(handle).map_or(Ok(()), |record| each_of(record.count, &record.values, each))
    }
}

/// The answers of a server, by requested handle.
///
/// Names that were never requested count as absent. Handles without an answer are unknown.
#[derive(Debug, Default)]
pub struct LearnedAnswers(HashMap<Vec<u8>, Option<LearnedAnswer>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LearnedAnswer {
    code: ResponseCode,
    count: u32,
    values: Vec<u8>,
}

impl LearnedAnswers {
    /// Records that `handle` will be requested.
    pub fn expect(&mut self, handle: &[u8]) {
        self.0.entry(folded(handle)).or_default();
    }

    /// Copies the expected handles, without their answers.
    #[must_use]
    pub fn expected(&self) -> Self {
        Self(self.0.keys().map(|handle| (handle.clone(), None)).collect())
    }

    /// Records the answer about `handle`, without its envelope. Ignores what cannot be decoded.
    pub fn learn(&mut self, handle: &[u8], message: &[u8]) {
        let Ok(message) = Message::decode(message) else { return };
        let code = message.header.response_code;
        let values = match QueryAnswer::decode(message.body) {
            Ok(answer) if code == ResponseCode::SUCCESS => answer.values,
            _ => Values::EMPTY,
        };
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
        self.0
            .insert(folded(handle), Some(LearnedAnswer { code, count, values: values.as_bytes().to_vec() }));
    }

    /// Adds the answers of another thread.
    pub fn add(&mut self, other: Self) {
        for (handle, answer) in other.0 {
            let known = self.0.entry(handle).or_default();
            *known = answer.or_else(|| known.take());
        }
    }

    /// Handles with known answers, and those without an answer.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let known = self.0.values().flatten().count() as u64;
        (known, self.0.len() as u64 - known)
    }
}

impl ContentSource for LearnedAnswers {
    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String> {
        Ok(match self.0.get(&folded(handle)) {
            None => SetContent::NotHomed,
            Some(None) => SetContent::Unknown,
            Some(Some(answer)) if answer.code == ResponseCode::SUCCESS => {
                SetContent::Values { count: answer.count, bytes: &answer.values }
            }
            Some(Some(answer)) if answer.code == ResponseCode::VALUES_NOT_FOUND => SetContent::NothingPublic,
            Some(Some(answer)) => SetContent::Code(answer.code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Value;
    use std::io::Write as _;

    #[test]
    fn records_of_a_file_are_held() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let value = |index, permissions| {
            format!(r#"{{"index":{index},"type":"URL","data":"x","permissions":"{permissions}"}}"#)
        };
        writeln!(file, "{{\"homed\":\"0.NA/10.3\"}}\n{{\"homed\":\"0.NA/10.1\"}}").unwrap();
        writeln!(file, r#"{{"handle":"10.1/Open","values":[{},{}]}}"#, value(1, "1110"), value(2, "1100"))
            .unwrap();
        writeln!(file, "\n# comment\n{{\"handle\":\"10.1/closed\",\"values\":[{}]}}", value(1, "1100"))
            .unwrap();
        let read = || ExpectedRecords::read(file.path(), || ControlFlow::Continue(()));
        let records = read().unwrap();
        assert!(matches!(records.content_of(b"10.1/OPEN"), Ok(SetContent::Values { count: 1, .. })));
        assert_eq!(records.content_of(b"10.1/closed"), Ok(SetContent::NothingPublic));
        assert_eq!(records.content_of(b"10.1/none"), Ok(SetContent::Absent));
        assert_eq!(records.content_of(b"10.2/none"), Ok(SetContent::NotHomed));
        assert_eq!(records.content_of(b"10.3/none"), Ok(SetContent::Absent));
        let mut indexes = Vec::new();
        records.each_value(b"10.1/open", &mut |value, _| indexes.push(value.index)).unwrap();
        assert_eq!(indexes, [1, 2]);
        writeln!(&file, "{{\"handle\":\"0.NA/10.1\",\"values\":[{}]}}", value(1, "1110")).unwrap();
        let records = read().unwrap();
        assert_eq!(records.content_of(b"0.na/10.1"), Ok(SetContent::Unknown), "it is not homed");
        assert_eq!(records.content_of(b"0.NA/10.2"), Ok(SetContent::NotHomed));
        writeln!(&file, "{{}}").unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains(":8: "), "{error}");
    }

    #[test]
    fn a_first_pass_distinguishes_known_and_unknown_answers() {
        let mut learned = LearnedAnswers::default();
        for name in [&b"10.1/a"[..], b"10.1/b", b"10.1/c"] {
            learned.expect(name);
        }
        let message_of = |code| crate::judge::verify::tests::message(code, &[0; 4]);
        learned.learn(b"10.1/A", &crate::judge::verify::tests::values(b"10.1/A", 1, &value()));
        let mut second_thread = LearnedAnswers::default();
        second_thread.expect(b"10.1/a");
        second_thread.learn(b"10.1/b", &message_of(ResponseCode::HANDLE_NOT_FOUND));
        second_thread.learn(b"10.1/c", b"noise");
        learned.add(second_thread);
        assert_eq!(learned.counts(), (2, 1));
        assert!(matches!(learned.content_of(b"10.1/a"), Ok(SetContent::Values { count: 1, .. })));
        assert_eq!(learned.content_of(b"10.1/b"), Ok(SetContent::Code(ResponseCode::HANDLE_NOT_FOUND)));
        assert_eq!(learned.content_of(b"10.1/c"), Ok(SetContent::Unknown));
        assert_eq!(learned.content_of(b"10.1/d"), Ok(SetContent::NotHomed));
    }

    fn value() -> Vec<u8> {
        let mut bytes = Vec::new();
        Value::new(1, b"URL", b"x").encode(&mut bytes);
        bytes
    }
}
