//! The changes in the body of a request, read by the one reader of inputs
//! ([`handle_formats::input`]).
//!
//! That reader waits for its input, so it has a thread for each body. The parts of the body are
//! handed to the thread as they arrive, and it hands over groups of changes: when a group is full,
//! and when nothing more arrives for the moment. Both queues are short, so a body is not read
//! faster than its changes are carried out and their results are taken.

use super::change_line::{LineChange, LineFault};
use super::{GROUP_LEN, GROUP_LINES, GROUP_TIMEOUT, LineState, result_line, too_many};
use crate::body_streams;
use crate::bulk;
use crate::connections::request_body::RequestBody;
use crate::state::GatewayState;
use handle_daemon::permits::SourcePermit;
use handle_formats::input::{
    InputEntry, InputError, InputForm, InputPosition, InputReader, InputStream, JsonObjects,
};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap};
use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use zeroize::Zeroizing;

/// Parts of a body that wait for the thread that reads it.
const PARTS_MAX: usize = 2;
/// Groups of changes that wait until they can be carried out.
const READ_GROUPS_MAX: usize = 1;

/// The form of a body, by its media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyForm {
    Known(InputForm),
    /// It is recognised.
    Any,
}

/// Media types of bodies. Those that a page of another origin may send without a preflight are not
/// among them: a browser would add credentials that it knows.
const MEDIA: [(&str, BodyForm); 12] = [
    ("application/x-ndjson", BodyForm::Known(InputForm::Json)),
    ("application/jsonl", BodyForm::Known(InputForm::Json)),
    ("application/x-jsonlines", BodyForm::Known(InputForm::Json)),
    ("application/json", BodyForm::Known(InputForm::Json)),
    ("text/csv", BodyForm::Known(InputForm::Csv)),
    ("text/tab-separated-values", BodyForm::Known(InputForm::Csv)),
    ("text/x-handle-batch", BodyForm::Known(InputForm::Batch)),
    ("application/gzip", BodyForm::Any),
    ("application/x-gzip", BodyForm::Any),
    ("application/zstd", BodyForm::Any),
    ("application/octet-stream", BodyForm::Any),
    ("application/x-handle-records", BodyForm::Any),
];

impl BodyForm {
    /// The form of the body of a request; `None` for other media types.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let media = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let media = media.split(';').next()?.trim();
        MEDIA.iter().find(|(known, _)| media.eq_ignore_ascii_case(known)).map(|&(_, form)| form)
    }
}

/// The forms that are read, for refusals of others.
const READ_FORMS: &str = "Send lines of JSON, as hdl export writes them, a JSON export of a reference server, CSV \
     with the columns handle, index, type and data, or a batch file";

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadingLimits {
    /// Most bytes of one change.
    pub(super) entry_len_max: usize,
    /// Most changes.
    pub(super) records_max: usize,
}

/// A part of a body on its way to the thread that reads it.
#[derive(Debug)]
enum ArrivedPart {
    Data(Bytes),
    /// Nothing arrives for the moment.
    Quiet,
    End,
    /// The rest does not arrive.
    Broken,
}

/// Changes that are handed over together.
#[derive(Debug)]
pub(super) struct BodyChanges {
    /// The frame for `handle-admin`.
    pub(super) frame: Zeroizing<Vec<u8>>,
    pub(super) states: Vec<LineState>,
}

/// What has been read of a body.
#[derive(Debug)]
pub(super) enum ReadChanges {
    Group(BodyChanges),
    /// The body has a form that is not read, for this reason. A group says so, too.
    OtherForm(String),
    End,
    /// The rest of the body did not arrive.
    Broken,
}

/// A body whose thread has not been started.
pub(super) struct UnreadBody {
    parts: Receiver<ArrivedPart>,
    form: BodyForm,
    limits: ReadingLimits,
}

impl UnreadBody {
    /// A body that arrives. Each part has to arrive within `timeout`.
    pub(super) fn arriving(
        state: &Arc<GatewayState>,
        body: RequestBody,
        form: BodyForm,
        limits: ReadingLimits,
        timeout: Duration,
    ) -> Self {
        let (sender, parts) = channel(PARTS_MAX);
        body_streams::spawn(state, receive(body, sender, timeout));
        Self { parts, form, limits }
    }

    /// A body that has arrived.
    pub(super) fn arrived(bytes: Zeroizing<Vec<u8>>, form: BodyForm, limits: ReadingLimits) -> Self {
        let (sender, parts) = channel(PARTS_MAX);
        for part in [ArrivedPart::Data(Bytes::from_owner(bytes)), ArrivedPart::End] {
            // There is capacity for both.
            let _ = sender.try_send(part);
        }
        Self { parts, form, limits }
    }

    /// Starts the thread that reads the body, which has `permit` until its end.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn read(self, permit: SourcePermit) -> io::Result<Receiver<ReadChanges>> {
        let (out, changes) = channel(READ_GROUPS_MAX);
        let Self { parts, form, limits } = self;
        let thread = std::thread::Builder::new().name("body".to_owned());
        thread.spawn(move || {
            let _permit = permit;
            read_body(parts, form, limits, out);
        })?;
        Ok(changes)
    }
}

/// Hands a body over as it arrives.
async fn receive(mut body: RequestBody, parts: Sender<ArrivedPart>, timeout: Duration) {
    loop {
        let frame = match tokio::time::timeout(GROUP_TIMEOUT, body.frame()).await {
            Ok(frame) => Ok(frame),
            Err(_) => {
                if parts.send(ArrivedPart::Quiet).await.is_err() {
                    return;
                }
                // When the changes are not wanted any more, the rest of the body is not, either.
                tokio::select! {
                    frame = tokio::time::timeout(timeout, body.frame()) => frame,
                    () = parts.closed() => return,
                }
            }
        };
        let part = match frame {
            // Trailers are ignored.
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => ArrivedPart::Data(data),
                Err(_) => continue,
            },
            Ok(None) => ArrivedPart::End,
            Ok(Some(Err(_))) | Err(_) => ArrivedPart::Broken,
        };
        let is_last = !matches!(part, ArrivedPart::Data(_));
        if parts.send(part).await.is_err() || is_last {
            return;
        }
    }
}

/// The parts of a body as an input.
struct PartSource {
    parts: Receiver<ArrivedPart>,
    part: Bytes,
    has_ended: bool,
    is_broken: Rc<Cell<bool>>,
    group: Rc<RefCell<GroupUnderWay>>,
}

impl Read for PartSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() && !self.has_ended {
            match self.parts.blocking_recv() {
                Some(ArrivedPart::Data(part)) => self.part = part,
                Some(ArrivedPart::Quiet) => self.group.borrow_mut().hand_over()?,
                Some(ArrivedPart::End) => self.has_ended = true,
                Some(ArrivedPart::Broken) | None => {
                    self.is_broken.set(true);
                    return Err(io::Error::other("the rest of the body did not arrive"));
                }
            }
        }
        let len = buffer.len().min(self.part.len());
        buffer[..len].copy_from_slice(&self.part.split_to(len));
        Ok(len)
    }
}

/// The changes that are handed over next.
struct GroupUnderWay {
    changes: Vec<(u32, Vec<u8>)>,
    states: Vec<LineState>,
    len: usize,
    out: Sender<ReadChanges>,
}

impl GroupUnderWay {
    fn add(&mut self, number: u32, change: Result<LineChange, LineFault>) -> io::Result<()> {
        let state = match change {
            Ok(LineChange { handle, message }) => {
                self.len += message.len();
                self.changes.push((number, message));
                LineState::HandedOver(number, handle)
            }
            Err(fault) => {
                let text = result_line(number, fault.handle.as_deref(), fault.code, &fault.message);
                LineState::Finished(text)
            }
        };
        self.states.push(state);
        if self.states.len() >= GROUP_LINES || self.len >= GROUP_LEN { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        if self.states.is_empty() {
            return Ok(());
        }
        let frame = bulk::changes_frame(&self.changes);
        self.changes.clear();
        self.len = 0;
        let group = BodyChanges { frame, states: std::mem::take(&mut self.states) };
        self.send(ReadChanges::Group(group))
    }

    fn send(&self, read: ReadChanges) -> io::Result<()> {
        self.out.blocking_send(read).map_err(|_| io::Error::other("the changes are not wanted any more"))
    }
}

/// Reads a body to its end.
fn read_body(parts: Receiver<ArrivedPart>, form: BodyForm, limits: ReadingLimits, out: Sender<ReadChanges>) {
    let under_way = GroupUnderWay { changes: Vec::new(), states: Vec::new(), len: 0, out };
    let (group, is_broken) = (Rc::new(RefCell::new(under_way)), Rc::new(Cell::new(false)));
    let source = PartSource {
        parts,
        part: Bytes::new(),
        has_ended: false,
        is_broken: Rc::clone(&is_broken),
        group: Rc::clone(&group),
    };
    let mut last = 0;
    let read = read_changes(source, form, limits, &group, &mut last);
    let mut group = group.borrow_mut();
    if let (Err(fault), false) = (read, is_broken.get()) {
        // If the changes are not wanted any more, this is not, either.
        let _ = group.add(last.saturating_add(1), Err(fault));
    }
    let end = if is_broken.get() { ReadChanges::Broken } else { ReadChanges::End };
    let _ = group.hand_over().and_then(|()| group.send(end));
}

/// Reads the changes of `source`; `last` is the number of the last one.
fn read_changes(
    source: impl Read,
    form: BodyForm,
    limits: ReadingLimits,
    group: &RefCell<GroupUnderWay>,
    last: &mut u32,
) -> Result<(), LineFault> {
    let mut reader = match ChangeReader::open(source, form, limits.entry_len_max) {
        Ok(reader) => reader,
        Err(unreadable) => {
            if let UnreadableBody::OtherForm(what) = &unreadable {
                let refusal = ReadChanges::OtherForm(UnreadableBody::other_form(what));
                group.borrow().send(refusal).map_err(|error| LineFault::protocol(&error.to_string()))?;
            }
            return Err(unreadable.into());
        }
    };
    let mut count = 0;
    while let Some((number, change)) = reader.next()? {
        *last = number;
        count += 1;
        let is_over = count > limits.records_max;
        let change = if is_over { Err(LineFault::protocol(&too_many(limits.records_max))) } else { change };
        group.borrow_mut().add(number, change).map_err(|error| LineFault::protocol(&error.to_string()))?;
        if is_over {
            break;
        }
    }
    Ok(())
}

/// The number of changes in a body that has arrived, up to one more than `most`.
///
/// # Errors
/// The message about a form that is not read.
pub(super) fn count_changes(
    bytes: &[u8],
    form: BodyForm,
    entry_len_max: usize,
    most: usize,
) -> Result<usize, String> {
    let mut reader = match ChangeReader::open(bytes, form, entry_len_max) {
        Ok(reader) => reader,
        Err(UnreadableBody::OtherForm(what)) => return Err(UnreadableBody::other_form(what)),
        Err(UnreadableBody::Fault(_)) => return Ok(0),
    };
    let mut count = 0;
    // What cannot be read is reported where it is carried out.
    while count <= most && matches!(reader.pass(), Ok(true)) {
        count += 1;
    }
    Ok(count)
}

/// Why a body cannot be read from its beginning.
enum UnreadableBody {
    /// It has a form whose entries are not changes: what it is.
    OtherForm(&'static str),
    Fault(LineFault),
}

impl UnreadableBody {
    /// The message about a body of a form that is not read.
    fn other_form(what: &str) -> String {
        format!("{what}. {READ_FORMS}")
    }
}

impl From<UnreadableBody> for LineFault {
    fn from(unreadable: UnreadableBody) -> Self {
        match unreadable {
            UnreadableBody::OtherForm(what) => Self::protocol(&UnreadableBody::other_form(what)),
            UnreadableBody::Fault(fault) => fault,
        }
    }
}

/// Reads a body as changes, whatever its form.
enum ChangeReader<'r> {
    /// Objects, which may be other operations than creations.
    Objects(JsonObjects<InputStream<'r>>),
    Entries(InputReader<'r>),
}

type NumberedChange = (u32, Result<LineChange, LineFault>);

impl<'r> ChangeReader<'r> {
    fn open(source: impl Read + 'r, form: BodyForm, entry_len_max: usize) -> Result<Self, UnreadableBody> {
        let broken = |error: io::Error| UnreadableBody::Fault(LineFault::unreadable(&error));
        let mut stream = InputStream::bounded(source, entry_len_max).map_err(broken)?;
        let form = match form {
            // An export is JSON as well.
            BodyForm::Known(InputForm::Json) => match InputForm::recognise(&mut stream).map_err(broken)? {
                Some(InputForm::Export) => Some(InputForm::Export),
                _ => Some(InputForm::Json),
            },
            BodyForm::Known(form) => Some(form),
            BodyForm::Any => InputForm::recognise(&mut stream).map_err(broken)?,
        };
        match form {
            Some(InputForm::Json) => {
                JsonObjects::bounded(stream, entry_len_max).map(Self::Objects).map_err(broken)
            }
            Some(form @ (InputForm::Export | InputForm::Csv | InputForm::Batch)) => {
                InputReader::new(stream, form)
                    .map(Self::Entries)
                    .map_err(|error| UnreadableBody::Fault(LineFault::unreadable(&error)))
            }
            Some(InputForm::Sql) => Err(UnreadableBody::OtherForm(
                "The body is an SQL dump, in which the rows of a record may stand apart",
            )),
            Some(InputForm::Names) => {
                Err(UnreadableBody::OtherForm("The body is a list of names, which are no changes"))
            }
            None => Err(UnreadableBody::OtherForm("The form of the body is not known")),
        }
    }

    /// The next change and its number; `None` at the end.
    fn next(&mut self) -> Result<Option<NumberedChange>, LineFault> {
        Ok(match self {
            Self::Objects(objects) => {
                let Some((position, text)) = objects.next().map_err(|error| LineFault::unreadable(&error))?
                else {
                    return Ok(None);
                };
                let number = number_of(position);
                let change = match text {
                    Ok(text) => LineChange::read(number, text.as_bytes()),
                    Err(why) => Err(LineFault::unreadable(&why)),
                };
                Some((number, change))
            }
            Self::Entries(reader) => {
                let entry = reader.next().map_err(|error: InputError| LineFault::unreadable(&error))?;
                entry.map(|(position, entry)| (number_of(position), LineChange::of_entry(entry)))
            }
        })
    }

    /// Passes over the next change; returns whether there was one.
    fn pass(&mut self) -> Result<bool, LineFault> {
        match self {
            Self::Objects(objects) => {
                objects.next().map(|object| object.is_some()).map_err(|error| LineFault::unreadable(&error))
            }
            Self::Entries(reader) => {
                // A homed prefix is no change, but gets a line of the answer.
                let entry: Option<(InputPosition, InputEntry<'_>)> =
                    reader.next().map_err(|error| LineFault::unreadable(&error))?;
                Ok(entry.is_some())
            }
        }
    }
}

/// The number of an entry: its line, or its position where records are not lines.
fn number_of(position: InputPosition) -> u32 {
    let (InputPosition::Line(number) | InputPosition::Record(number)) = position;
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes of a body that arrives in parts of `part_len` bytes: numbers, and handles or
    /// messages.
    fn changes(body: &[u8], form: BodyForm, part_len: usize, records_max: usize) -> Vec<String> {
        let (sender, parts) = channel(PARTS_MAX);
        let (out, mut groups) = channel(READ_GROUPS_MAX);
        let limits = ReadingLimits { entry_len_max: 1 << 16, records_max };
        let reader = std::thread::spawn(move || read_body(parts, form, limits, out));
        let body = body.to_vec();
        let writer = std::thread::spawn(move || {
            for part in body.chunks(part_len) {
                let _ = sender.blocking_send(ArrivedPart::Data(Bytes::copy_from_slice(part)));
                let _ = sender.blocking_send(ArrivedPart::Quiet);
            }
            let _ = sender.blocking_send(ArrivedPart::End);
        });
        let mut found = Vec::new();
        loop {
            match groups.blocking_recv().unwrap() {
                ReadChanges::Group(group) => {
                    found.extend(group.states.into_iter().map(|state| match state {
                        LineState::HandedOver(number, handle) => format!("{number} {handle}"),
                        LineState::Finished(text) => text.trim().to_owned(),
                    }))
                }
                ReadChanges::OtherForm(_) => {}
                ReadChanges::End => break,
                ReadChanges::Broken => found.push("broken".to_owned()),
            }
        }
        reader.join().unwrap();
        writer.join().unwrap();
        found
    }

    #[test]
    fn every_form_is_read_as_changes_however_the_body_is_cut() {
        let csv =
            "sep=;\r\n# table\r\nhandle;index;type;data\r\n1/a;1;URL;x\r\n1/a;2;URL;y\r\n1/b;1;URL;z\r\n";
        let lines =
            "\u{feff}# lines\n\n{\"handle\":\"1/a\",\"values\":[]}\n{\"handle\":\"1/b\",\"deleted\":true}\n";
        let pretty = "[\n {\n  \"handle\": \"1/a\",\n  \"values\": []\n },\n {\"handle\":\"1/b\",\"operation\":\"delete\"}\n]\n";
        let export = "{\"handleRecords\":{\"1/a\":{\"handle\":\"1/a\",\"values\":[]},\n\"1/b\":{\"handle\":\"1/b\",\"values\":[]}}}";
        let batch = "CREATE 1/a\n1 URL 86400 1110 UTF8 x\n\nDELETE 1/b\nREMOVE 1:1/c\n";
        let expected = |numbers: [u32; 2]| vec![format!("{} 1/a", numbers[0]), format!("{} 1/b", numbers[1])];
        let json = BodyForm::Known(InputForm::Json);
        for (text, form, expected) in [
            (csv, BodyForm::Known(InputForm::Csv), expected([4, 6])),
            (csv, BodyForm::Any, expected([4, 6])),
            (lines, json, expected([3, 4])),
            (lines, BodyForm::Any, expected([3, 4])),
            (pretty, json, expected([1, 2])),
            (export, json, expected([1, 2])),
            (export, BodyForm::Any, expected([1, 2])),
            (pretty, BodyForm::Any, expected([1, 2])),
            (batch, BodyForm::Any, [expected([1, 4]), vec!["5 1/c".to_owned()]].concat()),
        ] {
            for part_len in [1, 7, text.len()] {
                assert_eq!(changes(text.as_bytes(), form, part_len, 10), expected, "{text} by {part_len}");
            }
            let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
            assert_eq!(changes(&packed, form, 5, 10), expected, "{text} in zstd");
            assert_eq!(count_changes(&packed, form, 1 << 16, 10), Ok(expected.len()));
            assert_eq!(count_changes(&packed, form, 1 << 16, 0), Ok(1));
        }
    }

    #[test]
    fn what_is_no_change_is_said_in_its_place() {
        let said = |text: &str| changes(text.as_bytes(), BodyForm::Any, 1 << 16, 2).join("\n");
        for (text, part) in [
            ("AUTHENTICATE SECKEY:300:1/a\nsecret\n", "makes all changes"),
            ("HOME 192.0.2.1:2641:TCP\n0.NA/1\n", "HOME is not a change of a record"),
            ("CREATE 1/a\n1 URL 86400 1110 FILE /etc/passwd\n", "in another file"),
            ("10.1045/a\n", "a list of names, which are no changes. Send lines of JSON"),
            ("INSERT INTO handles VALUES (1);\n", "an SQL dump, in which"),
            ("handle,index,type,data\n1/a,1,URL,\"x\n", "does not end"),
            ("handle,index,type\n", "no column data"),
            ("handle,index,type,data\n1/a,x,URL,y\n", "\"handle\":\"1/a\""),
            ("{\"homed\":\"0.NA/1\"}\n", "prefix 0.NA/1 is not a change of a record: `hdl handle home`"),
            (
                "{\"homedPrefixes\":[\"0.NA/1\"]}\n",
                "prefix 0.NA/1 is not a change of a record: `hdl handle home`",
            ),
            ("{\"home\":\"0.NA/1\"}\n", "no `handle`"),
            ("[{\"handle\":\"1/a\",\"values\":[]} 7]", "a comma or the end of the array"),
            ("\u{1f}\u{8b}", "not known"),
        ] {
            assert!(said(text).contains(part), "{text}: {}", said(text));
            assert!(!said(text).contains("secret\""), "{text}");
        }
        let three = "{\"handle\":\"1/a\",\"values\":[]}\n".repeat(3);
        assert!(
            said(&three).ends_with("\"message\":\"A request has at most 2 records\"}"),
            "{}",
            said(&three)
        );
        // A bomb.
        let packed = zstd::encode_all(&vec![b'\n'; 16 << 20][..], 3).unwrap();
        let found = changes(&packed, BodyForm::Any, packed.len(), 2).concat();
        assert!(found.contains("200 times as long unpacked"), "{found}");
    }
}
