//! The handles in one block of memory, and requests for any of them without allocation.

use std::path::Path;

use handle_formats::input::{InputEntry, InputError, InputForm, InputPosition, InputReader, InputStream};
use handle_proto::OpFlags;
use handle_proto::limit::{HANDLE_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::{Envelope, Header};

use crate::error::Error;
use crate::judge::expected_records::{ListedPrefixes, folded_prefix};
use crate::load::question::{GeneratedQuestion, QuestionForm, request_head};
use crate::random::RandomGenerator;
use crate::read::{Interrupt, StoppableFile};

/// Bytes of a request before its handle: envelope, header, and the length of the handle.
const HEAD_LEN: usize = Envelope::LEN + Header::LEN + 4;
/// Bytes of a plain request after its handle: no indexes, no types, no credential.
const TAIL_LEN: usize = 12;

/// Bytes of a plain request without its handle.
pub const REQUEST_OVERHEAD_LEN: usize = HEAD_LEN + TAIL_LEN;
/// Longest request, possible over connections: the longest handle, and the longest lists.
pub const REQUEST_LEN_MAX: usize = HEAD_LEN + HANDLE_LEN_MAX + QuestionForm::TAIL_LEN_MAX;
/// Longest handle for which a plain request fits in one datagram.
pub const REQUEST_HANDLE_LEN_MAX: usize = UDP_MESSAGE_LEN_MAX - REQUEST_OVERHEAD_LEN;

/// Identifies a request: the number of its handle or recorded message, its form, and the salt of
/// its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestChoice {
    /// Number of the handle or of the recorded message.
    pub number: u32,
    /// Form in the upper 8 bits, salt below.
    how: u32,
}

impl RequestChoice {
    const SALT_BITS: u32 = 24;

    const fn form(self) -> usize {
        (self.how >> Self::SALT_BITS) as usize
    }

    const fn salt(self) -> u32 {
        self.how & ((1 << Self::SALT_BITS) - 1)
    }
}

/// Handles and the forms of their requests, or recorded requests.
#[derive(Clone, Debug)]
pub struct Workload {
    bytes: Vec<u8>,
    /// End offsets of the handles or messages.
    ends: Vec<u32>,
    /// Empty for recorded requests.
    forms: Vec<PreparedForm>,
    /// The sum of all weights.
    weight: u64,
    /// Number of handles in the source, including those left out.
    seen: u64,
    too_long: u64,
    not_homed: u64,
    request_len_max: usize,
}

/// A form, with the start of its requests.
#[derive(Clone, Debug)]
struct PreparedForm {
    form: QuestionForm,
    head: [u8; Envelope::LEN + Header::LEN],
}

impl Workload {
    /// Recorded requests, sent unchanged except for their ids.
    ///
    /// # Errors
    ///
    /// If they have more than 4 GiB together.
    pub fn of_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Error> {
        let (mut bytes, mut ends, mut request_len_max) = (Vec::new(), Vec::new(), 0);
        for message in messages {
            bytes.extend_from_slice(message);
            ends.push(end(&bytes)?);
            request_len_max = request_len_max.max(message.len());
        }
        let seen = ends.len() as u64;
        Ok(Self {
            bytes,
            ends,
            forms: Vec::new(),
            weight: 0,
            seen,
            too_long: 0,
            not_homed: 0,
            request_len_max,
        })
    }

    /// Number of handles to choose from.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether requests are built from forms, and not recorded.
    #[must_use]
    pub const fn has_forms(&self) -> bool {
        !self.forms.is_empty()
    }

    /// Number of handles in the source; more than [`len`](Self::len) if only a sample was taken.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// Handles left out because a request for them would be too long.
    #[must_use]
    pub const fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Handles left out because their prefix is not homed, so that a server does not answer them.
    #[must_use]
    pub const fn not_homed(&self) -> u64 {
        self.not_homed
    }

    /// Length of the longest possible request.
    #[must_use]
    pub const fn request_len_max(&self) -> usize {
        self.request_len_max
    }

    /// The handle at `i`, or the whole recorded request.
    #[must_use]
    pub fn handle(&self, i: u32) -> &[u8] {
        let i = i as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// Chooses the form of a request for the handle `number`, by weight.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the number of forms is bounded, salts are cut")]
    pub fn choose(&self, number: u32, random: &mut RandomGenerator) -> RequestChoice {
        let form = if self.forms.len() > 1 { self.choose_form(random) } else { 0 };
        let keeps_name = self.forms.get(form).is_none_or(|prepared| prepared.form.keeps_name());
        let salt = if keeps_name { 0 } else { random.next() as u32 & ((1 << RequestChoice::SALT_BITS) - 1) };
        RequestChoice { number, how: (form as u32) << RequestChoice::SALT_BITS | salt }
    }

    fn choose_form(&self, random: &mut RandomGenerator) -> usize {
        let mut at = random.below(self.weight);
        let chosen = self.forms.iter().position(|prepared| {
            let weight = u64::from(prepared.form.weight());
            let is_here = at < weight;
            at = at.saturating_sub(weight);
            is_here
        });
        chosen.unwrap_or(0)
    }

    /// Writes the request for `choice`, and returns its length.
    ///
    /// # Panics
    ///
    /// Unless there is capacity for [`request_len_max`](Self::request_len_max) bytes.
    #[inline]
    pub fn write_request(&self, choice: RequestChoice, request_id: i32, buffer: &mut [u8]) -> usize {
        let handle = self.handle(choice.number);
        let Some(PreparedForm { form, head }) = self.forms.get(choice.form()) else {
            buffer[..handle.len()].copy_from_slice(handle);
            buffer[8..12].copy_from_slice(&request_id.to_be_bytes());
            return handle.len();
        };
        let handle_len = if form.keeps_name() {
            buffer[HEAD_LEN..HEAD_LEN + handle.len()].copy_from_slice(handle);
            handle.len()
        } else {
            form.write_name(handle, choice.salt(), &mut buffer[HEAD_LEN..])
        };
        let tail = form.tail();
        let len = HEAD_LEN + handle_len + tail.len();
        buffer[..HEAD_LEN - 4].copy_from_slice(head);
        buffer[8..12].copy_from_slice(&request_id.to_be_bytes());
        buffer[16..20].copy_from_slice(&be_u32(len - Envelope::LEN));
        // The body, without the length of the credential.
        buffer[40..44].copy_from_slice(&be_u32(len - Envelope::LEN - Header::LEN - 4));
        buffer[44..48].copy_from_slice(&be_u32(handle_len));
        buffer[HEAD_LEN + handle_len..len].copy_from_slice(tail);
        len
    }

    /// The question of `choice`; its name is written to `buffer` if it is not that of the list.
    ///
    /// # Panics
    ///
    /// Unless there is capacity for [`request_len_max`](Self::request_len_max) bytes.
    #[must_use]
    pub fn question<'a>(&'a self, choice: RequestChoice, buffer: &'a mut [u8]) -> GeneratedQuestion<'a> {
        let handle = self.handle(choice.number);
        let Some(PreparedForm { form, .. }) = self.forms.get(choice.form()) else {
            return GeneratedQuestion::of_message(handle).unwrap_or(GeneratedQuestion::plain(handle));
        };
        if form.keeps_name() {
            return form.question(handle);
        }
        let len = form.write_name(handle, choice.salt(), buffer);
        form.question(&buffer[..len])
    }
}

fn end(bytes: &[u8]) -> Result<u32, Error> {
    u32::try_from(bytes.len()).map_err(|_| {
        Error::Option("the handles take more than 4 GiB: limit their number with --handles-max".to_owned())
    })
}

fn be_u32(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a request is short").to_be_bytes()
}

/// Collects handles; a random sample if there are more than the limit.
#[derive(Debug)]
pub struct RequestSampler {
    handles: Vec<Box<[u8]>>,
    handles_max: usize,
    /// Longest handle that is accepted.
    len_max: usize,
    random: RandomGenerator,
    seen: u64,
    too_long: u64,
    not_homed: u64,
}

impl RequestSampler {
    /// Collects at most `handles_max` handles, chosen by `seed`.
    #[must_use]
    pub const fn new(handles_max: usize, seed: u64) -> Self {
        // A stream of its own, so that the choice of handles is independent of their order.
        Self {
            handles: Vec::new(),
            handles_max,
            len_max: REQUEST_HANDLE_LEN_MAX,
            random: RandomGenerator::new(seed, u64::MAX),
            seen: 0,
            too_long: 0,
            not_homed: 0,
        }
    }

    /// Accepts only handles for which requests of all `forms` have at most `request_len_max` bytes:
    /// [`UDP_MESSAGE_LEN_MAX`] in datagrams, [`REQUEST_LEN_MAX`] on connections.
    pub fn for_forms(&mut self, forms: &[QuestionForm], request_len_max: usize) {
        let extra_len = forms.iter().map(QuestionForm::extra_len).max().unwrap_or(TAIL_LEN);
        let added_len = forms.iter().map(|form| form.extra_len() - form.tail().len()).max().unwrap_or(0);
        let capacity = request_len_max.saturating_sub(HEAD_LEN + extra_len);
        self.len_max = capacity.min(HANDLE_LEN_MAX - added_len);
    }

    /// Offers a handle. All offered handles are equally likely to be kept.
    pub fn offer(&mut self, handle: &[u8]) {
        if handle.len() > self.len_max {
            self.too_long += 1;
            return;
        }
        self.seen += 1;
        if self.handles.len() < self.handles_max {
            self.handles.push(handle.into());
            return;
        }
        let at = usize::try_from(self.random.below(self.seen)).unwrap_or(usize::MAX);
        if let Some(taken) = self.handles.get_mut(at) {
            *taken = handle.into();
        }
    }

    /// Counts a handle that is left out because its prefix is not homed.
    pub const fn leave_out(&mut self) {
        self.not_homed += 1;
    }

    /// Handles left out because a request for them would be too long.
    #[must_use]
    pub const fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Handles left out because their prefix is not homed.
    #[must_use]
    pub const fn not_homed(&self) -> u64 {
        self.not_homed
    }

    /// The workload of the kept handles, in plain requests. Their expiration is the usual time
    /// after `now_unix_s`.
    ///
    /// # Errors
    ///
    /// If the handles have more than 4 GiB together.
    pub fn finish(self, now_unix_s: u32) -> Result<Workload, Error> {
        self.finish_as(&[QuestionForm::default()], OpFlags(0), now_unix_s)
    }

    /// The same in requests of these forms, all with `flags` in addition.
    ///
    /// # Errors
    ///
    /// If the handles have more than 4 GiB together.
    ///
    /// # Panics
    ///
    /// If there is no form.
    pub fn finish_as(
        self,
        forms: &[QuestionForm],
        flags: OpFlags,
        now_unix_s: u32,
    ) -> Result<Workload, Error> {
        assert!(!forms.is_empty(), "requests have a form");
        let len: usize = self.handles.iter().map(|handle| handle.len()).sum();
        let longest = self.handles.iter().map(|handle| handle.len()).max().unwrap_or(0);
        let (mut bytes, mut ends) = (Vec::with_capacity(len), Vec::with_capacity(self.handles.len()));
        for handle in self.handles {
            bytes.extend_from_slice(&handle);
            ends.push(end(&bytes)?);
        }
        let prepare = |form: &QuestionForm| PreparedForm {
            form: form.clone(),
            head: request_head(form.flags().with(flags), now_unix_s),
        };
        let weight = forms.iter().map(|form| u64::from(form.weight())).sum();
        let extra_len = forms.iter().map(QuestionForm::extra_len).max().unwrap_or(TAIL_LEN);
        let request_len_max = HEAD_LEN + longest + extra_len;
        let forms = forms.iter().map(prepare).collect();
        let Self { seen, too_long, not_homed, .. } = self;
        Ok(Workload { bytes, ends, forms, weight, seen, too_long, not_homed, request_len_max })
    }
}

/// The part of a record that is needed here.
/// Offers the handles of a file: one per line, or those of records and operations in any form that
/// `handle_formats::input` reads.
///
/// Skips empty lines, lines that begin with `#`, and homed prefixes. These come first in an export;
/// handles after them whose prefix is not among them are left out and counted.
///
/// # Errors
///
/// If the file cannot be read, or has an entry that is not about a handle; and if the user stopped
/// it.
pub(crate) fn read_handles(
    path: &Path,
    sampler: &mut RequestSampler,
    interrupt: &mut Interrupt<'_>,
) -> Result<(), Error> {
    let read_error = |source| Error::read(path, source);
    let cannot_go_on = |error| match error {
        InputError::Io(error) => Error::read(path, error),
        other => Error::read(path, std::io::Error::other(other)),
    };
    let file = StoppableFile::open(path, interrupt).map_err(read_error)?;
    let mut stream = InputStream::new(file).map_err(read_error)?;
    let form = InputForm::recognise(&mut stream).map_err(read_error)?.unwrap_or(InputForm::Names);
    let mut reader = InputReader::new(stream, form).map_err(cannot_go_on)?;
    let mut homed = ListedPrefixes::default();
    while let Some((position, entry)) = reader.next().map_err(cannot_go_on)? {
        let offered = match &entry {
            InputEntry::Homed(prefix) => {
                homed.add(folded_prefix(prefix));
                Ok(())
            }
            InputEntry::Refused(None, why) => Err(format!("not a record with a handle: {why}")),
            entry => match entry.name() {
                Some(handle) if homed.has(handle) => offer(handle, sampler),
                Some(_) => {
                    sampler.leave_out();
                    Ok(())
                }
                None => Ok(()),
            },
        };
        let (InputPosition::Line(line) | InputPosition::Record(line)) = position;
        offered.map_err(|reason| Error::Line { path: path.to_owned(), line, reason })?;
    }
    Ok(())
}

fn offer(handle: &[u8], sampler: &mut RequestSampler) -> Result<(), String> {
    match handle.len() {
        0 => Err("empty handle".to_owned()),
        len if len > HANDLE_LEN_MAX => {
            Err(format!("handle of {len} bytes is too long: the maximum is {HANDLE_LEN_MAX}"))
        }
        _ => {
            sampler.offer(handle);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::Message;
    use handle_proto::wire::query::Query;
    use handle_proto::{OpCode, Version};
    use std::io::Write;
    use std::ops::ControlFlow;

    fn go_on() -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn workload(handles: &[&[u8]]) -> Workload {
        let mut sampler = RequestSampler::new(usize::MAX, 1);
        handles.iter().for_each(|handle| sampler.offer(handle));
        sampler.finish(1000).unwrap()
    }

    #[test]
    fn requests_decode_to_their_questions() {
        let long = [b'x'; REQUEST_HANDLE_LEN_MAX];
        let handles: [&[u8]; 3] = [b"10.1045/may99-payette", b"a", &long];
        let workload = workload(&handles);
        for (i, handle) in (0..).zip(handles) {
            let mut buffer = [0xff; UDP_MESSAGE_LEN_MAX];
            let choice = workload.choose(i, &mut RandomGenerator::new(1, 0));
            let len = workload.write_request(choice, 0x1234_5678, &mut buffer);
            let (envelope, message) = Envelope::split(&buffer[..len]).unwrap();
            assert_eq!((envelope.request_id, envelope.version), (0x1234_5678, Version::CURRENT));
            assert_eq!(envelope.message_len as usize, message.len());
            let message = Message::decode(message).unwrap();
            assert_eq!(message.header.op_code, OpCode::RESOLUTION);
            assert_eq!(message.header.flags, OpFlags::PLAIN_REQUEST);
            assert_eq!(message.header.expiration, 44_200);
            assert_eq!((message.covered.len(), message.credential), (len - 24, &[][..]));
            let query = Query::decode(message.body).unwrap();
            assert_eq!(query.handle, handle);
            assert!(query.indexes.is_empty() && query.types.is_empty());
        }
    }

    #[test]
    fn forms_are_mixed_by_weight_and_match_their_questions() {
        let forms: Vec<QuestionForm> =
            ["6=plain", "3=miss", "1=type:URL+index:7+case+certify"].map(|text| text.parse().unwrap()).into();
        let mut sampler = RequestSampler::new(10, 1);
        sampler.for_forms(&forms, UDP_MESSAGE_LEN_MAX);
        sampler.offer(b"10.1045/may99-payette");
        sampler.offer(&[b'x'; REQUEST_HANDLE_LEN_MAX]);
        let workload = sampler.finish_as(&forms, OpFlags::KEEP_CONNECTION, 0).unwrap();
        assert_eq!((workload.len(), workload.too_long()), (1, 1), "the longer request does not fit");
        let (mut random, mut counts) = (RandomGenerator::new(5, 0), [0; 3]);
        for _ in 0..10_000 {
            let choice = workload.choose(0, &mut random);
            counts[choice.form()] += 1;
            let mut buffer = [0xff; UDP_MESSAGE_LEN_MAX];
            let len = workload.write_request(choice, 1, &mut buffer);
            let sent = GeneratedQuestion::of_message(&buffer[..len]).unwrap();
            let mut name = [0; UDP_MESSAGE_LEN_MAX];
            let question = workload.question(choice, &mut name);
            assert_eq!(
                (sent.handle, sent.indexes, sent.types),
                (question.handle, question.indexes, question.types)
            );
            assert_eq!(sent.flags, question.flags.with(OpFlags::KEEP_CONNECTION));
        }
        let near = |count: i32, expected: i32| (count - expected).abs() < 250;
        assert!(near(counts[0], 6000) && near(counts[1], 3000) && near(counts[2], 1000), "{counts:?}");
    }

    #[test]
    fn recorded_messages_are_sent_as_they_are_but_for_the_id() {
        let plain = workload(&[b"10.1/a"]);
        let mut buffer = [0; UDP_MESSAGE_LEN_MAX];
        let len = plain.write_request(RequestChoice::default(), 7, &mut buffer);
        let recorded = Workload::of_messages([&buffer[..len]]).unwrap();
        let mut second = [0; UDP_MESSAGE_LEN_MAX];
        let choice = recorded.choose(0, &mut RandomGenerator::new(1, 0));
        assert_eq!(recorded.write_request(choice, 9, &mut second), len);
        assert_eq!(
            (&second[..8], &second[8..12], &second[12..]),
            (&buffer[..8], &[0, 0, 0, 9][..], &buffer[12..])
        );
        assert_eq!(recorded.question(choice, &mut buffer).handle, b"10.1/a");
    }

    #[test]
    fn reads_lines_and_records() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "\u{feff}# comment\n10.1/a\r\n\n{{\"values\":[],\"handle\":\"10.1/\\u00e9\"}}\n  10.1/b c"
        )
        .unwrap();
        let mut sampler = RequestSampler::new(10, 1);
        read_handles(file.path(), &mut sampler, &mut Interrupt::new(&mut go_on)).unwrap();
        let workload = sampler.finish(0).unwrap();
        let handles: Vec<_> = (0..3).map(|i| workload.handle(i)).collect();
        assert_eq!(handles, [b"10.1/a", "10.1/é".as_bytes(), b"10.1/b c"]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "10.1/a\n{{\"handel\":\"10.1/b\"}}\n").unwrap();
        let read =
            read_handles(file.path(), &mut RequestSampler::new(10, 1), &mut Interrupt::new(&mut go_on));
        let error = read.unwrap_err().to_string();
        assert!(error.contains(":2: not a record with a handle: handle: missing"), "{error}");
    }

    #[test]
    fn a_sample_is_bounded_and_fair() {
        let mut taken = [0; 100];
        for seed in 0..500 {
            let mut sampler = RequestSampler::new(10, seed);
            (0..100u8).for_each(|n| sampler.offer(&[n]));
            let workload = sampler.finish(0).unwrap();
            assert_eq!((workload.len(), workload.seen()), (10, 100));
            (0..10).for_each(|i| taken[usize::from(workload.handle(i)[0])] += 1);
        }
        assert!(taken.iter().all(|count| (25..80).contains(count)), "{taken:?}");
    }

    #[test]
    fn handles_too_long_for_a_datagram_are_counted() {
        let workload = workload(&[&[b'x'; REQUEST_HANDLE_LEN_MAX + 1]]);
        assert_eq!((workload.is_empty(), workload.too_long()), (true, 1));
    }
}
