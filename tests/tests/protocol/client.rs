//! Choice of servers, authentication and HTTP of the client, compared with the reference:
//! `hashing.jsonl`, `credentials.jsonl` and `http.jsonl`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::{Algorithm, PrivateKey};
use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_client::bootstrap::Root;
use handle_client::exchange::{AnswerTimeouts, AttemptError, Exchange, ReceivedAnswer, RequestHead};
use handle_client::lookup::{Client, Lookup, LookupOptions, LookupTarget};
use handle_client::plan::{InterfacePurpose, Preferences, ServerTarget, plan};
use handle_client::question::AnswerWants;
use handle_client::times::ServerTimes;
use handle_client::{Allowances, ClockReading, Question};
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::limit::{MESSAGE_EXPIRATION_S, PBKDF2_SALT_LEN};
use handle_proto::wire::auth::SecretAnswer;
use handle_proto::wire::message::Body;
use handle_proto::wire::{Envelope, Header, Message, Request, Response};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode};
use handle_tests::transcripts::{lines, private_keys};
use handle_tests::vectors::{
    LineChecks, LineOutcome, bytes, check_kind, check_lines, document, has_server, hex, load, require,
};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

#[test]
fn vectors_hashing_chooses_the_same_server_of_a_site() {
    check_kind("hashing.jsonl", "hash", |_, line| {
        let servers_count = u32::try_from(line["number_of_servers"].as_u64().unwrap()).unwrap();
        let mut site = SiteBuilder::new();
        site.hash_option_number = u8::try_from(line["hash_option"].as_u64().unwrap()).unwrap();
        for at in 0..servers_count {
            // Only the order of the list counts, so the numbers are in another order.
            site.server(ServerBuilder {
                id: i32::try_from(servers_count - at).unwrap(),
                address: IpAddr::from(Ipv4Addr::from(0xc000_0200 + at)).into(),
                public_key: vec![],
                interfaces: vec![Interface::new(InterfaceKind::BOTH, InterfaceProtocol::TCP, 2641)],
            });
        }
        let handle = bytes(&line["handle"]);
        let purpose = InterfacePurpose { kind: InterfaceKind::QUERY, primary_only: false };
        let (preferences, times, now) =
            (Preferences::default(), ServerTimes::new(1), ClockReading { ms: 0, unix_s: 0 });
        let sites = [Arc::new(site.build())];
        let plan = plan(&sites, Handle(&handle), purpose, &preferences, &times, now, &mut || 0);
        let chosen: Vec<_> = plan.iter().map(|target| target.position.0).collect();
        // The reference has no server for a negative hash and for unknown hash options.
        if line["hash"].as_i64().is_some_and(|hash| hash < 0) {
            assert_eq!(chosen.len(), 1, "{line}");
        } else {
            let expected: Vec<_> = line["server_index"].as_u64().into_iter().collect();
            let is_only_server = expected.is_empty() && servers_count == 1;
            assert!(is_only_server || chosen.iter().map(|&at| at as u64).eq(expected), "{line}: {chosen:?}");
        }
    });
}

/// The decoded request of a step.
struct SentRequest {
    envelope: Envelope,
    header: Header,
    covered: Vec<u8>,
    bytes: Vec<u8>,
}

impl SentRequest {
    fn of(step: &Json) -> Self {
        Self::new(hex(&step["send_hex"]))
    }

    fn new(bytes: Vec<u8>) -> Self {
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        let message = Message::decode(rest).unwrap();
        Self { envelope, header: message.header, covered: message.covered.to_vec(), bytes }
    }

    fn with<T>(&self, with: impl FnOnce(Request<'_>) -> T) -> T {
        let (envelope, rest) = Envelope::split(&self.bytes).unwrap();
        let message = Message::decode(rest).unwrap();
        let Ok(Body::Request(request)) = message.decode_body(envelope.version) else { panic!("no request") };
        with(request)
    }

    fn question(&self) -> Question {
        let wants = AnswerWants {
            certified: self.header.flags.has(OpFlags::CERTIFY),
            authoritative: self.header.flags.has(OpFlags::AUTHORITATIVE),
            public_only: self.header.flags.has(OpFlags::PUBLIC_ONLY),
        };
        self.with(|request| match request {
            Request::Resolution(query) => Question {
                handle: query.handle.to_vec(),
                indexes: query.indexes.iter().collect(),
                types: query.types.into_iter().map(<[u8]>::to_vec).collect(),
                wants,
            },
            _ => panic!("no resolution"),
        })
    }

    /// The random bits from which the client makes this request number.
    const fn random(&self) -> u32 {
        self.envelope.request_id.cast_unsigned() << 1
    }

    /// The response to the challenge, and the salt in it.
    fn proof(&self) -> (Vec<u8>, [u8; PBKDF2_SALT_LEN]) {
        self.with(|request| match request {
            Request::AnswerChallenge(answer) => {
                let salt = match SecretAnswer::decode(answer.signed_response) {
                    Ok(SecretAnswer::Pbkdf2 { salt, .. }) => salt.try_into().unwrap_or_default(),
                    _ => [0; PBKDF2_SALT_LEN],
                };
                (answer.signed_response.to_vec(), salt)
            }
            _ => panic!("no answer to a challenge"),
        })
    }
}

fn identity(line: &Json, records: &HashMap<String, Vec<u8>>) -> Arc<ClientIdentity> {
    let identity = &line["identity"];
    let key = match identity["key_id"].as_str() {
        Some(id) => IdentityKey::Private(Box::new(PrivateKey::from_record(&records[id]).unwrap())),
        None => IdentityKey::Secret(hex(&identity["secret_hex"]).into()),
    };
    let index = i32::try_from(identity["index"].as_i64().unwrap()).unwrap();
    Arc::new(ClientIdentity { handle: bytes(&identity["handle"]), index, key })
}

/// Replays a recorded read with our client, with the request numbers and salts of the recording.
///
/// Returns false if the line is not a read of this form.
fn replays(line: &Json, records: &HashMap<String, Vec<u8>>) -> bool {
    let name = line["name"].as_str().unwrap();
    let steps = line["steps"].as_array().unwrap();
    let code = line["final_response_code"].as_i64().unwrap();
    let (first, second) = match steps.as_slice() {
        // A transcript of one step that ends with a challenge: the reference could not answer it.
        [first] if code != i64::from(ResponseCode::AUTHENTICATION_NEEDED.0) => (first, None),
        [first, second] => (first, Some(second)),
        _ => return false,
    };
    let request = SentRequest::of(first);
    if request.header.op_code != OpCode::RESOLUTION || request.question().flags() != request.header.flags {
        return false;
    }
    // In this order: the number of the request, the salt, the number of the answer to the
    // challenge.
    let mut numbers = vec![request.random()];
    let proof = second.map(|second| {
        let proved = SentRequest::of(second);
        let (proof, salt) = proved.proof();
        numbers.extend(salt.chunks(4).map(|part| u32::from_be_bytes(part.try_into().unwrap())));
        numbers.push(proved.random());
        (proof, hex(&second["receive_hex"][0]))
    });
    let mut numbers = numbers.into_iter();
    let client = Arc::new(Client::new(Root::default()));
    let target = ServerTarget {
        version: request.envelope.version,
        site_serial: request.header.site_serial,
        public_key: server_record("root"),
        ..ServerTarget::at((Ipv4Addr::LOCALHOST, 2641).into(), InterfaceProtocol::TCP)
    };
    let options = LookupOptions {
        identity: Some(identity(line, records)),
        target: LookupTarget::Servers(vec![target]),
        // Some transcripts use versions below 2.7.
        allowances: Allowances { old_proofs: true, ..Allowances::NONE },
        ..LookupOptions::default()
    };
    // Both times are taken from the recording.
    let late = ClockReading { ms: 0, unix_s: request.header.expiration - MESSAGE_EXPIRATION_S };
    let early = ClockReading { ms: 0, unix_s: 1_700_000_000 };
    let random = Box::new(move || numbers.next().expect("as many random numbers as recorded"));
    let mut lookup = Lookup::new(client, request.question(), options, random, late);
    let (number, transmit) = lookup.poll_transmit(late).expect(name);
    let ours = SentRequest::new(transmit.datagrams[0].clone());
    assert_eq!(
        (&ours.covered, ours.envelope.request_id),
        (&request.covered, request.envelope.request_id),
        "{name}"
    );
    let mut last = hex(&first["receive_hex"][0]);
    lookup.handle_stream(early, number, &last);
    if let Some((proof, received)) = proof {
        let (number, transmit) = lookup.poll_transmit(early).expect(name);
        let ours = SentRequest::new(transmit.datagrams[0].clone());
        // DSA signatures contain a random number.
        let is_dsa = matches!(&identity(line, records).key, IdentityKey::Private(key) if key.algorithm() == Algorithm::Dsa);
        if !is_dsa {
            assert_eq!(ours.proof().0, proof, "{name}");
        }
        lookup.handle_stream(early, number, &received);
        last = received;
    }
    let outcome = lookup.take_outcome().expect(name);
    let answer = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(i64::from(answer.code.0), code, "{name}");
    assert_eq!(answer.certified, request.header.flags.has(OpFlags::CERTIFY), "{name}");
    let (envelope, rest) = Envelope::split(&last).unwrap();
    let Ok(Body::Reply(reply)) = Message::decode(rest).unwrap().decode_body(envelope.version) else {
        panic!("{name}: no reply")
    };
    if let Response::Answer(expected) = reply.response {
        assert!(answer.values().iter().eq(expected.values.iter()), "{name}");
    }
    true
}

/// The public key record of a server of the reference.
fn server_record(name: &str) -> Vec<u8> {
    let servers = document("servers.json");
    let id = servers["servers"][name]["server_key_id"].as_str().unwrap();
    hex(&servers["keys"][id]["handle_public_hex"])
}

#[test]
fn vectors_transcripts_of_authenticated_reads_are_those_of_our_client() {
    let transcripts = lines("transcript");
    if !has_server("root", &transcripts) {
        return;
    }
    let record =
        |line: &Json| (line["key_id"].as_str().unwrap().to_owned(), hex(&line["handle_private_hex"]));
    let usable = private_keys();
    let records: HashMap<_, _> =
        lines("key").iter().map(record).filter(|(id, _)| usable.contains_key(id)).collect();
    let has_usable_key =
        |line: &&Json| line["identity"]["key_id"].as_str().is_none_or(|id| records.contains_key(id));
    let (mut checks, mut plain, mut certified) = (LineChecks::default(), 0, 0);
    for line in transcripts.iter().filter(has_usable_key) {
        let is_certified = line["steps"][0]["send_fields"]["header"]["flags"]["certify"] == true;
        checks.check(line["name"].as_str().unwrap_or("?"), || {
            if !replays(line, &records) {
                return LineOutcome::Skipped("not a single authenticated read");
            }
            *if is_certified { &mut certified } else { &mut plain } += 1;
            LineOutcome::AsStated
        });
    }
    checks.finish();
    require(plain, 30, "plain reads");
    require(certified, 1, "certified reads");
}

/// Outcome of an HTTP exchange that sends `message` and receives `answer` in pieces of `part_len`.
fn receive(message: &[u8], answer: &[u8], part_len: usize) -> Result<Option<ReceivedAnswer>, AttemptError> {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let message = Message::decode(rest).unwrap();
    let Ok(Body::Request(request)) = message.decode_body(envelope.version) else { panic!("a request") };
    let head = RequestHead {
        answered_as: message.header.op_code,
        ..RequestHead::resolution(OpFlags::PLAIN_REQUEST, envelope.request_id)
    };
    let (now, target) = (
        ClockReading { ms: 0, unix_s: 0 },
        ServerTarget::at(([127, 0, 0, 1], 80).into(), InterfaceProtocol::HTTP),
    );
    let mut exchange = Exchange::new(target, head, &request, &AnswerTimeouts::default(), now).unwrap();
    for part in answer.chunks(part_len) {
        if let Some(answered) = exchange.handle_stream(now, part)? {
            return Ok(Some(answered));
        }
    }
    Ok(None)
}

#[test]
fn vectors_native_answers_over_http_are_read_in_any_framing() {
    let (mut answers, mut refusals, mut others) = (0, 0, 0);
    let native: Vec<_> = load("http.jsonl").into_iter().filter(|line| line["category"] == "native").collect();
    check_lines(native.into_iter().map(|line| (line["name"].to_string(), line)), |_, line| {
        let request = line["request_body"]["hex"]
            .as_str()
            .map(|_| hex(&line["request_body"]["hex"]))
            .unwrap_or_default();
        let is_request = Envelope::split(&request).is_ok_and(|(envelope, rest)| {
            Message::decode(rest).is_ok_and(|message| message.decode_body(envelope.version).is_ok())
        });
        let fields = line["response_headers"].as_array().unwrap().iter();
        let fields: Vec<_> =
            fields.map(|field| (field[0].as_str().unwrap(), field[1].as_str().unwrap())).collect();
        let head = |fields: &[(&str, &str)]| {
            let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("HTTP/1.1 {} X\r\n{fields}\r\n", line["status"]).into_bytes()
        };
        let is_message = fields.contains(&("Content-Type", "application/x-hdl-message"));
        if !is_message && is_request {
            let body = line["body"].as_str().unwrap_or("<html></html>").as_bytes();
            let answer = [&head(&fields), body].concat();
            assert!(!matches!(receive(&request, &answer, 1), Ok(Some(_))), "{line}");
            others += 1;
            return;
        }
        if !is_request {
            return;
        }
        let body = hex(&line["body"]["hex"]);
        let unframed: Vec<_> = fields.iter().copied().filter(|(name, _)| *name != "Content-Length").collect();
        let chunked = [&unframed[..], &[("Transfer-Encoding", "chunked")]].concat();
        let chunks: Vec<u8> = body
            .chunks(100)
            .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
            .collect();
        for answer in [
            [head(&fields), body.clone()].concat(),
            [head(&unframed), body.clone()].concat(),
            // Deployed software skips a line end before the body.
            [head(&unframed), b"\n".to_vec(), body.clone()].concat(),
            [head(&chunked), chunks, b"0\r\n\r\n".to_vec()].concat(),
        ] {
            for part_len in [1, 7, answer.len()] {
                match receive(&request, &answer, part_len) {
                    Ok(Some(answered)) => {
                        assert_eq!(answered.bytes(), body, "{line}");
                        answers += 1;
                    }
                    // The server could not read the request, so the answer names none.
                    Err(AttemptError::Refused(_)) if body[8..12] == [0xff; 4] => refusals += 1,
                    outcome => panic!("{outcome:?}: {line}"),
                }
            }
        }
    });
    let counts = [("answers", answers, 12 * 20), ("refusals", refusals, 12), ("other answers", others, 2)];
    counts.into_iter().for_each(|(name, count, least)| require(count, least, name));
}
