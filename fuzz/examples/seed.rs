//! Writes seeds for every target, made from `tests/vectors`, to `DIR/<target>/<checksum>`. Seeds
//! that show a defect which code coverage does not distinguish go to `DIR/kept/<target>/<name>`.
//!
//! The committed corpora have all kept seeds, and a minimised selection of the other seeds and of
//! the inputs that a fuzzer found from them. `docs/fuzzing.md` has the commands.

use handle_auth::handshake::{HandshakeProof, SignedHandshake};
use handle_auth::{digest, kdf, keyfile};
use handle_formats::bundle::{BundleContact, archive};
use handle_fuzz::{TARGETS, layer_examples, proof_examples, put_datagram, steps_examples};
use handle_local::bulk::{BulkBegin, BulkChange, BulkKey, BulkReply, BulkRequest, BulkResult};
use handle_local::callers::{CallerProof, CallerRefusal, CallerReply, CallerRequest, CertificateProof};
use handle_local::frame;
use handle_local::kind::LocalKind;
use handle_proto::ResponseCode;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::{PrivateKeyBuf, Site};
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::admin::StorePosition;
use handle_proto::wire::auth::SecretAnswer;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Body, Envelope, Message};
use handle_snapshot::format::{Sha256Sum, checksum};
use handle_snapshot::set::manifest::{LayerEntry, MANIFEST_FIRST_LINE, Manifest, ManifestSeal};
use handle_snapshot::verify::layer_digest;
use handle_snapshot::{Layer, NameRule};
use handle_tests::vectors::{bytes, document, hex, load};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum length of a seed; longer ones slow down a fuzzer.
const SEED_LEN_MAX: usize = 8192;

/// Inputs by target.
#[derive(Default)]
struct Seeds {
    /// Seeds that minimisation may remove.
    by_target: BTreeMap<&'static str, BTreeSet<Vec<u8>>>,
    kept: Vec<(&'static str, String, Vec<u8>)>,
}

impl Seeds {
    fn add(&mut self, target: &'static str, input: impl Into<Vec<u8>>) {
        assert!(TARGETS.iter().any(|(name, _)| *name == target), "{target}");
        let input = input.into();
        if input.len() <= SEED_LEN_MAX {
            self.by_target.entry(target).or_default().insert(input);
        }
    }

    /// Adds an input that minimisation must not remove.
    fn keep(&mut self, target: &'static str, name: impl Into<String>, input: impl Into<Vec<u8>>) {
        let input = input.into();
        self.add(target, &input[..]);
        self.kept.push((target, name.into(), input));
    }

    /// Adds one value of JSON as text.
    fn text(&mut self, target: &'static str, json: &Json) {
        self.add(target, json.to_string());
    }
}

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: cargo run -p handle-fuzz --example seed -- DIR");
        std::process::exit(2);
    };
    let mut seeds = Seeds::default();
    messages(&mut seeds);
    credentials(&mut seeds);
    conversations(&mut seeds);
    values(&mut seeds);
    records(&mut seeds);
    names(&mut seeds);
    files(&mut seeds);
    special_cases(&mut seeds);
    http(&mut seeds);
    handshakes(&mut seeds);
    sockets(&mut seeds);
    saved_caches(&mut seeds);
    cache_policies(&mut seeds);
    for (target, name, input) in &seeds.kept {
        let folder = Path::new(&folder).join("kept").join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), input)?;
    }
    for (target, inputs) in &seeds.by_target {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for input in inputs {
            std::fs::write(folder.join(format!("{:016x}", checksum(input))), input)?;
        }
        println!("{target}: {} seeds, {} bytes", inputs.len(), inputs.iter().map(Vec::len).sum::<usize>());
    }
    Ok(())
}

/// Adds a message in its stream form to all targets for a part of it.
fn message(seeds: &mut Seeds, stream: &[u8]) {
    seeds.add("message", stream);
    let Ok((envelope, rest)) = Envelope::split(stream) else { return };
    seeds.add("envelope", &stream[..stream.len().min(44)]);
    seeds.add("resolver", stream);
    seeds.add("stream", [stream, stream].concat());
    let Ok(message) = Message::decode(rest) else { return };
    let header = message.header;
    let version = [envelope.version.major, envelope.version.minor];
    let (op_code, response_code) = (header.op_code.0.to_be_bytes(), header.response_code.0.to_be_bytes());
    let body = message.body;
    seeds.add("credential", message.credential);
    match message.decode_body(envelope.version) {
        Ok(Body::Reply(reply)) => {
            let has_digest = [u8::from(header.flags.has(handle_proto::OpFlags::REQUEST_DIGEST))];
            let head = [&op_code[..], &response_code, &version, &has_digest].concat();
            seeds.add("response_body", [&head, body].concat());
            let mut bare = Vec::new();
            reply.response.encode(&mut bare);
            family(seeds, header.op_code.0, header.response_code.0, &bare);
        }
        _ => {
            seeds.add("request_body", [&op_code[..], &version, body].concat());
            family(seeds, header.op_code.0, 0, body);
        }
    }
}

/// Adds a body without its digest to the target of its family.
fn family(seeds: &mut Seeds, op_code: i32, response_code: i32, body: &[u8]) {
    let target = match (response_code, op_code) {
        (402, _) | (0 | 1, 200 | 201) => "auth",
        (0 | 1, 1) => "query",
        (0 | 1, 400..=402) => "session",
        (0 | 1, 1000..=1002) => "replication",
        (0 | 1, 2 | 100..=106 | 300..=302 | 1003) => "admin",
        _ => "referral",
    };
    seeds.add(target, body);
}

fn messages(seeds: &mut Seeds) {
    for line in load("messages.jsonl") {
        // Versions with the same layout add nothing.
        if !matches!(line["version"].as_str(), Some("2.0" | "2.1" | "2.4" | "2.8" | "2.11")) {
            continue;
        }
        message(seeds, &hex(&line["hex"]));
        if let Some(datagrams) = line["datagrams_hex"].as_array() {
            let datagrams: Vec<_> = datagrams.iter().map(hex).collect();
            let mut input = Vec::new();
            datagrams.iter().rev().for_each(|datagram| put_datagram(&mut input, 1, datagram));
            seeds.add("reassembly", input);
            datagrams.into_iter().for_each(|datagram| seeds.add("resolver", datagram));
        }
    }
    for len in [0_u32, 491, 492, 493, 984, 985, 3000] {
        let mut envelope = Envelope::from_bytes(&[0; Envelope::LEN]);
        (envelope.message_len, envelope.request_id) = (len, 7);
        let mut input = Vec::new();
        let data = vec![0x61; len as usize];
        for fragment in cut(&envelope) {
            let choice = u8::try_from(fragment.range.start % 3 * 4 + 1).expect("a small number");
            put_datagram(&mut input, choice, &[&fragment.envelope[..], &data[fragment.range]].concat());
        }
        seeds.add("reassembly", input);
    }
    // These targets parse any bytes as a plan.
    for len in [0, 40, 200, 600] {
        for step in [1, 7, 31, 111] {
            let plan: Vec<u8> =
                (0..len).map(|at: usize| u8::try_from(at * step % 251).expect("a byte")).collect();
            seeds.add("fragments", &plan[..]);
            seeds.add("question", plan);
        }
    }
}

fn credentials(seeds: &mut Seeds) {
    for line in load("credentials.jsonl") {
        let of = |member: &str| line.get(member).filter(|hex| hex.is_string()).map(hex);
        for name in ["request_hex", "challenge_hex", "answer_message_hex", "response_hex"] {
            of(name).into_iter().for_each(|stream| message(seeds, &stream));
        }
        match line["kind"].as_str() {
            Some("signed_message" | "mac_message" | "encrypted_message") => {
                message(seeds, &hex(&line["hex"]))
            }
            Some("challenge") => {
                of("answer_hex").into_iter().for_each(|answer| seeds.add("auth", answer));
                challenge_answer(seeds, &line);
            }
            Some("dh_agreement") => {
                for side in ["client", "server"] {
                    seeds.add("key_agreement", hex(&line[side]["handle_public_hex"]));
                }
            }
            Some("key") => {
                seeds.add("key", hex(&line["handle_public_hex"]));
                seeds.add("key", hex(&line["handle_private_hex"]));
                seeds.add("key_agreement", hex(&line["handle_public_hex"]));
                let pem = line["pkcs8_pem"].as_str().expect("text");
                seeds.add("key_file", pem.as_bytes());
                let key = PrivateKeyBuf::from_bytes(hex(&line["handle_private_hex"])).expect("a key");
                let file = keyfile::encrypt_with(&key.view(), b"pass phrase", 2, &[1; 16], &[2; 16]);
                seeds.add("key_file", &file[..]);
            }
            Some("private_key_file") => {
                seeds.add("key", hex(&line["file_hex"]));
                seeds.add("key_file", hex(&line["file_hex"]));
            }
            _ => {}
        }
    }
}

/// Adds answers to challenges with their secrets, in the form of their target, with few rounds of
/// key derivation.
fn challenge_answer(seeds: &mut Seeds, line: &Json) {
    let (Some(_), Some(_)) = (line["secret_hex"].as_str(), line["answer_hex"].as_str()) else { return };
    let minor = line["version"].as_str().and_then(|text| text.strip_prefix("2.")?.parse().ok());
    let (secret, mut answer) = (hex(&line["secret_hex"]), hex(&line["answer_hex"]));
    let mut digest = hex(&line["request_digest_hex"]);
    digest.resize(20, 0);
    let nonce = hex(&line["nonce_hex"]);
    if let Ok(SecretAnswer::Pbkdf2 { salt, key_bits, .. }) = SecretAnswer::decode(&answer) {
        let key = kdf::pbkdf2_sha1(&secret, salt, 2, key_bits as usize / 8);
        let made = digest::mac(DigestAlgorithm::HMAC_SHA1, &key, &[&nonce, &digest]).expect("an HMAC");
        let mut short = Vec::new();
        SecretAnswer::Pbkdf2 { salt, iterations: 2, key_bits, mac: &made }.encode(&mut short);
        answer = short;
    }
    let head = [minor.unwrap_or(11)];
    let len = [u8::try_from(secret.len()).expect("a short secret")];
    seeds.add("challenge_answer", [&head[..], &nonce, &digest, &len, &secret, &answer].concat());
}

fn conversations(seeds: &mut Seeds) {
    let mut input = Vec::new();
    for line in load("conversations.jsonl") {
        let datagrams: Vec<_> = line["request_hex"].as_array().into_iter().flatten().map(hex).collect();
        let name = line["name"].as_str().unwrap_or_default();
        for datagram in &datagrams {
            seeds.add("resolver", &datagram[..]);
            // Answers around the size of one datagram, and all malformed ones.
            if name.contains("/SIZE-") || name.starts_with("main/malformed/") {
                seeds.keep("resolver", name.trim_start_matches("main/").replace('/', "-"), &datagram[..]);
            }
            if datagram.len() <= 512 {
                put_datagram(&mut input, 0, datagram);
            }
            if input.len() > 400 {
                seeds.add("batch", std::mem::take(&mut input));
            }
        }
        if datagrams.len() > 1 {
            let mut fragments = Vec::new();
            datagrams.iter().for_each(|datagram| put_datagram(&mut fragments, 0, datagram));
            seeds.add("reassembly", fragments);
        }
    }
}

fn values(seeds: &mut Seeds) {
    for line in load("values.jsonl") {
        let of = |member: &str| line.get(member).filter(|hex| hex.is_string()).map(hex);
        let text = line["json_text"].as_str().and_then(|text| serde_json::from_str::<Json>(text).ok());
        let encoded = of("hex");
        match line["kind"].as_str() {
            Some("value" | "binary_decode" | "value_list" | "json_to_value") => {
                encoded.into_iter().for_each(|encoded| seeds.add("value", encoded));
                if let Some(json) = text {
                    seeds.text("values_json", &json);
                    seeds.text("record_line", &serde_json::json!({"handle": "10/a", "values": [json]}));
                }
            }
            Some("site" | "json_to_site") => {
                encoded.into_iter().for_each(|encoded| seeds.add("site", encoded));
                text.iter().for_each(|json| seeds.text("site_json", json));
            }
            Some("admin" | "vlist") => {
                encoded.into_iter().for_each(|encoded| seeds.add("admin_vlist", encoded));
            }
            Some("key") => {
                seeds.add("key", hex(&line["handle_public_hex"]));
                seeds.add("key", hex(&line["handle_private_hex"]));
            }
            _ => {}
        }
    }
}

fn records(seeds: &mut Seeds) {
    for record in document("records.json").as_array().expect("a list").iter().filter(|record| {
        // Many of these records are alike.
        !record["handle"].as_str().is_some_and(|handle| handle.contains("/ITEM-"))
    }) {
        let record = serde_json::json!({"handle": record["handle"], "values": record["values"]});
        seeds.text("record_line", &record);
        seeds.text("values_json", &record);
        let handle = record["handle"].as_str().expect("a handle");
        seeds.add("source_answer", format!("{handle}\n{record}"));
    }
    for record in load("dois.jsonl").iter().step_by(100) {
        seeds.text("record_line", record);
    }
    for (_, server) in document("servers.json")["servers"].as_object().expect("servers") {
        let site = hex(&server["site_hex"]);
        site_bundle(seeds, &site);
        seeds.add("site", site);
        match &server["site"] {
            Json::String(text) => seeds.add("site_json", text.as_bytes()),
            object => seeds.text("site_json", object),
        }
    }
}

/// Adds archives with a site record, and with the key of its first server as that of the
/// administrator.
fn site_bundle(seeds: &mut Seeds, site: &[u8]) {
    let Some(server) = Site::decode(site).expect("a site record").servers.iter().next() else { return };
    let named = BundleContact { email: "admin@example.org".to_owned(), ..BundleContact::default() };
    for contact in [BundleContact::default(), named] {
        seeds.add("site_bundle", archive(site, server.public_key, &contact).expect("short entries"));
    }
}

fn names(seeds: &mut Seeds) {
    for line in load("hashing.jsonl") {
        match line["kind"].as_str() {
            Some("case_fold") => seeds.add("name", bytes(&line["handle"])),
            Some("equality") => {
                seeds.add("name", [&bytes(&line["a"])[..], b"\n", &bytes(&line["b"])].concat())
            }
            _ => {}
        }
    }
}

fn files(seeds: &mut Seeds) {
    let layers = layer_examples();
    for count in 1..=3_usize {
        let entries = layers.iter().zip(1..).map(|(layer, number)| LayerEntry {
            file: format!("{number:020}.layer"),
            len: layer.len() as u64,
            digest: layer_digest(Layer::open(layer).expect("a layer").header()),
        });
        let manifest = Manifest {
            epoch: 1,
            generation: count as u64,
            created_unix_ms: 1_700_000_000_000,
            handles_count: 40,
            names: (count > 1).then_some(NameRule::of(count == 2)),
            root: Sha256Sum([7; 32]),
            source: None,
            layers: entries.take(count).collect(),
            seal: (count > 1).then(|| ManifestSeal {
                signed_unix_ms: 5,
                signer: Sha256Sum([8; 32]),
                signature: vec![9; 256],
            }),
        };
        seeds.add("manifest", manifest.encode());
    }
    layers.into_iter().for_each(|layer| seeds.add("layer", layer));
    proof_examples().into_iter().for_each(|proof| seeds.add("proof", proof));
    steps_examples().into_iter().for_each(|object| seeds.add("steps", object));
}

/// Adds inputs for defects that no other input shows.
fn special_cases(seeds: &mut Seeds) {
    seeds.keep("name", "long", [&b"10.1/"[..], &[b'x'; 300]].concat());
    let line = r#"{"handle":"a","values":[{"index":1,"type":"T","data":"x"}],"values":[{"index":2,"type":"T","data":"y"}]}"#;
    seeds.keep("record_line", "values-twice", line);
    let layers = layer_examples();
    let manifest = Manifest {
        epoch: 1,
        generation: 7,
        created_unix_ms: 0,
        handles_count: 1,
        names: Some(NameRule::Folded),
        root: Sha256Sum::default(),
        source: None,
        layers: vec![LayerEntry { file: "a.layer".into(), len: 64, digest: Sha256Sum::default() }],
        seal: None,
    };
    let text = include_str!("../../docs/snapshot-format.md");
    let example = text.split("```").find_map(|block| {
        block.strip_prefix("text\n")?.starts_with(MANIFEST_FIRST_LINE).then_some(&block[5..])
    });
    seeds.keep("manifest", "document", example.expect("an example of a manifest"));
    seeds.keep("manifest", "other-line-ends", manifest.encode().replace('\n', "\r\n"));
    seeds.keep("manifest", "other-line-ends-inside", manifest.encode().replacen('\n', "\r\n", 2));
    let mut envelope = Envelope::from_bytes(&[0; Envelope::LEN]);
    (envelope.message_len, envelope.request_id) = (1000, 7);
    let mut input = Vec::new();
    for (n, fill) in [(0, b'a'), (0, b'z'), (1, b'b'), (2, b'c')] {
        let fragment = cut(&envelope).nth(n).expect("one of three");
        put_datagram(&mut input, 0, &[&fragment.envelope[..], &vec![fill; fragment.range.len()]].concat());
    }
    seeds.keep("reassembly", "repeated-with-other-bytes", input);
    damaged_layers(seeds, &layers[2]);
    for (name, segment_len, len) in [
        ("even", 30u16, 90),
        ("shorter-end", 30, 91),
        ("single", 30, 30),
        ("shorter-than-a-segment", 30, 7),
        ("empty", 30, 0),
        ("no-length", 0, 5),
        ("longest", 65_535, 100),
    ] {
        seeds.keep("train", name, [&segment_len.to_be_bytes()[..], &vec![b'x'; len]].concat());
    }
}

/// Heads of requests over HTTP.
fn heads(seeds: &mut Seeds) {
    for line in load("http.jsonl") {
        let [method, target, version] = ["method", "target", "http_version"].map(|name| &line[name]);
        let mut head = [method, target, version].map(|part| part.as_str().unwrap_or_default()).join(" ");
        for header in line["request_headers"].as_array().into_iter().flatten() {
            let [name, value] = [0, 1].map(|at| header[at].as_str().unwrap_or_default());
            head.extend(["\r\n", name, ": ", value]);
        }
        seeds.add("plain_head", format!("\x07{head}\r\n\r\n"));
    }
    for line in load("smuggling.jsonl") {
        for part in line["request"].as_array().into_iter().flatten().filter_map(Json::as_str) {
            seeds.add("plain_head", format!("\x10{part}"));
        }
    }
    let browser = "Sec-Fetch-Site: none\r\nUpgrade-Insecure-Requests: 1\r\nPriority: u=0, i\r\nPragma: x\r\n";
    for (name, lines) in [
        ("shortest", "Host:\r\n"),
        ("curl", "Host: localhost:8000\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n"),
        ("browser", &format!("Host: x\r\nAccept: text/html\r\n{browser}")),
        ("script", "Host: x\r\nOrigin: https://a.example\r\nReferer: https://a.example/\r\nDNT: 1\r\n"),
        ("encodings", "Host: x\r\nConnection: Keep-Alive\r\nAccept-Encoding: gzip, br, zstd\r\n"),
        ("another-host", "Host: x\r\nAccept: */*\r\nhost: y\r\n"),
        ("bare-line-feed", "Host: x\nAccept: */*\r\n"),
        ("folded", "Host: x\r\nAccept: a,\r\n b\r\n"),
    ] {
        seeds.keep("plain_head", name, format!("\x07GET /10.1/a HTTP/1.1\r\n{lines}\r\nGET /"));
        seeds.add("plain_head", format!("\x01HEAD /api/handles/10.1/a HTTP/1.1\r\n{lines}\r\n"));
    }
}

/// Credentials of requests over HTTP, and lines of batches.
fn http(seeds: &mut Seeds) {
    heads(seeds);
    for line in load("http.jsonl") {
        let body = if line["request_body"].is_null() { Vec::new() } else { bytes(&line["request_body"]) };
        for header in line["request_headers"].as_array().into_iter().flatten() {
            if let (Some("Authorization"), Some(text)) = (header[0].as_str(), header[1].as_str()) {
                seeds.add("http_credentials", [text.as_bytes(), b"\n", &body].concat());
            }
        }
    }
    let proof = r#"{"sessionId":"AAECAwQFBgcICQoLDA0ODw","id":"300:a/b","type":"HS_SECKEY","alg":"PBKDF2WithHmacSHA1",
        "cnonce":"AAEC","signature":"AAAA","salt":"AAAA","iterations":1000,"length":"160"}"#;
    seeds.add("http_credentials", format!("\n{proof}"));
    let value = r#"{"index":1,"type":"URL","data":"https://example.org/"}"#;
    for operation in ["create", "replace", "add", "modify", "delete", "remove", "none"] {
        let members = r#""handle":"10.1/a","indexes":[1,2]"#;
        seeds.add(
            "http_batch",
            format!("{{\"operation\":\"{operation}\",{members},\"values\":[{value}]}}\n{{}}\n"),
        );
    }
}

/// Frames of the sockets between `handle-gateway` and `handle-admin`.
fn handshakes(seeds: &mut Seeds) {
    for line in load("handshakes.jsonl") {
        let messages = hex(&line["messages_hex"]);
        let certificate = SignedHandshake::parse(&messages).expect("a handshake").certificate;
        seeds.add("handshake", certificate);
        seeds.add("handshake", messages);
    }
}

fn sockets(seeds: &mut Seeds) {
    let identity = Reference { handle: b"0.NA/10.1", index: 300 };
    let (nonce, client_nonce, source) = (&[1; 32], b"client nonce", [192, 0, 2, 1].into());
    let proof = CallerProof {
        nonce,
        client_nonce,
        auth_type: b"HS_PUBKEY",
        identity,
        signed_response: &[3; 20],
        source,
    };
    let handshake = HandshakeProof { messages: b"messages", scheme: 0x0804, signature: &[4; 20] };
    let requests = [
        CallerRequest::NonceStart,
        CallerRequest::Prove(proof),
        CallerRequest::Sign { nonce, client_nonce, source },
        CallerRequest::End([9; 16]),
        CallerRequest::ProveByCertificate(CertificateProof { handshake, source }),
    ];
    let replies = [
        CallerReply::NonceStart { start: [4; 16], valid_ms: 300_000 },
        CallerReply::Proven { id: [5; 16], secret: [6; 32].into(), index: 300 },
        CallerReply::Signed { algorithm: b"SHA-256".to_vec(), signature: vec![7; 30] },
        CallerReply::Ended,
        CallerReply::Refused(CallerRefusal::Stale),
    ];
    let mut all = Vec::new();
    let mut add = |kind, content: &[u8]| {
        let frame = frame::encode(kind, content.len(), |out| out.extend_from_slice(content));
        all.extend_from_slice(&frame);
        seeds.add("local_socket", &frame[..]);
    };
    let callers = requests.iter().map(CallerRequest::encode).chain(replies.iter().map(CallerReply::encode));
    callers.for_each(|content| add(LocalKind::Callers, &content));
    add(LocalKind::Relay, &[&[1][..], &[0; 16], b"a message"].concat());
    add(LocalKind::Forward, &[&[1, 0][..], &[0; 20], &[0; 4], b"a message"].concat());
    add(LocalKind::Forward, &[3]);
    add(LocalKind::Changes, b"{}\n");
    let key = Some(BulkKey { name: b"key", digest: [7; 32] });
    let change = |number| BulkChange { number, message: b"a message" };
    let result = |number| BulkResult { number, code: ResponseCode::SUCCESS, text: "text".to_owned() };
    for request in [
        BulkRequest::Begin(BulkBegin { identity, source, key: None }),
        BulkRequest::Begin(BulkBegin { identity, source, key }),
        BulkRequest::Proof { auth_type: b"HS_SECKEY", signed_response: b"proof" },
        BulkRequest::Changes(vec![change(1), change(7)]),
    ] {
        let mut content = Vec::new();
        request.encode(&mut content);
        add(LocalKind::Bulk, &content);
    }
    for reply in [
        BulkReply::Challenge([1; NONCE_LEN]),
        BulkReply::Accepted,
        BulkReply::OtherBody,
        BulkReply::Refused(ResponseCode::INVALID_ADMIN, b"no"),
        BulkReply::Results(StorePosition { store: 7, transaction: 9 }, vec![result(1), result(9)]),
    ] {
        let mut content = Vec::new();
        reply.encode(&mut content);
        add(LocalKind::Bulk, &content);
    }
    seeds.add("local_socket", all);
}

/// Adds blocks of the file of a cache: a record, a negative answer, and both.
fn cache_policies(seeds: &mut Seeds) {
    for handle in ["10.1/x", "aBc/x", "0.NA/10.1", "10.1"] {
        for rules in [
            "deny 10.1\nforward 10.1=192.0.2.1\nalias 10.1=10.2",
            "forward ABC=192.0.2.1,[2001:db8::1]:7,2001:db8::2\nforward abc=192.0.2.3:9",
            "alias 10.1=10.2\nalias 10.1=10.3\ncertified 10.1\ncertified abc",
            "alias 10.1=\nforward 10.1\ndeny a/b\nforward =192.0.2.1",
        ] {
            seeds.add("cache_policy", format!("{handle}\n{rules}"));
        }
    }
}

fn saved_caches(seeds: &mut Seeds) {
    let mut values = Vec::new();
    handle_proto::Value::new(1, b"URL", b"https://example.org/").encode(&mut values);
    let entry = |key: &[u8], kind: u8, values: &[u8]| {
        let len = |len: usize| u32::try_from(len).expect("a short seed").to_be_bytes();
        let count = u8::from(!values.is_empty());
        let numbers = [len(1_700_000_000), len(86_400), len(values.len())].concat();
        [&len(key.len())[2..], &[0, count, kind, 0, 0, 0], &numbers, key, values].concat()
    };
    let record = entry(b"10.1/A", handle_cache::entry::RECORD, &values);
    let negative = entry(b"10.1/B", handle_cache::entry::NO_HANDLE, &[]);
    seeds.add("saved_cache", [&record[..], &negative].concat());
    seeds.add("saved_cache", record);
    seeds.add("saved_cache", negative);
}

/// Adds damaged layers that, with corrected checksums, only the full check distinguishes from
/// intact ones.
fn damaged_layers(seeds: &mut Seeds, layer: &[u8]) {
    let find = |bytes: &[u8]| {
        layer.windows(bytes.len()).position(|window| window == bytes).expect("the layer contains the bytes")
    };
    let mut change = |name: &str, at: usize, bytes: &[u8]| {
        let mut damaged = layer.to_vec();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        seeds.keep("layer", name, damaged);
    };
    // The permissions are followed by the type and its length.
    let (public, private) = (find(b"\x0e\0\0\0\x03URL"), find(b"\x0c\0\0\0\x09HS_SECKEY"));
    change("private-among-public", public, &[0x0c]);
    change("public-among-private", private, &[0x0e]);
    // A private value is preceded by its position, and begins 13 bytes before its permissions.
    change("position-too-high", private - 13 - 2, &[0xff, 0xff]);
    change("index-zero", public - 13, &[0; 4]);
    let [first, second] = slots(layer);
    // A fingerprint; all fingerprints are followed by as many distances.
    let distance = |slot: usize| slot + 28;
    change("slot-of-another-record", distance(second), &layer[distance(first)..distance(first) + 2]);
    change("slot-used-twice", second, &layer[first..first + 2]);
}

/// Returns the offsets of the fingerprints of the first two slots of the index.
fn slots(layer: &[u8]) -> [usize; 2] {
    use handle_snapshot::format::header_at::INDEX_AT;
    let at = layer[INDEX_AT..].first_chunk().map(|number| u64::from_le_bytes(*number));
    let index_at = usize::try_from(at.expect("a header")).expect("inside the file");
    // Slots fill from the front.
    assert!(layer[index_at + 2..index_at + 4] != [0; 2], "two records");
    [index_at, index_at + 2]
}
