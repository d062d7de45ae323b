//! `conversations.jsonl` over UDP and TCP: the same bytes as the reference, or a permitted
//! difference.
//!
//! Administrative requests over TCP go to the administration process, all others to the data
//! process, as clients read from the site record.
//!
//! A kind of difference is a rule on request and answer of a line, in [`KINDS`], and a row of
//! `docs/conformance.md`; a test compares the two. A line of no kind must be answered with the same
//! bytes, except for those listed as nondeterministic.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PublicKey;
use handle_auth::message::verify_message;
use handle_proto::code::{Cipher, KeyExchangeMode};
use handle_proto::data;
use handle_proto::limit::{FRAGMENTS_MAX, MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::session::SessionKey;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Envelope, Header, Message, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, Value, Version, fold};
use handle_tests::admin_server::{AdminServer, administer, administer_from};
use handle_tests::fields::to_message;
use handle_tests::test_server::{OmittedHandles, TestServer, serve_from, server_key, server_key_in};
use handle_tests::vectors::{self, LineChecks, LineOutcome, NO_SERVER, VectorSource};
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::LazyLock;
use std::time::Duration;

/// Time limit for an answer. Stretching a secret takes seconds on a loaded machine without
/// optimisation.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time to listen where no answer is expected.
const SILENCE: Duration = Duration::from_millis(150);

/// How the answer to a line must compare with that of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    /// The same bytes.
    Same,
    /// An answer with this response code.
    Code(i32),
    /// No answer.
    Silence,
    /// The same bytes except for flags of the envelope that the reference echoes.
    EnvelopeFlags,
    /// The same bytes except for the version, which we cap.
    Version,
    /// The same header and body, and the connection stays open.
    KeepsOpen,
    /// The same values without those that nobody may read.
    Withheld,
}

impl Expectation {
    /// The text in the document.
    fn text(self) -> String {
        match self {
            Self::Same => "same".to_owned(),
            Self::Code(code) => format!("code {code}"),
            Self::Silence => "silence".to_owned(),
            Self::EnvelopeFlags => "envelope flags".to_owned(),
            Self::Version => "version".to_owned(),
            Self::KeepsOpen => "keeps open".to_owned(),
            Self::Withheld => "withheld".to_owned(),
        }
    }
}

/// A permitted kind of difference.
struct Kind {
    name: &'static str,
    expected: Expectation,
    applies: fn(&LineFacts) -> bool,
    /// Number of lines of our own files with this difference, by [`PeerKind`]. Kinds without a line
    /// are checked with synthetic lines.
    lines_count: [usize; 3],
}

impl Kind {
    const fn new(
        name: &'static str,
        expected: Expectation,
        lines_count: [usize; 3],
        applies: fn(&LineFacts) -> bool,
    ) -> Self {
        Self { name, expected, applies, lines_count }
    }
}

/// All kinds, as in `docs/conformance.md`. The first that applies to a line and fits its answer
/// counts.
const KINDS: [Kind; 13] = [
    Kind::new("echoed envelope flags", Expectation::EnvelopeFlags, [6, 0, 3], |line| {
        match line.reference.as_slice() {
            [one] => one.get(2).is_some_and(|byte| byte & 0xa0 != 0),
            _ => false,
        }
    }),
    Kind::new("uncapped version", Expectation::Version, [2, 0, 2], |line| {
        let first = line.reference.first().and_then(|unit| unit.first_chunk());
        first.is_some_and(|version: &[u8; 2]| *version > [Version::CURRENT.major, Version::CURRENT.minor])
    }),
    Kind::new("shorter than an envelope", Expectation::Silence, [6, 0, 0], |line| {
        line.is_udp && line.request.iter().any(|unit| unit.len() < Envelope::LEN)
    }),
    Kind::new("impossible fragment", Expectation::Silence, [0; 3], |line| {
        let is_impossible = |unit: &Vec<u8>| {
            Envelope::split(unit).is_ok_and(|(envelope, _)| {
                let count = (envelope.message_len as usize).div_ceil(UDP_DATA_LEN_MAX).max(1);
                envelope.flags.has(EnvelopeFlags::TRUNCATED) && envelope.sequence as usize >= count
            })
        };
        line.is_udp && line.request.iter().any(is_impossible)
    }),
    Kind::new("header past the end", Expectation::Code(4), [2, 0, 0], |line| {
        line.message_len.is_some_and(|len| len < Header::LEN) && line.is_answered_as_readable()
    }),
    Kind::new("body past the end", Expectation::Code(2), [14, 0, 1], |line| {
        let is_unreadable = line.message_len.is_some_and(|len| len >= Header::LEN) && !line.decodes;
        is_unreadable && line.is_answered_as_readable()
    }),
    Kind::new("connection kept", Expectation::KeepsOpen, [5, 0, 6], |line| {
        !line.is_udp && line.is_closed && line.flags.has(OpFlags::KEEP_CONNECTION)
    }),
    Kind::new("session keys by RSA", Expectation::Code(501), [2, 0, 2], |line| {
        line.exchange.is_some_and(|mode| mode != KeyExchangeMode::DIFFIE_HELLMAN)
    }),
    Kind::new("sessions of old versions", Expectation::Code(501), [0; 3], |line| {
        line.exchange.is_some() && line.version < Version::new(2, 7)
    }),
    Kind::new("values that nobody may read", Expectation::Withheld, [0, 1, 0], |line| {
        values(&line.reference).is_some_and(|values| !values.iter().all(|value| is_readable(value)))
    }),
    Kind::new("hidden values probed without authentication", Expectation::Code(402), [0, 1, 0], |line| {
        line.is_change && !line.is_open && matches!(line.code, Some(200 | 201 | 401))
    }),
    Kind::new("names with control characters", Expectation::Code(102), [0; 3], |line| {
        let names = [OpCode::CREATE_HANDLE, OpCode::HOME_NA].contains(&line.op_code);
        names && line.handle.iter().any(u8::is_ascii_control)
    }),
    Kind::new("prefixes listed", Expectation::Code(1), [0, 1, 0], |line| {
        line.op_code == OpCode::LIST_HANDLES && fold::folded(&line.handle) == b"0.NA/0.NA"
    }),
];

/// Properties of a line for the rules of [`KINDS`].
struct LineFacts {
    request: Vec<Vec<u8>>,
    reference: Vec<Vec<u8>>,
    is_udp: bool,
    /// The reference closed the connection.
    is_closed: bool,
    /// The server allows anonymous administration of all handles.
    is_open: bool,
    /// The response code of the reference.
    code: Option<i32>,
    /// The version in which the answer is requested.
    version: Version,
    op_code: OpCode,
    flags: OpFlags,
    /// The requested handle.
    handle: Vec<u8>,
    /// The key exchange of a session set-up.
    exchange: Option<KeyExchangeMode>,
    /// The operation creates, adds, removes or modifies.
    is_change: bool,
    /// Length of the message, if it was sent in one unit.
    message_len: Option<usize>,
    /// The message decodes completely.
    decodes: bool,
}

impl LineFacts {
    fn of(line: &Json) -> Self {
        let units = |member: &str| line[member].as_array().into_iter().flatten().map(vectors::hex).collect();
        let (request, reference): (Vec<Vec<u8>>, Vec<Vec<u8>>) =
            (units("request_hex"), units("response_hex"));
        let mut facts = Self {
            is_udp: line["transport"] == "udp",
            is_closed: line["connection_after"] == "closed",
            is_open: is_open(line),
            code: response_code(&reference),
            version: Version::new(0, 0),
            op_code: OpCode(0),
            flags: OpFlags::default(),
            handle: Vec::new(),
            exchange: None,
            is_change: false,
            message_len: None,
            decodes: false,
            request,
            reference,
        };
        let bytes = joined(&facts.request);
        let Ok((envelope, rest)) = Envelope::split(&bytes) else { return facts };
        let message = &rest[..rest.len().min(envelope.message_len as usize)];
        facts.version = envelope.effective_suggested();
        facts.message_len = (facts.request.len() == 1).then_some(message.len());
        let Ok(message) = Message::decode(message) else { return facts };
        (facts.op_code, facts.flags) = (message.header.op_code, message.header.flags);
        let Ok(body) = message.decode_body(envelope.version) else { return facts };
        facts.decodes = true;
        let Body::Request(request) = body else { return facts };
        match request {
            Request::SessionSetup(set_up) => facts.exchange = Some(set_up.exchange.mode()),
            Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
                (facts.handle, facts.is_change) = (body.handle.to_vec(), true);
            }
            Request::RemoveValue(body) => (facts.handle, facts.is_change) = (body.handle.to_vec(), true),
            Request::ListHandles(body) | Request::HomeNa(body) => facts.handle = body.handle.to_vec(),
            _ => {}
        }
        facts
    }

    /// Whether the reference reported no error in the encoding.
    fn is_answered_as_readable(&self) -> bool {
        self.code.is_some_and(|code| !matches!(code, 2 | 4))
    }
}

/// The values in an answer.
fn values(units: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let bytes = joined(units);
    let (envelope, rest) = Envelope::split(&bytes).ok()?;
    match Message::decode(rest).ok()?.decode_body(envelope.version).ok()? {
        Body::Reply(Reply { response: Response::Answer(answer), .. }) => {
            let encoded = answer.values.iter().map(|value| {
                let mut bytes = Vec::new();
                value.encode(&mut bytes);
                bytes
            });
            Some(encoded.collect())
        }
        _ => None,
    }
}

/// Whether anybody may read a value.
fn is_readable(value: &[u8]) -> bool {
    Value::split(value).is_ok_and(|(value, _)| {
        value.permissions.0 & (Permissions::ADMIN_READ.0 | Permissions::PUBLIC_READ.0) != 0
    })
}

/// The servers of the vectors.
static SERVERS: LazyLock<Json> = LazyLock::new(|| vectors::document("servers.json")["servers"].clone());

/// Whether the server of a line allows anonymous administration of all handles.
fn is_open(line: &Json) -> bool {
    let server = &SERVERS[line["server"].as_str().unwrap_or_default()];
    server["server_config"]["anonymous_admin_full_access"] == "yes"
}

/// The table of the document is that of [`KINDS`].
#[test]
fn vectors_conversations_differ_by_the_kinds_of_the_document() {
    let text = include_str!("../../../docs/conformance.md");
    let (_, table) = text.split_once("<!-- kinds of conversations -->").expect("the mark before the table");
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows: Vec<[String; 2]> = rows
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert!(cells.len() == 6 && cells.iter().skip(1).take(4).all(|cell| !cell.is_empty()), "{line}");
            [cells[1].to_owned(), cells[2].to_owned()]
        })
        .collect();
    let kinds: Vec<_> = KINDS.iter().map(|kind| [kind.name.to_owned(), kind.expected.text()]).collect();
    assert_eq!(rows, kinds);
}

/// The received answer.
struct ReceivedUnits {
    /// Datagrams, or the messages of a stream; a partial message at the end counts as one.
    units: Vec<Vec<u8>>,
    /// The connection was closed after them.
    closed: bool,
}

fn exchange(address: SocketAddr, line: &Json, expected: Expectation) -> ReceivedUnits {
    if line["transport"] == "tcp" {
        exchange_over_tcp(address, line, expected)
    } else {
        ReceivedUnits { units: exchange_over_udp(address, line, expected), closed: false }
    }
}

fn exchange_over_tcp(address: SocketAddr, line: &Json, expected: Expectation) -> ReceivedUnits {
    let mut stream = TcpStream::connect(address).unwrap();
    for bytes in line["request_hex"].as_array().unwrap() {
        stream.write_all(&vectors::hex(bytes)).unwrap();
    }
    if line["client_closes_sending_side"] == true {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let stays = expected == Expectation::KeepsOpen || line["connection_after"] == "open";
    stream.set_read_timeout(Some(if stays { SILENCE } else { TIMEOUT })).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1 << 16]);
    let closed = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(_) => break false,
        }
    };
    let (mut units, mut rest) = (Vec::new(), &bytes[..]);
    while let Ok(StreamFront::Message(unit, after)) = split(rest, MESSAGE_LEN_MAX) {
        units.push(unit.to_vec());
        rest = after;
    }
    units.extend((!rest.is_empty()).then(|| rest.to_vec()));
    ReceivedUnits { units, closed }
}

fn exchange_over_udp(address: SocketAddr, line: &Json, expected: Expectation) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    for datagram in line["request_hex"].as_array().unwrap() {
        socket.send(&vectors::hex(datagram)).unwrap();
    }
    let silent = match expected {
        Expectation::Silence => true,
        Expectation::Same => line["response_hex"].is_null(),
        _ => false,
    };
    socket.set_read_timeout(Some(if silent { SILENCE } else { TIMEOUT })).unwrap();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => answers.push(buffer[..len].to_vec()),
            Err(_) => return answers,
        }
        let len = answers.iter().map(|answer| answer.len() - Envelope::LEN).sum::<usize>();
        let envelope = Envelope::split(&answers[0]).unwrap().0;
        if len >= envelope.message_len as usize {
            return answers;
        }
    }
}

/// Offset of the byte with the flag for keeping the connection.
const KEEP_CONNECTION_AT: usize = Envelope::LEN + 8;
const KEEP_CONNECTION_BIT: u8 = 0x02;

/// The answers with nondeterministic bytes cleared, and the bits in which `expected` permits a
/// difference.
fn masked(answers: &[Vec<u8>], line: &Json, expected: Expectation) -> Vec<Vec<u8>> {
    let mut answers = answers.to_vec();
    for range in line["nondeterministic"].as_array().into_iter().flatten() {
        let at = |name: &str| usize::try_from(range[name].as_u64().unwrap()).unwrap();
        if let Some(answer) = answers.get_mut(at("unit")) {
            let len = answer.len();
            answer[at("start").min(len)..at("end").min(len)].fill(0);
        }
    }
    for answer in &mut answers {
        match expected {
            Expectation::EnvelopeFlags => answer[2] &= 0x03,
            Expectation::Version => answer[..2].fill(0),
            // The answer says whether the server keeps the connection.
            Expectation::KeepsOpen => answer[KEEP_CONNECTION_AT] &= !KEEP_CONNECTION_BIT,
            _ => {}
        }
    }
    answers
}

fn response_code(answers: &[Vec<u8>]) -> Option<i32> {
    let message = joined(answers);
    Some(Message::decode(message.get(Envelope::LEN..)?).ok()?.header.response_code.0)
}

/// Whether the answer has a credential.
fn is_signed(answers: &[Vec<u8>]) -> bool {
    let message: Vec<u8> = answers.iter().flat_map(|answer| &answer[Envelope::LEN..]).copied().collect();
    Message::decode(&message).is_ok_and(|message| !message.credential.is_empty())
}

/// Whether the answer is signed with the private half of `key`.
fn verifies(answers: &[Vec<u8>], key: &PublicKey) -> bool {
    let Some((envelope, _)) = answers.first().and_then(|answer| Envelope::split(answer).ok()) else {
        return false;
    };
    let message: Vec<u8> = answers.iter().flat_map(|answer| &answer[Envelope::LEN..]).copied().collect();
    Message::decode(&message).is_ok_and(|message| verify_message(&envelope, &message, key).is_ok())
}

/// Envelope, header, exchange, cipher, and the numbers of the group.
type ConversationSetup = (Envelope, Header, KeyExchangeMode, Cipher, [Vec<u8>; 2]);

/// The answer to a set-up by Diffie-Hellman without the parts that vary: session number,
/// expiration, and the public value, whose length varies as well.
fn set_up(answers: &[Vec<u8>]) -> Option<ConversationSetup> {
    let (envelope, rest) = Envelope::split(answers.first()?).ok()?;
    let message = Message::decode(rest).ok()?;
    let Ok(Body::Reply(Reply { response: Response::Session(answer), .. })) =
        message.decode_body(envelope.version)
    else {
        return None;
    };
    let key = SessionKey::decode(answer.data, envelope.version, SessionKey::DIFFIE_HELLMAN_SINCE).ok()?;
    let Ok(data::PublicKey::Dh { p, g, .. }) = data::PublicKey::decode(key.key) else { return None };
    assert!(envelope.session_id > 0, "a session has a number");
    let envelope = Envelope { session_id: 0, message_len: 0, ..envelope };
    let header = Header { expiration: 0, body_len: 0, ..message.header };
    let group = [p, g].map(|number| number.as_bytes().to_vec());
    Some((envelope, header, answer.mode, key.cipher, group))
}

/// The difference between the answers to a line and those expected, if any.
///
/// Signatures vary, so they are verified with `key`.
fn find_mismatch(
    line: &Json,
    expected: Expectation,
    answers: &ReceivedUnits,
    key: &PublicKey,
) -> Option<String> {
    let ReceivedUnits { units: answers, closed } = answers;
    let reference: Vec<Vec<u8>> =
        line["response_hex"].as_array().into_iter().flatten().map(vectors::hex).collect();
    let same = |expected| match (set_up(answers), set_up(&reference)) {
        (Some(ours), Some(reference)) => ours == reference,
        _ => masked(answers, line, expected) == masked(&reference, line, expected),
    };
    let good = match expected {
        Expectation::Same | Expectation::EnvelopeFlags | Expectation::Version => {
            same(expected) && (!is_signed(&reference) || verifies(answers, key))
        }
        Expectation::Code(code) => response_code(answers) == Some(code),
        Expectation::Withheld => {
            let expected = values(&reference).map(|mut values| {
                values.retain(|value| is_readable(value));
                values
            });
            expected.is_some() && values(answers) == expected
        }
        Expectation::Silence => answers.is_empty(),
        Expectation::KeepsOpen => {
            let first = answers.get(..1).unwrap_or_default();
            let same = masked(first, line, expected) == masked(&reference, line, expected);
            same && (!is_signed(&reference) || verifies(first, key)) && (!closed || answers.len() > 1)
        }
    };
    let good = good
        && match expected {
            Expectation::KeepsOpen => true,
            _ => *closed == (line["connection_after"] == "closed"),
        };
    let hex = |answers: &[Vec<u8>]| {
        answers.iter().map(|answer| data_encoding::HEXLOWER.encode(answer)).collect::<Vec<_>>().join(" ")
    };
    (!good).then(|| {
        format!(
            "{} ({expected:?}, closed: {closed})\n  asked {}\n  want  {}\n  got   {} (code {:?})",
            line["name"].as_str().unwrap_or("?"),
            line["request_hex"],
            hex(&reference),
            hex(answers),
            response_code(answers),
        )
    })
}

/// Whether a line is for the administration process: everything for servers with anonymous
/// administration, so that changes are visible, and administrative requests for the others.
fn is_administrative(line: &Json) -> bool {
    let first = vectors::hex(&line["request_hex"][0]);
    let op_code =
        first.get(Envelope::LEN..).and_then(|rest| rest.first_chunk()).map(|code| i32::from_be_bytes(*code));
    let op_code = OpCode(op_code.unwrap_or_default());
    if is_open(line) {
        return line["transport"] == "tcp" || op_code == OpCode::RESOLUTION;
    }
    line["transport"] == "tcp"
        && line["request_hex"].as_array().is_some_and(|units| units.len() == 1)
        && op_code.is_admin()
}

/// A line as sent to the administration process, which only answers over TCP.
fn over_tcp(line: &Json) -> Json {
    let mut line = line.clone();
    if line["transport"] == "udp" {
        line["transport"] = "tcp".into();
        line["connection_after"] = "closed".into();
    }
    line
}

/// Sends the request of a line and compares the answer.
fn ask(line: &Json, address: SocketAddr, key: &PublicKey) -> LineOutcome {
    let facts = LineFacts::of(line);
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| (kind.applies)(&facts)).collect();
    let expected = kinds.first().map_or(Expectation::Same, |kind| kind.expected);
    let answers = exchange(address, line, expected);
    let Some(why) = find_mismatch(line, Expectation::Same, &answers, key) else {
        return LineOutcome::AsStated;
    };
    match kinds.iter().find(|kind| find_mismatch(line, kind.expected, &answers, key).is_none()) {
        Some(kind) => LineOutcome::Permitted(kind.name),
        None => panic!("{why}"),
    }
}

/// Process and kind of request, in the order of [`Kind::lines_count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerKind {
    DataProcess,
    Administration,
    Queries,
}

/// A running server of the vectors: its handle, its address, and the records that it lacks.
type RunningServer<S> = (S, SocketAddr, OmittedHandles);

/// Lines, by the server that they are for.
type LinesByServer = BTreeMap<String, Vec<(String, Json)>>;

/// The selected lines, and checks that record those that cannot be sent.
fn lines_by_server(
    is_selected: impl Fn(&Json) -> bool,
    prepared: fn(&Json) -> Json,
) -> (LineChecks, LinesByServer) {
    let (mut checks, mut by_server) = (LineChecks::default(), LinesByServer::new());
    for line in vectors::load("conversations.jsonl") {
        let name = line["name"].as_str().unwrap_or("?").to_owned();
        match vectors::catch_panic(|| is_selected(&line)) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(why) => {
                checks.fail(&name, &why);
                continue;
            }
        }
        let server = line["server"].as_str().unwrap_or_default().to_owned();
        if SERVERS[&server].is_object() || !vectors::is_foreign() {
            by_server.entry(server).or_default().push((name, prepared(&line)));
        } else {
            checks.record(&name, NO_SERVER);
        }
    }
    (checks, by_server)
}

/// Checks the lines of one server.
fn check_on<S>(
    checks: &mut LineChecks,
    name: &str,
    lines: &[(String, Json)],
    serve: impl Fn(&str) -> RunningServer<S>,
    check: impl Fn(&Json, SocketAddr, &PublicKey) -> LineOutcome,
) {
    let running = vectors::catch_panic(|| (serve(name), server_key_in(VectorSource::Selected, name)));
    let ((_server, address, left_out), key) = match running {
        Ok(running) => running,
        Err(why) => {
            let why = format!("the server {name} does not start: {why}");
            lines.iter().for_each(|(line, _)| checks.fail(line, &why));
            return;
        }
    };
    for (name, line) in lines {
        if left_out.contains_handle_of(&line["fields"]["request"]) {
            checks.record(name, LineOutcome::Skipped("its record cannot be published"));
        } else {
            checks.check(name, || check(line, address, &key));
        }
    }
}

/// Checks all lines that `is_selected` selects, with servers started by `serve`.
fn conversations<S>(
    peer: PeerKind,
    is_selected: fn(&Json) -> bool,
    serve: impl Fn(&str) -> RunningServer<S>,
    prepared: fn(&Json) -> Json,
) {
    let (mut checks, by_server) = lines_by_server(is_selected, prepared);
    for (name, lines) in by_server {
        check_on(&mut checks, &name, &lines, &serve, ask);
    }
    vectors::require(checks.count(), 1, "conversations");
    // The counts are exact, so that a kind that applies to another line is noticed.
    let counts = KINDS.map(|kind| (kind.name, checks.permitted(kind.name), kind.lines_count[peer as usize]));
    checks.finish();
    for (name, count, expected) in counts {
        assert!(
            vectors::is_foreign() || count == expected,
            "{name}: {count} lines differ, expected {expected}"
        );
    }
}

/// A synthetic line in which the reference answered `request` differently from our server.
fn synthetic_line(server: &str, transport: &str, request: &[u8]) -> Json {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    let answer = Envelope { message_len: 4, ..Envelope::request(7) }.to_bytes();
    let connection = if transport == "tcp" { "closed".into() } else { Json::Null };
    Json::from_iter([
        ("name", "synthetic".into()),
        ("server", server.into()),
        ("transport", transport.into()),
        ("request_hex", Json::from_iter([hex(request)])),
        ("response_hex", Json::from_iter([hex(&[&answer[..], &[0; 4]].concat())])),
        ("connection_after", connection),
    ])
}

/// Kinds without a line in our own files apply to synthetic lines.
#[test]
fn vectors_conversations_of_kinds_without_a_line() {
    let server = serve_from(VectorSource::Own, "main", Datapath::Portable, |_| ());
    let key = server_key("main");
    let fragment =
        Envelope { flags: EnvelopeFlags::TRUNCATED, message_len: 660, sequence: 2, ..Envelope::request(7) };
    let fragment = [&fragment.to_bytes()[..], &[0; 168]].concat();
    let outcome = ask(&synthetic_line("main", "udp", &fragment), server.address(), &key);
    assert_eq!(outcome, LineOutcome::Permitted("impossible fragment"));

    let lines = VectorSource::Own.lines("credentials.jsonl");
    let mut set_ups = lines.iter().filter(|line| !line["client_dh"].is_null());
    let is_old = |bytes: &Vec<u8>| {
        Envelope::split(bytes).is_ok_and(|(envelope, _)| envelope.effective_suggested() < Version::new(2, 7))
    };
    let set_up = set_ups.find_map(|line| Some(vectors::hex(&line["steps"][0]["send_hex"])).filter(is_old));
    let set_up = set_up.expect("a set-up of an old version");
    let outcome = ask(&synthetic_line("main", "tcp", &set_up), server.address(), &key);
    assert_eq!(outcome, LineOutcome::Permitted("sessions of old versions"));

    let administered = administer("wide_open");
    let lines = VectorSource::Own.lines("conversations.jsonl");
    let is_create =
        |line: &&Json| line["server"] == "wide_open" && line["fields"]["request"]["header"]["opcode"] == 100;
    let mut fields = lines.iter().find(is_create).expect("a creation")["fields"]["request"].clone();
    fields["body"]["handle"] = "TST/\u{7}BELL".into();
    let create = to_message(&fields);
    let outcome =
        ask(&synthetic_line("wide_open", "tcp", &create), administered.address(), &server_key("wide_open"));
    assert_eq!(outcome, LineOutcome::Permitted("names with control characters"));
}

/// The server called `name`; its answers over UDP may be as long as those of the reference.
fn serve(name: &str, datapath: Datapath) -> TestServer {
    let change = |config: &mut handle_worker::config::Config| config.limits.answer_datagrams = FRAGMENTS_MAX;
    serve_from(VectorSource::Selected, name, datapath, change)
}

/// The same with its address.
fn running(name: &str, datapath: Datapath) -> RunningServer<TestServer> {
    let served = serve(name, datapath);
    let (address, left_out) = (served.address(), served.left_out.clone());
    (served, address, left_out)
}

fn conversations_on(datapath: Datapath) {
    let serve = |name: &str| running(name, datapath);
    conversations(PeerKind::DataProcess, |line| !is_administrative(line), serve, Json::clone);
}

/// Starts an administration process.
fn administration(name: &str) -> RunningServer<AdminServer> {
    let (administered, left_out) = administer_from(VectorSource::Selected, name, |_| ());
    let address = administered.address();
    (administered, address, left_out)
}

#[test]
fn vectors_conversations_with_the_administration_process() {
    conversations(PeerKind::Administration, is_administrative, administration, over_tcp);
}

/// Whether a line is a query in one message that the administration process answers from its own
/// records. It has no templates, and refuses no datagrams.
fn is_query_for_administration(line: &Json) -> bool {
    let is_one = |name: &str| line[name].as_array().is_some_and(|all| all.len() == 1);
    let is_of_datagrams =
        ["malformed", "udp_multi_packet_requests"].iter().any(|category| line["category"] == *category);
    let as_stream = over_tcp(line);
    let is_whole = |line: &Json| {
        let bytes = vectors::hex(&line["request_hex"][0]);
        Envelope::split(&bytes).is_ok_and(|(envelope, _)| !envelope.flags.has(EnvelopeFlags::TRUNCATED))
    };
    let fits_a_stream = !is_of_datagrams && is_one("request_hex") && is_one("response_hex") && is_whole(line);
    let server = &SERVERS[line["server"].as_str().unwrap_or_default()];
    let is_of_others = !is_open(line) && server["server_config"]["namespace"].is_null();
    is_of_others && !is_administrative(&as_stream) && (line["transport"] == "tcp" || fits_a_stream)
}

#[test]
fn vectors_conversations_of_queries_with_the_administration_process() {
    let is_selected = is_query_for_administration;
    conversations(PeerKind::Queries, is_selected, administration, over_tcp);
}

/// The data process refuses administrative requests from everybody.
#[test]
fn vectors_conversations_that_are_administrative_are_refused_by_the_data_process() {
    let is_selected = |line: &Json| !is_open(line) && is_administrative(line);
    let (mut checks, by_server) = lines_by_server(is_selected, Json::clone);
    for (name, lines) in by_server {
        let serve = |name: &str| running(name, Datapath::Portable);
        check_on(&mut checks, &name, &lines, serve, |line, address, _| {
            let answers = exchange(address, line, Expectation::Same);
            assert_eq!((response_code(&answers.units), answers.closed), (Some(4), true));
            LineOutcome::AsStated
        });
    }
    checks.finish();
}

#[test]
fn vectors_conversations_over_the_portable_datapath() {
    conversations_on(Datapath::Portable);
}

#[test]
fn vectors_conversations_over_the_datapath_of_this_machine() {
    conversations_on(Datapath::Auto);
}

/// The message that was split into `units`, in its form for streams.
fn joined(units: &[Vec<u8>]) -> Vec<u8> {
    let mut message =
        units.first().map_or_else(Vec::new, |first| first[..first.len().min(Envelope::LEN)].to_vec());
    units.iter().for_each(|unit| message.extend_from_slice(unit.get(Envelope::LEN..).unwrap_or_default()));
    if let Some(flags) = message.get_mut(2) {
        *flags &= !EnvelopeFlags::TRUNCATED.0;
    }
    message
}

/// The datagrams of a message, in hexadecimal.
fn datagrams(message: &[u8]) -> Json {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let datagrams = cut(&envelope).map(|cut| [&cut.envelope, &rest[cut.range]].concat());
    datagrams.map(|datagram| data_encoding::HEXLOWER.encode(&datagram)).collect()
}

/// The message with nondeterministic bytes cleared, which the vectors list by unit.
fn masked_message(mut message: Vec<u8>, line: &Json) -> Vec<u8> {
    for range in line["nondeterministic"].as_array().into_iter().flatten() {
        let [unit, start, end] =
            ["unit", "start", "end"].map(|name| usize::try_from(range[name].as_u64().unwrap()).unwrap());
        let before = unit * UDP_DATA_LEN_MAX;
        let len = message.len();
        message[(before + start).min(len)..(before + end).min(len)].fill(0);
    }
    message
}

/// The answer is the same over both transports, except for its division into datagrams.
#[test]
fn vectors_conversations_over_udp_are_answered_over_tcp_and_the_other_way_round() {
    let is_selected = |line: &Json| {
        let category = line["category"].as_str().unwrap();
        let is_whole = line["request_hex"].as_array().unwrap().len() == 1 && !line["response_hex"].is_null();
        let is_framing = ["malformed", "tcp_streams", "udp_multi_packet_requests"].contains(&category);
        let is_admin = is_administrative(&Json::from_iter([
            ("server", line["server"].clone()),
            ("transport", "tcp".into()),
            ("request_hex", line["request_hex"].clone()),
        ]));
        let facts = LineFacts::of(line);
        is_whole && !is_framing && !is_admin && !KINDS.iter().any(|kind| (kind.applies)(&facts))
    };
    let (mut checks, by_server) = lines_by_server(is_selected, Json::clone);
    for (name, lines) in by_server {
        let serve = |name: &str| running(name, Datapath::Portable);
        check_on(&mut checks, &name, &lines, serve, |line, address, _| {
            let mut other = line.clone();
            let is_tcp = line["transport"] == "tcp";
            (other["transport"], other["connection_after"]) =
                if is_tcp { ("udp".into(), Json::Null) } else { ("tcp".into(), "closed".into()) };
            if is_tcp {
                other["request_hex"] = datagrams(&vectors::hex(&line["request_hex"][0]));
            }
            let ours = exchange(address, &other, Expectation::Same).units;
            let reference: Vec<_> =
                line["response_hex"].as_array().unwrap().iter().map(vectors::hex).collect();
            let same = match (set_up(&ours), set_up(&reference)) {
                (Some(ours), Some(reference)) => ours == reference,
                _ => masked_message(joined(&ours), line) == masked_message(joined(&reference), line),
            };
            assert!(same, "over the other transport: {ours:02x?}");
            LineOutcome::AsStated
        });
    }
    checks.finish();
}
