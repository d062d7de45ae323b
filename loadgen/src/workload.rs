//! What is asked: handles in one block of memory, and the request for any of them without allocation.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use handle_proto::limit::{HANDLE_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags};

use crate::error::Error;
use crate::random::Random;

/// Bytes of a request in front of its handle: envelope, header, and the length of the handle.
const HEAD_LEN: usize = Envelope::LEN + Header::LEN + 4;
/// Bytes of a request after its handle: no indexes, no types, no credential.
const TAIL: [u8; 12] = [0; 12];

/// Bytes of a request that are not its handle.
pub const REQUEST_OVERHEAD_LEN: usize = HEAD_LEN + TAIL.len();
/// Longest handle for which a request fits in one datagram.
pub const REQUEST_HANDLE_LEN_MAX: usize = UDP_MESSAGE_LEN_MAX - REQUEST_OVERHEAD_LEN;

/// Handles, and the form of the requests for them.
#[derive(Clone, Debug)]
pub struct Workload {
    bytes: Vec<u8>,
    /// Where each handle ends.
    ends: Vec<u32>,
    head: [u8; HEAD_LEN],
    /// Handles of the source, also those that were not taken.
    seen: u64,
    too_long: u64,
}

impl Workload {
    /// Handles to choose from.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Handles that the source had; more than [`len`](Self::len) when only a sample was taken.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// Handles that were left out because a request for them does not fit in one datagram.
    #[must_use]
    pub const fn too_long(&self) -> u64 {
        self.too_long
    }

    /// The handle at `i`.
    #[must_use]
    pub fn handle(&self, i: u32) -> &[u8] {
        let i = i as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// Writes the request for the handle at `i`, and returns its length.
    ///
    /// # Panics
    ///
    /// Unless there is room for [`UDP_MESSAGE_LEN_MAX`] bytes.
    pub fn write_request(&self, i: u32, request_id: i32, room: &mut [u8]) -> usize {
        let handle = self.handle(i);
        let len = REQUEST_OVERHEAD_LEN + handle.len();
        let (head, rest) = room[..len].split_at_mut(HEAD_LEN);
        head.copy_from_slice(&self.head);
        head[8..12].copy_from_slice(&request_id.to_be_bytes());
        head[16..20].copy_from_slice(&be_u32(len - Envelope::LEN));
        // The body, without the length of the credential.
        head[40..44].copy_from_slice(&be_u32(len - Envelope::LEN - Header::LEN - 4));
        head[44..48].copy_from_slice(&be_u32(handle.len()));
        rest[..handle.len()].copy_from_slice(handle);
        rest[handle.len()..].copy_from_slice(&TAIL);
        len
    }
}

fn be_u32(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a request fits in a datagram").to_be_bytes()
}

/// Collects handles; when there are more than wanted, a fair sample of them.
#[derive(Debug)]
pub struct Sampler {
    handles: Vec<Box<[u8]>>,
    handles_max: usize,
    random: Random,
    seen: u64,
    too_long: u64,
}

impl Sampler {
    /// For at most `handles_max` handles, chosen by `seed`.
    #[must_use]
    pub const fn new(handles_max: usize, seed: u64) -> Self {
        // A stream of its own, so that the choice of handles says nothing about their order.
        Self { handles: Vec::new(), handles_max, random: Random::new(seed, u64::MAX), seen: 0, too_long: 0 }
    }

    /// Offers a handle. Each one offered is as likely to be taken as any other.
    pub fn offer(&mut self, handle: &[u8]) {
        if handle.len() > REQUEST_HANDLE_LEN_MAX {
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

    /// Handles that were left out because a request for them does not fit in one datagram.
    #[must_use]
    pub const fn too_long(&self) -> u64 {
        self.too_long
    }

    /// The workload of what was taken. Requests say that they are stale after the usual time from
    /// `now_unix_s` on.
    ///
    /// # Errors
    ///
    /// When the handles have more than 4 GiB together.
    pub fn finish(self, now_unix_s: u32) -> Result<Workload, Error> {
        let len: usize = self.handles.iter().map(|handle| handle.len()).sum();
        if u32::try_from(len).is_err() || u32::try_from(self.handles.len()).is_err() {
            let message = "the handles have more than 4 GiB together: take a sample with --handles-max";
            return Err(Error::Option(message.to_owned()));
        }
        let (mut bytes, mut ends) = (Vec::with_capacity(len), Vec::with_capacity(self.handles.len()));
        for handle in self.handles {
            bytes.extend_from_slice(&handle);
            ends.push(u32::try_from(bytes.len()).expect("checked above"));
        }
        Ok(Workload { bytes, ends, head: request_head(now_unix_s), seen: self.seen, too_long: self.too_long })
    }
}

/// What all requests begin with: a plain client that speaks our version and wants public values.
fn request_head(now_unix_s: u32) -> [u8; HEAD_LEN] {
    let envelope = Envelope::request(0);
    let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, now_unix_s);
    let mut head = [0; HEAD_LEN];
    head[..Envelope::LEN].copy_from_slice(&envelope.to_bytes());
    head[Envelope::LEN..][..Header::LEN].copy_from_slice(&header.to_bytes());
    head
}

/// The part of a record that is of interest here.
#[derive(serde::Deserialize)]
struct RecordLine {
    handle: String,
}

/// Offers the handles of a file: one in each line, or a JSON record with a member `handle`.
///
/// Empty lines, and those that begin with `#`, are passed over.
///
/// # Errors
///
/// When the file cannot be read, or a line is not a handle.
pub fn read_handles(path: &Path, sampler: &mut Sampler) -> Result<(), Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(read_error)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if file.read_until(b'\n', &mut bytes).map_err(read_error)? == 0 {
            break;
        }
        let error = |what: String| Error::Line { path: path.to_owned(), line, what };
        match bytes.trim_ascii() {
            [] | [b'#', ..] => {}
            record @ [b'{', ..] => {
                let record: RecordLine = serde_json::from_slice(record)
                    .map_err(|what| error(format!("not a record with a handle: {what}")))?;
                offer(record.handle.as_bytes(), sampler).map_err(error)?;
            }
            handle => offer(handle, sampler).map_err(error)?,
        }
    }
    Ok(())
}

fn offer(handle: &[u8], sampler: &mut Sampler) -> Result<(), String> {
    match handle.len() {
        0 => Err("an empty handle".to_owned()),
        len if len > HANDLE_LEN_MAX => Err(format!("a handle of {len} bytes; {HANDLE_LEN_MAX} are allowed")),
        _ => {
            sampler.offer(handle);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Version;
    use handle_proto::wire::Message;
    use handle_proto::wire::query::Query;
    use std::io::Write;

    fn workload(handles: &[&[u8]]) -> Workload {
        let mut sampler = Sampler::new(usize::MAX, 1);
        handles.iter().for_each(|handle| sampler.offer(handle));
        sampler.finish(1000).unwrap()
    }

    #[test]
    fn requests_decode_to_what_was_asked() {
        let long = [b'x'; REQUEST_HANDLE_LEN_MAX];
        let handles: [&[u8]; 3] = [b"10.1045/may99-payette", b"a", &long];
        let workload = workload(&handles);
        for (i, handle) in (0..).zip(handles) {
            let mut room = [0xff; UDP_MESSAGE_LEN_MAX];
            let len = workload.write_request(i, 0x1234_5678, &mut room);
            let (envelope, message) = Envelope::split(&room[..len]).unwrap();
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
    fn reads_lines_and_records() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "# comment\n10.1/a\r\n\n{{\"values\":[],\"handle\":\"10.1/\\u00e9\"}}\n  10.1/b c")
            .unwrap();
        let mut sampler = Sampler::new(10, 1);
        read_handles(file.path(), &mut sampler).unwrap();
        let workload = sampler.finish(0).unwrap();
        let handles: Vec<_> = (0..3).map(|i| workload.handle(i)).collect();
        assert_eq!(handles, [b"10.1/a", "10.1/é".as_bytes(), b"10.1/b c"]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "10.1/a\n{{\"handel\":\"10.1/b\"}}\n").unwrap();
        let error = read_handles(file.path(), &mut Sampler::new(10, 1)).unwrap_err().to_string();
        assert!(error.contains(":2: not a record with a handle: missing field `handle`"), "{error}");
    }

    #[test]
    fn a_sample_is_bounded_and_fair() {
        let mut taken = [0; 100];
        for seed in 0..500 {
            let mut sampler = Sampler::new(10, seed);
            (0..100u8).for_each(|n| sampler.offer(&[n]));
            let workload = sampler.finish(0).unwrap();
            assert_eq!((workload.len(), workload.seen()), (10, 100));
            (0..10).for_each(|i| taken[usize::from(workload.handle(i)[0])] += 1);
        }
        assert!(taken.iter().all(|count| (25..80).contains(count)), "{taken:?}");
    }

    #[test]
    fn what_does_not_fit_in_a_datagram_is_counted() {
        let workload = workload(&[&[b'x'; REQUEST_HANDLE_LEN_MAX + 1]]);
        assert_eq!((workload.is_empty(), workload.too_long()), (true, 1));
    }
}
