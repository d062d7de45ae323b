//! `conversations.jsonl` over UDP and TCP: the same bytes as the reference, or a row that says why not.
//!
//! What is administrative and over TCP is asked of the administration process, everything else of the data process;
//! which of the two that is, clients read in the site record.
//!
//! The rows are in `docs/conformance.md`, so what is documented is what is tested. A line that no row
//! names must be answered with the same bytes, apart from those listed as nondeterministic.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PublicKey;
use handle_auth::message::verify_message;
use handle_proto::OpCode;
use handle_proto::code::{Cipher, KeyExchangeMode};
use handle_proto::data;
use handle_proto::limit::{FRAGMENTS_MAX, MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::session::SessionKey;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Envelope, Header, Message, Reply, Response};
use handle_server::config::Datapath;
use handle_tests::admin_server::{AdminServer, administer};
use handle_tests::test_server::{TestServer, serve_with, server_key};
use handle_tests::vectors;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// How long an answer may take before there is none; on loopback it takes microseconds.
const PATIENCE: Duration = Duration::from_millis(2000);
/// How long we listen where no answer is expected.
const SILENCE: Duration = Duration::from_millis(150);

/// What a row of the table says of the lines it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowExpectation {
    /// The same bytes.
    Same,
    /// An answer with this response code.
    Code(i32),
    /// No answer.
    Silence,
    /// The same bytes but for flags of the envelope that are not ours to echo.
    EnvelopeFlags,
    /// The same bytes but for the version, which is capped.
    Version,
    /// The same header and body first, and the connection stays open for more.
    KeepsOpen,
}

struct Row {
    pattern: String,
    expected: RowExpectation,
}

/// The rows of the table behind `mark` in `docs/conformance.md`.
fn rows(mark: &str) -> Vec<Row> {
    let text = include_str!("../../docs/conformance.md");
    let (_, table) = text.split_once(&format!("<!-- {mark} -->")).expect("the mark before the table");
    let lines = table.lines().skip_while(|line| !line.starts_with('|'));
    lines
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            let pattern = cells.next().expect("a pattern").trim_matches('`').to_owned();
            let expected = match cells.next().expect("an expectation") {
                "silence" => RowExpectation::Silence,
                "envelope flags" => RowExpectation::EnvelopeFlags,
                "version" => RowExpectation::Version,
                "keeps open" => RowExpectation::KeepsOpen,
                code => RowExpectation::Code(
                    code.strip_prefix("code ")
                        .and_then(|code| code.parse().ok())
                        .expect("a known expectation"),
                ),
            };
            assert!(cells.next().is_some_and(|why| !why.is_empty()), "{pattern} says why");
            Row { pattern, expected }
        })
        .collect()
}

/// Whether `name` fits `pattern`, in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && fits(rest, &name[at..]))
        }),
    }
}

/// What came back.
struct ReceivedUnits {
    /// Datagrams, or the messages of a stream; what follows the last whole message is one as well.
    units: Vec<Vec<u8>>,
    /// The connection was closed behind them.
    closed: bool,
}

fn exchange(address: SocketAddr, line: &Json, expected: RowExpectation) -> ReceivedUnits {
    if line["transport"] == "tcp" {
        exchange_over_tcp(address, line, expected)
    } else {
        ReceivedUnits { units: exchange_over_udp(address, line, expected), closed: false }
    }
}

fn exchange_over_tcp(address: SocketAddr, line: &Json, expected: RowExpectation) -> ReceivedUnits {
    let mut stream = TcpStream::connect(address).unwrap();
    for bytes in line["request_hex"].as_array().unwrap() {
        stream.write_all(&vectors::hex(bytes)).unwrap();
    }
    if line["client_closes_sending_side"] == true {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let stays = expected == RowExpectation::KeepsOpen || line["connection_after"] == "open";
    stream.set_read_timeout(Some(if stays { SILENCE } else { PATIENCE })).unwrap();
    let (mut bytes, mut room) = (Vec::new(), [0; 1 << 16]);
    let closed = loop {
        match stream.read(&mut room) {
            Ok(0) => break true,
            Ok(len) => bytes.extend_from_slice(&room[..len]),
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

fn exchange_over_udp(address: SocketAddr, line: &Json, expected: RowExpectation) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    for datagram in line["request_hex"].as_array().unwrap() {
        socket.send(&vectors::hex(datagram)).unwrap();
    }
    let silent = match expected {
        RowExpectation::Silence => true,
        RowExpectation::Same => line["response_hex"].is_null(),
        _ => false,
    };
    socket.set_read_timeout(Some(if silent { SILENCE } else { PATIENCE })).unwrap();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut room = [0; 2048];
    loop {
        match socket.recv(&mut room) {
            Ok(len) => answers.push(room[..len].to_vec()),
            Err(_) => return answers,
        }
        let len = answers.iter().map(|answer| answer.len() - Envelope::LEN).sum::<usize>();
        let envelope = Envelope::split(&answers[0]).unwrap().0;
        if len >= envelope.message_len as usize {
            return answers;
        }
    }
}

/// Where a message has the flag for keeping the connection, behind the operation and the response code.
const KEEP_CONNECTION_AT: usize = Envelope::LEN + 8;
const KEEP_CONNECTION_BIT: u8 = 0x02;

/// The answers with everything cleared that varies, and the bits that `expected` allows to differ.
fn masked(answers: &[Vec<u8>], line: &Json, expected: RowExpectation) -> Vec<Vec<u8>> {
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
            RowExpectation::EnvelopeFlags => answer[2] &= 0x03,
            RowExpectation::Version => answer[..2].fill(0),
            // Who keeps the connection says so.
            RowExpectation::KeepsOpen => answer[KEEP_CONNECTION_AT] &= !KEEP_CONNECTION_BIT,
            _ => {}
        }
    }
    answers
}

fn response_code(answers: &[Vec<u8>]) -> Option<i32> {
    let message: Vec<u8> = answers.iter().flat_map(|answer| &answer[Envelope::LEN..]).copied().collect();
    Some(Message::decode(&message).ok()?.header.response_code.0)
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
type SetUp = (Envelope, Header, KeyExchangeMode, Cipher, [Vec<u8>; 2]);

/// The answer to a set-up by Diffie-Hellman, without what is another each time: number of the session, expiration, and
/// the public value, which is not always of the same length.
fn set_up(answers: &[Vec<u8>]) -> Option<SetUp> {
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

/// What is wrong with the answers to a line, if anything is.
///
/// Signatures are among what varies, so they are checked with `key`.
fn judge(line: &Json, expected: RowExpectation, answers: &ReceivedUnits, key: &PublicKey) -> Option<String> {
    let ReceivedUnits { units: answers, closed } = answers;
    let reference: Vec<Vec<u8>> =
        line["response_hex"].as_array().into_iter().flatten().map(vectors::hex).collect();
    let same = |expected| match (set_up(answers), set_up(&reference)) {
        (Some(ours), Some(reference)) => ours == reference,
        _ => masked(answers, line, expected) == masked(&reference, line, expected),
    };
    let good = match expected {
        RowExpectation::Same | RowExpectation::EnvelopeFlags | RowExpectation::Version => {
            same(expected) && (!is_signed(&reference) || verifies(answers, key))
        }
        RowExpectation::Code(code) => response_code(answers) == Some(code),
        RowExpectation::Silence => answers.is_empty(),
        RowExpectation::KeepsOpen => {
            let first = answers.get(..1).unwrap_or_default();
            let same = masked(first, line, expected) == masked(&reference, line, expected);
            same && (!is_signed(&reference) || verifies(first, key)) && (!closed || answers.len() > 1)
        }
    };
    let good = good
        && match expected {
            RowExpectation::KeepsOpen => true,
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

/// Whether a line is for the administration process: everything that the server with anonymous administration is asked
/// there, so that what was changed is seen, and what is administrative of the others.
fn is_administrative(line: &Json) -> bool {
    let first = vectors::hex(&line["request_hex"][0]);
    let op_code =
        first.get(Envelope::LEN..).and_then(|rest| rest.first_chunk()).map(|it| i32::from_be_bytes(*it));
    let op_code = OpCode(op_code.unwrap_or_default());
    match line["server"].as_str() {
        Some(WIDE_OPEN) => line["transport"] == "tcp" || op_code == OpCode::RESOLUTION,
        _ => {
            line["transport"] == "tcp"
                && line["request_hex"].as_array().is_some_and(|it| it.len() == 1)
                && op_code.is_admin()
        }
    }
}

/// The server with anonymous administration.
const WIDE_OPEN: &str = "wide_open";

/// A line as it is asked of the administration process, which answers over TCP alone.
fn over_tcp(line: &Json) -> Json {
    let mut line = line.clone();
    if line["transport"] == "udp" {
        line["transport"] = "tcp".into();
        line["connection_after"] = "closed".into();
    }
    line
}

/// The rows, and how often each was needed.
struct ConversationJudge {
    rows: Vec<Row>,
    /// How many lines a row names, and how many of them really differ.
    used: Vec<(usize, usize)>,
    wrong: Vec<String>,
    lines_count: usize,
}

impl ConversationJudge {
    fn ask(&mut self, line: &Json, address: SocketAddr, key: &PublicKey) {
        let name = line["name"].as_str().expect("a name");
        let row = self.rows.iter().position(|row| fits(&row.pattern, name));
        let expected = row.map_or(RowExpectation::Same, |row| self.rows[row].expected);
        let answers = exchange(address, line, expected);
        self.wrong.extend(judge(line, expected, &answers, key));
        self.lines_count += 1;
        if let Some(row) = row {
            self.used[row].0 += 1;
            self.used[row].1 += usize::from(judge(line, RowExpectation::Same, &answers, key).is_some());
        }
    }
}

/// Asks all lines that `is_asked` says, of servers that `serve` starts.
fn conversations<S>(
    mark: &str,
    is_asked: fn(&Json) -> bool,
    serve: impl Fn(&str) -> (S, SocketAddr),
    prepared: fn(&Json) -> Json,
) {
    let rows = rows(mark);
    let mut judged =
        ConversationJudge { used: vec![(0, 0); rows.len()], rows, wrong: Vec::new(), lines_count: 0 };
    let mut by_server: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for line in vectors::load("conversations.jsonl").into_iter().filter(is_asked) {
        let server = line["server"].as_str().expect("a server").to_owned();
        by_server.entry(server).or_default().push(prepared(&line));
    }
    for (name, lines) in by_server {
        let (_served, address) = serve(&name);
        let key = server_key(&name);
        lines.iter().for_each(|line| judged.ask(line, address, &key));
    }
    let ConversationJudge { rows, used, mut wrong, lines_count } = judged;
    assert!(lines_count > 0, "there are conversations");
    // A row whose lines are all answered like the reference explains nothing and must go.
    for (row, (named, differ)) in rows.iter().zip(used) {
        if named > 0 && differ == 0 {
            wrong.push(format!("{}: the row is not needed, all {named} lines are the same", row.pattern));
        }
        // Other vectors may lack lines that ours have.
        if named == 0 && std::env::var_os("HANDLE_VECTORS").is_none() {
            wrong.push(format!("{}: the row names no line", row.pattern));
        }
    }
    assert!(wrong.is_empty(), "{} of {lines_count} lines:\n{}", wrong.len(), wrong.join("\n"));
}

/// The server called `name`, whose answers over UDP may be as long as those of the reference.
fn serve(name: &str, datapath: Datapath) -> TestServer {
    serve_with(name, datapath, |config| config.limits.answer_datagrams = FRAGMENTS_MAX)
}

fn conversations_on(datapath: Datapath) {
    let serve = |name: &str| {
        let served = serve(name, datapath);
        let address = served.address();
        (served, address)
    };
    conversations("conversations", |line| !is_administrative(line), serve, Json::clone);
}

/// Starts an administration process; gives where it answers, too.
fn administration(name: &str) -> (AdminServer, SocketAddr) {
    let administered = administer(name);
    let address = administered.address();
    (administered, address)
}

#[test]
fn vectors_conversations_with_the_administration_process() {
    conversations("administration", is_administrative, administration, over_tcp);
}

/// Whether a line is a query that the administration process answers from its own records, too, in one message. It has
/// no templates; and what is about datagrams, and refused where they come, is not for a stream.
fn is_query_for_administration(line: &Json) -> bool {
    let is_one = |name: &str| line[name].as_array().is_some_and(|all| all.len() == 1);
    let is_of_datagrams = ["malformed", "udp_multi_packet_requests"].iter().any(|it| line["category"] == *it);
    let as_stream = over_tcp(line);
    let fits_a_stream = !is_of_datagrams && is_one("request_hex") && is_one("response_hex");
    let is_of_others = line["server"] != WIDE_OPEN && line["server"] != "template";
    is_of_others && !is_administrative(&as_stream) && (line["transport"] == "tcp" || fits_a_stream)
}

#[test]
fn vectors_conversations_of_queries_with_the_administration_process() {
    let is_asked = is_query_for_administration;
    conversations("queries of administration", is_asked, administration, over_tcp);
}

/// The data process only reads, whoever asks.
#[test]
fn what_is_administrative_is_refused_by_the_data_process() {
    let served = serve("main", Datapath::Portable);
    for line in vectors::load("conversations.jsonl").iter().filter(|line| is_administrative(line)) {
        if line["server"] == "main" {
            let answers = exchange(served.address(), line, RowExpectation::Same);
            let code = response_code(&answers.units);
            assert_eq!((code, answers.closed), (Some(4), true), "{}", line["name"]);
        }
    }
}

#[test]
fn vectors_conversations_over_the_portable_datapath() {
    conversations_on(Datapath::Portable);
}

#[test]
fn vectors_conversations_over_the_datapath_of_this_machine() {
    conversations_on(Datapath::Auto);
}

/// The message that was cut into `units`, as a stream carries it.
fn joined(units: &[Vec<u8>]) -> Vec<u8> {
    let mut message = units.first().map_or_else(Vec::new, |first| first[..Envelope::LEN].to_vec());
    units.iter().for_each(|unit| message.extend_from_slice(&unit[Envelope::LEN..]));
    if let Some(flags) = message.get_mut(2) {
        *flags &= !EnvelopeFlags::TRUNCATED.0;
    }
    message
}

/// A message as the datagrams that carry it, in hexadecimal.
fn datagrams(message: &[u8]) -> Json {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let datagrams = cut(&envelope).map(|cut| [&cut.envelope, &rest[cut.range]].concat());
    datagrams.map(|datagram| data_encoding::HEXLOWER.encode(&datagram)).collect()
}

/// The message without what varies, which the vectors name by unit.
fn fixed(mut message: Vec<u8>, line: &Json) -> Vec<u8> {
    for range in line["nondeterministic"].as_array().into_iter().flatten() {
        let [unit, start, end] =
            ["unit", "start", "end"].map(|name| usize::try_from(range[name].as_u64().unwrap()).unwrap());
        let before = unit * UDP_DATA_LEN_MAX;
        let len = message.len();
        message[(before + start).min(len)..(before + end).min(len)].fill(0);
    }
    message
}

/// Nothing but the datagrams tells one transport from the other.
#[test]
fn what_is_answered_over_udp_is_answered_over_tcp_and_the_other_way_round() {
    let rows = rows("conversations");
    let is_asked = |line: &Json| {
        let (name, category) = (line["name"].as_str().unwrap(), line["category"].as_str().unwrap());
        let is_whole = line["request_hex"].as_array().unwrap().len() == 1 && !line["response_hex"].is_null();
        let is_framing = ["malformed", "tcp_streams", "udp_multi_packet_requests"].contains(&category);
        let is_admin = is_administrative(&Json::from_iter([
            ("server", line["server"].clone()),
            ("transport", "tcp".into()),
            ("request_hex", line["request_hex"].clone()),
        ]));
        is_whole && !is_framing && !is_admin && !rows.iter().any(|row| fits(&row.pattern, name))
    };
    let mut by_server: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for line in vectors::load("conversations.jsonl").into_iter().filter(is_asked) {
        by_server.entry(line["server"].as_str().unwrap().to_owned()).or_default().push(line);
    }
    let (mut wrong, mut asked_count) = (Vec::new(), 0);
    for (name, lines) in by_server {
        let served = serve(&name, Datapath::Portable);
        for line in lines {
            let mut other = line.clone();
            let is_tcp = line["transport"] == "tcp";
            (other["transport"], other["connection_after"]) =
                if is_tcp { ("udp".into(), Json::Null) } else { ("tcp".into(), "closed".into()) };
            if is_tcp {
                other["request_hex"] = datagrams(&vectors::hex(&line["request_hex"][0]));
            }
            let ours = exchange(served.address(), &other, RowExpectation::Same).units;
            let reference: Vec<_> =
                line["response_hex"].as_array().unwrap().iter().map(vectors::hex).collect();
            let same = match (set_up(&ours), set_up(&reference)) {
                (Some(ours), Some(reference)) => ours == reference,
                _ => fixed(joined(&ours), &line) == fixed(joined(&reference), &line),
            };
            wrong.extend((!same).then(|| format!("{} over the other: {ours:02x?}", line["name"])));
            asked_count += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {asked_count} lines:\n{}", wrong.len(), wrong.join("\n"));
}
