//! Messages as JSON, in the form of the vectors: every field of envelope, header, body and credential.
//!
//! [`of_message`] and [`to_message`] are each other's inverse, so that a test compares all or nothing.

use crate::site;
use crate::site::{array, integer};
use crate::vectors::{byte_string, bytes, hex};
use data_encoding::HEXLOWER;
use handle_proto::code::{DigestAlgorithm, KeyExchangeMode};
use handle_proto::value::{Permissions, Ttl};
use handle_proto::wire::admin::{Created, HandleBody, HandleIndexes, HandleValues, Listing};
use handle_proto::wire::auth::{Challenge, ChallengeAnswer, Verdict, Verification};
use handle_proto::wire::credential::Credential;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::{Handles, Indexes, Reference, References, Strings};
use handle_proto::wire::query::{Answer, Query};
use handle_proto::wire::referral::Referral;
use handle_proto::wire::replication::{
    DumpHandles, NextTransaction, Progress, Receiver, RetrieveTransactions, StartingPoint, TransactionsFollow,
};
use handle_proto::wire::session::{ExchangedKey, KeyExchange, SessionAnswer, SessionSetup};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{DecodeError, OpCode, OpFlags, ResponseCode, Value, Values, Version};
use serde_json::{Map, Value as Json, json};

/// Adds the members of one object to another.
fn extend(object: &mut Map<String, Json>, more: Json) {
    match more {
        Json::Object(more) => object.extend(more),
        other => panic!("not an object: {other}"),
    }
}

fn hex_of(bytes: &[u8]) -> Json {
    json!(HEXLOWER.encode(bytes))
}

// ---- Bytes to JSON.

/// The fields of a message in its stream form, envelope first.
///
/// # Errors
/// When it does not decode, or has a code that we keep but do not know.
pub fn of_message(bytes: &[u8]) -> Result<Json, Refused> {
    let (envelope, rest) = Envelope::split(bytes)?;
    let rest = rest.get(..envelope.message_len as usize).ok_or(Refused::Cut)?;
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        return Err(Refused::Encrypted);
    }
    let message = Message::decode(rest)?;
    let body = message.decode_body(envelope.version)?;
    let mut fields = Map::new();
    fields.insert("envelope".into(), of_envelope(&envelope));
    fields.insert("header".into(), of_header(&message.header));
    fields.insert("body".into(), of_body(&body)?);
    fields.insert("credential".into(), of_credential(&message));
    if let Body::Reply(reply) = body
        && reply.code != message.header.response_code
    {
        fields.insert("response_code_after_decode".into(), json!(reply.code.0));
    }
    Ok(fields.into())
}

/// Why a message has no fields.
#[derive(Debug)]
pub enum Refused {
    /// It ends before its length.
    Cut,
    /// It has to be decrypted first.
    Encrypted,
    /// It does not decode.
    Undecodable(DecodeError),
    /// Its codes are not known, so its body is not either.
    Unknown,
}

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

fn of_envelope(envelope: &Envelope) -> Json {
    json!({
        "major": envelope.version.major.cast_signed(),
        "minor": envelope.version.minor.cast_signed(),
        "compressed": envelope.flags.has(EnvelopeFlags::COMPRESSED),
        "encrypted": envelope.flags.has(EnvelopeFlags::ENCRYPTED),
        "truncated": envelope.flags.has(EnvelopeFlags::TRUNCATED),
        "suggest_major": envelope.suggested.major.cast_signed(),
        "suggest_minor": envelope.suggested.minor.cast_signed(),
        "session_id": envelope.session_id,
        "request_id": envelope.request_id,
        "message_id": envelope.sequence.cast_signed(),
        "message_length": envelope.message_len.cast_signed(),
    })
}

fn of_header(header: &Header) -> Json {
    let mut flags = Map::new();
    for (flag, name) in OpFlags::KNOWN {
        flags.insert(name.into(), json!(header.flags.has(flag)));
    }
    let unknown = OpFlags::KNOWN.iter().fold(header.flags, |left, &(flag, _)| left.without(flag));
    if unknown != OpFlags::default() {
        flags.insert("unknown_bits_hex".into(), json!(format!("{:08x}", unknown.0)));
    }
    json!({
        "opcode": header.op_code.0,
        "response_code": header.response_code.0,
        "flags_hex": format!("{:08x}", header.flags.0),
        "flags": flags,
        "site_info_serial": header.site_serial,
        "recursion_count": header.recursion_count,
        "reserved": header.reserved,
        "expiration": header.expiration.cast_signed(),
        "body_length": header.body_len.cast_signed(),
    })
}

fn of_credential(message: &Message<'_>) -> Json {
    match message.decode_credential() {
        Ok(None) => Json::Null,
        Ok(Some(credential)) => json!({
            "version": credential.version,
            "reserved": credential.reserved,
            "options": credential.options,
            "signer_handle": byte_string(credential.signer),
            "signer_index_or_session_counter": credential.counter,
            "type": byte_string(credential.kind),
            "signed_info_length": credential.signed_info_len(),
            // A code is one byte, which is text too; the vectors write it as what it is.
            "digest_algorithm": match credential.algorithm {
                [code] => json!({ "hex": HEXLOWER.encode(&[*code]) }),
                name => byte_string(name),
            },
            "signature_hex": hex_of(credential.signature),
        }),
        Err(_) => {
            let byte = |at| message.credential.get(at).copied().unwrap_or(0);
            json!({
                "version": byte(0),
                "reserved": byte(1),
                "options": u16::from_be_bytes([byte(2), byte(3)]),
                "undecodable_hex": hex_of(message.credential),
            })
        }
    }
}

fn of_body(body: &Body<'_>) -> Result<Json, Refused> {
    match body {
        Body::Request(request) => of_request(request),
        Body::Reply(reply) => {
            let mut fields = Map::new();
            if let Some(digest) = reply.digest {
                fields.insert("request_digest_algorithm".into(), json!(digest.algorithm.0));
                fields.insert("request_digest_hex".into(), hex_of(digest.digest));
            }
            extend(&mut fields, of_response(&reply.response)?);
            Ok(fields.into())
        }
    }
}

fn of_request(request: &Request<'_>) -> Result<Json, Refused> {
    Ok(match *request {
        Request::Resolution(Query { handle, indexes, types }) => json!({
            "handle": byte_string(handle),
            "indexes": indexes.iter().collect::<Vec<_>>(),
            "types": strings(types.iter()),
        }),
        Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
            json!({ "handle": byte_string(body.handle), "values": of_values(body.values) })
        }
        Request::RemoveValue(HandleIndexes { handle, indexes }) => {
            json!({ "handle": byte_string(handle), "indexes": indexes.iter().collect::<Vec<_>>() })
        }
        Request::GetSiteInfo(body)
        | Request::DeleteHandle(body)
        | Request::ListHandles(body)
        | Request::HomeNa(body)
        | Request::UnhomeNa(body)
        | Request::ListHomedNas(body)
        | Request::SessionTerminate(body)
        | Request::GetNextTxnId(body)
        | Request::BackupServer(body) => json!({ "handle": byte_string(body.handle) }),
        Request::AnswerChallenge(ChallengeAnswer { auth_type, identity, signed_response }) => json!({
            "auth_type": byte_string(auth_type),
            "user_id_handle": byte_string(identity.handle),
            "user_id_index": identity.index,
            "answer_hex": hex_of(signed_response),
        }),
        Request::VerifyChallenge(Verification { identity, nonce, digest, signed_response }) => json!({
            "handle": byte_string(identity.handle),
            "handle_index": identity.index,
            "nonce_hex": hex_of(nonce),
            "original_request_digest_hex": hex_of(digest.digest),
            "answer_hex": hex_of(signed_response),
        }),
        Request::SessionSetup(setup) => of_session_setup(&setup),
        Request::SessionExchangeKey(key) => {
            json!({ "encrypted_session_key_hex": hex_of(key.encrypted_key) })
        }
        Request::RetrieveTxnLog(RetrieveTransactions { progress, receiver }) => {
            let mut fields = Map::new();
            match progress {
                Progress::OneSource { last_txn_id, last_query_ms } => {
                    fields.insert("last_txn_id".into(), json!(last_txn_id));
                    fields.insert("last_query_date".into(), json!(last_query_ms));
                }
                Progress::AllSources { state } => {
                    let state = serde_json::from_slice(state).map_err(|_| Refused::Unknown)?;
                    fields.insert("replication_state".into(), state);
                }
            }
            extend(&mut fields, of_receiver(receiver));
            fields.into()
        }
        Request::DumpHandles(DumpHandles { receiver, start }) => {
            let mut fields = of_receiver(receiver);
            if let Some(start) = start {
                fields["starting_point"] = byte_string(start.item);
                fields["starting_point_type"] = json!(start.kind);
            }
            fields
        }
        Request::Unknown(..) => return Err(Refused::Unknown),
    })
}

fn of_receiver(receiver: Receiver) -> Json {
    json!({
        "receiver_hash_type": receiver.hash_option.cast_signed(),
        "num_servers": receiver.servers_count,
        "server_num": receiver.server_at,
    })
}

fn of_session_setup(setup: &SessionSetup<'_>) -> Json {
    let mut fields = json!({
        "key_exchange_mode": setup.exchange.mode().0,
        "timeout": setup.timeout_s,
        "identity_handle": byte_string(setup.identity.handle),
        "identity_index": setup.identity.index,
    });
    match setup.exchange {
        KeyExchange::ClientKey(key) | KeyExchange::DiffieHellman(key) => {
            fields["public_key_hex"] = hex_of(key)
        }
        KeyExchange::HandleKey(key) => {
            fields["exchange_key_handle"] = byte_string(key.handle);
            fields["exchange_key_index"] = json!(key.index);
        }
        KeyExchange::ServerKey | KeyExchange::Other(_) => {}
    }
    fields
}

fn of_response(response: &Response<'_>) -> Result<Json, Refused> {
    Ok(match *response {
        Response::Answer(Answer { handle, values }) => {
            json!({ "handle": byte_string(handle), "values": of_values(values) })
        }
        Response::SiteInfo(record) => json!({ "site": site::to_json(record)? }),
        Response::Created(Created { handle }) => json!({ "handle": handle.map(byte_string) }),
        Response::Done => json!({}),
        Response::Listing(Listing { handles }) => json!({ "handles": strings(handles.iter()) }),
        Response::Verdict(Verdict { is_valid }) => json!({ "is_valid": is_valid }),
        Response::Session(SessionAnswer { mode, data }) => {
            json!({ "key_exchange_mode": mode.0, "data_hex": hex_of(data) })
        }
        Response::NextTransaction(NextTransaction { txn_id }) => json!({ "next_txn_id": txn_id }),
        Response::TransactionsFollow(TransactionsFollow { keep_alive }) => {
            json!({ "keep_alive": keep_alive })
        }
        Response::Referral(Referral { handle, values }) => {
            json!({ "handle": byte_string(handle), "values": values.map(of_values) })
        }
        Response::Challenge(Challenge { nonce }) => json!({ "nonce_hex": hex_of(nonce) }),
        Response::Failure(Failure { message }) => json!({ "message": byte_string(message) }),
        Response::Unknown(_) => return Err(Refused::Unknown),
    })
}

fn strings<'a>(items: impl Iterator<Item = &'a [u8]>) -> Json {
    items.map(byte_string).collect()
}

fn of_values(values: Values<'_>) -> Json {
    values.iter().map(of_value).collect()
}

fn of_value(value: Value<'_>) -> Json {
    let reference = |it: Reference<'_>| json!({ "index": it.index, "handle": byte_string(it.handle) });
    json!({
        "index": value.index,
        "type": byte_string(value.kind),
        "data_hex": hex_of(value.data),
        "ttl_type": value.ttl.kind.cast_signed(),
        "ttl": value.ttl.seconds,
        "timestamp": value.timestamp.cast_signed(),
        "permissions": value.permissions.to_string(),
        "references": value.references.iter().map(reference).collect::<Json>(),
    })
}

// ---- JSON to bytes.

/// The message in its stream form that has these fields. Its lengths come from the encoder; the caller
/// compares them.
///
/// # Panics
/// When a field is missing or does not fit.
#[must_use]
pub fn to_message(fields: &Json) -> Vec<u8> {
    let envelope = to_envelope(&fields["envelope"]);
    let header = to_header(&fields["header"]);
    let body = &fields["body"];
    let message = if header.response_code == ResponseCode::RESERVED {
        MessageBuf::request(&envelope, &header, &to_request(&header, envelope.version, body))
    } else {
        let code = fields
            .get("response_code_after_decode")
            .map_or(header.response_code, |it| ResponseCode(integer(it)));
        let response = to_response(code, header.op_code, body);
        MessageBuf::reply(&envelope, &header, &Reply { code, digest: to_digest(body), response })
    };
    let message = match to_credential(&fields["credential"]) {
        None => message.unsigned(),
        Some(credential) => message.signed(&credential),
    };
    message.expect("short enough")
}

/// Views borrow, and what JSON says is nowhere to be borrowed from. Tests end soon.
fn leak<T>(owned: Vec<T>) -> &'static mut Vec<T> {
    Box::leak(Box::new(owned))
}

fn text(v: &Json) -> &'static [u8] {
    leak(bytes(v))
}

/// A byte that the vectors write with its sign.
fn byte(v: &Json) -> u8 {
    integer::<i8>(v).cast_unsigned()
}

fn raw(v: &Json) -> &'static [u8] {
    leak(hex(v))
}

fn to_envelope(v: &Json) -> Envelope {
    let flag = |name: &str, flag: EnvelopeFlags| if v[name] == true { flag.0 } else { 0 };
    Envelope {
        version: Version::new(byte(&v["major"]), byte(&v["minor"])),
        flags: EnvelopeFlags(
            flag("compressed", EnvelopeFlags::COMPRESSED)
                | flag("encrypted", EnvelopeFlags::ENCRYPTED)
                | flag("truncated", EnvelopeFlags::TRUNCATED),
        ),
        suggested: Version::new(byte(&v["suggest_major"]), byte(&v["suggest_minor"])),
        session_id: integer(&v["session_id"]),
        request_id: integer(&v["request_id"]),
        sequence: integer::<i32>(&v["message_id"]).cast_unsigned(),
        message_len: 0,
    }
}

fn to_header(v: &Json) -> Header {
    let named = OpFlags::KNOWN.into_iter().filter(|(_, name)| v["flags"][name] == true);
    let unknown = v["flags"]
        .get("unknown_bits_hex")
        .map_or(0, |bits| u32::from_str_radix(bits.as_str().expect("hexadecimal"), 16).expect("hexadecimal"));
    Header {
        op_code: OpCode(integer(&v["opcode"])),
        response_code: ResponseCode(integer(&v["response_code"])),
        flags: named.fold(OpFlags(unknown), |flags, (flag, _)| flags.with(flag)),
        site_serial: integer(&v["site_info_serial"]),
        recursion_count: integer(&v["recursion_count"]),
        reserved: integer(&v["reserved"]),
        expiration: integer::<i32>(&v["expiration"]).cast_unsigned(),
        body_len: 0,
    }
}

fn to_digest(body: &Json) -> Option<RequestDigest<'static>> {
    let algorithm = DigestAlgorithm(integer(body.get("request_digest_algorithm")?));
    Some(RequestDigest { algorithm, digest: raw(&body["request_digest_hex"]) })
}

fn to_credential(v: &Json) -> Option<Credential<'static>> {
    (!v.is_null()).then(|| Credential {
        version: integer(&v["version"]),
        reserved: integer(&v["reserved"]),
        options: integer(&v["options"]),
        signer: text(&v["signer_handle"]),
        counter: integer(&v["signer_index_or_session_counter"]),
        kind: text(&v["type"]),
        algorithm: text(&v["digest_algorithm"]),
        signature: raw(&v["signature_hex"]),
    })
}

fn to_request(header: &Header, version: Version, body: &Json) -> Request<'static> {
    let handle_body = || HandleBody { handle: text(&body["handle"]) };
    let handle_values = || HandleValues { handle: text(&body["handle"]), values: to_values(&body["values"]) };
    match header.op_code {
        OpCode::RESOLUTION => Request::Resolution(Query {
            handle: text(&body["handle"]),
            indexes: to_indexes(&body["indexes"]),
            types: Strings::build(array(&body["types"]).iter().map(text), leak(vec![])),
        }),
        OpCode::GET_SITE_INFO => Request::GetSiteInfo(handle_body()),
        OpCode::CREATE_HANDLE => Request::CreateHandle(handle_values()),
        OpCode::DELETE_HANDLE => Request::DeleteHandle(handle_body()),
        OpCode::ADD_VALUE => Request::AddValue(handle_values()),
        OpCode::REMOVE_VALUE => Request::RemoveValue(HandleIndexes {
            handle: text(&body["handle"]),
            indexes: to_indexes(&body["indexes"]),
        }),
        OpCode::MODIFY_VALUE => Request::ModifyValue(handle_values()),
        OpCode::LIST_HANDLES => Request::ListHandles(handle_body()),
        OpCode::RESPONSE_TO_CHALLENGE => Request::AnswerChallenge(ChallengeAnswer {
            auth_type: text(&body["auth_type"]),
            identity: Reference {
                handle: text(&body["user_id_handle"]),
                index: integer(&body["user_id_index"]),
            },
            signed_response: raw(&body["answer_hex"]),
        }),
        OpCode::VERIFY_CHALLENGE => Request::VerifyChallenge(Verification {
            identity: Reference { handle: text(&body["handle"]), index: integer(&body["handle_index"]) },
            nonce: raw(&body["nonce_hex"]),
            digest: RequestDigest {
                algorithm: DigestAlgorithm::OLD_MD5,
                digest: raw(&body["original_request_digest_hex"]),
            },
            signed_response: raw(&body["answer_hex"]),
        }),
        OpCode::HOME_NA => Request::HomeNa(handle_body()),
        OpCode::UNHOME_NA => Request::UnhomeNa(handle_body()),
        OpCode::LIST_HOMED_NAS => Request::ListHomedNas(handle_body()),
        OpCode::SESSION_SETUP => Request::SessionSetup(to_session_setup(body)),
        OpCode::SESSION_TERMINATE => Request::SessionTerminate(handle_body()),
        OpCode::SESSION_EXCHANGE_KEY => Request::SessionExchangeKey(ExchangedKey {
            encrypted_key: raw(&body["encrypted_session_key_hex"]),
        }),
        OpCode::GET_NEXT_TXN_ID => Request::GetNextTxnId(handle_body()),
        OpCode::RETRIEVE_TXN_LOG => Request::RetrieveTxnLog(RetrieveTransactions {
            progress: match body.get("replication_state") {
                Some(state) => {
                    assert!(version >= Version::new(2, 9), "a form that old versions lack");
                    Progress::AllSources { state: leak(state.to_string().into_bytes()) }
                }
                None => Progress::OneSource {
                    last_txn_id: integer(&body["last_txn_id"]),
                    last_query_ms: integer(&body["last_query_date"]),
                },
            },
            receiver: to_receiver(body),
        }),
        OpCode::DUMP_HANDLES => Request::DumpHandles(DumpHandles {
            receiver: to_receiver(body),
            start: body
                .get("starting_point")
                .map(|item| StartingPoint { item: text(item), kind: integer(&body["starting_point_type"]) }),
        }),
        OpCode::BACKUP_SERVER => Request::BackupServer(handle_body()),
        unknown => panic!("no vector has operation {unknown:?}"),
    }
}

fn to_receiver(body: &Json) -> Receiver {
    Receiver {
        hash_option: byte(&body["receiver_hash_type"]),
        servers_count: integer(&body["num_servers"]),
        server_at: integer(&body["server_num"]),
    }
}

fn to_session_setup(body: &Json) -> SessionSetup<'static> {
    let exchange = match KeyExchangeMode(integer(&body["key_exchange_mode"])) {
        KeyExchangeMode::CLIENT_KEY => KeyExchange::ClientKey(raw(&body["public_key_hex"])),
        KeyExchangeMode::SERVER_KEY => KeyExchange::ServerKey,
        KeyExchangeMode::HANDLE_KEY => KeyExchange::HandleKey(Reference {
            handle: text(&body["exchange_key_handle"]),
            index: integer(&body["exchange_key_index"]),
        }),
        KeyExchangeMode::DIFFIE_HELLMAN => KeyExchange::DiffieHellman(raw(&body["public_key_hex"])),
        other => KeyExchange::Other(other),
    };
    let identity =
        Reference { handle: text(&body["identity_handle"]), index: integer(&body["identity_index"]) };
    SessionSetup { exchange, timeout_s: integer(&body["timeout"]), identity }
}

fn to_response(code: ResponseCode, op_code: OpCode, body: &Json) -> Response<'static> {
    match code {
        ResponseCode::SUCCESS => to_success(op_code, body),
        ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL => Response::Referral(Referral {
            handle: text(&body["handle"]),
            values: (!body["values"].is_null()).then(|| to_values(&body["values"])),
        }),
        ResponseCode::AUTHENTICATION_NEEDED => {
            Response::Challenge(Challenge { nonce: raw(&body["nonce_hex"]) })
        }
        _ => Response::Failure(Failure { message: text(&body["message"]) }),
    }
}

fn to_success(op_code: OpCode, body: &Json) -> Response<'static> {
    match op_code {
        OpCode::RESOLUTION => {
            Response::Answer(Answer { handle: text(&body["handle"]), values: to_values(&body["values"]) })
        }
        OpCode::GET_SITE_INFO => Response::SiteInfo(leak(site::from_json(&body["site"]))),
        OpCode::CREATE_HANDLE => {
            Response::Created(Created { handle: (!body["handle"].is_null()).then(|| text(&body["handle"])) })
        }
        OpCode::LIST_HANDLES | OpCode::LIST_HOMED_NAS => Response::Listing(Listing {
            handles: Handles::build(array(&body["handles"]).iter().map(text), leak(vec![])),
        }),
        OpCode::VERIFY_CHALLENGE => Response::Verdict(Verdict { is_valid: body["is_valid"] == true }),
        OpCode::SESSION_SETUP => Response::Session(SessionAnswer {
            mode: KeyExchangeMode(integer(&body["key_exchange_mode"])),
            data: raw(&body["data_hex"]),
        }),
        OpCode::GET_NEXT_TXN_ID => {
            Response::NextTransaction(NextTransaction { txn_id: integer(&body["next_txn_id"]) })
        }
        OpCode::RETRIEVE_TXN_LOG => {
            Response::TransactionsFollow(TransactionsFollow { keep_alive: body["keep_alive"] == true })
        }
        _ => Response::Done,
    }
}

fn to_indexes(v: &Json) -> Indexes<'static> {
    Indexes::build(array(v).iter().map(integer), leak(vec![]))
}

fn to_values(v: &Json) -> Values<'static> {
    Values::build(array(v).iter().map(to_value), leak(vec![]))
}

fn to_value(v: &Json) -> Value<'static> {
    let reference = |it: &Json| Reference { handle: text(&it["handle"]), index: integer(&it["index"]) };
    let permissions = v["permissions"].as_str().expect("permissions");
    Value {
        index: integer(&v["index"]),
        timestamp: integer::<i32>(&v["timestamp"]).cast_unsigned(),
        ttl: Ttl { kind: byte(&v["ttl_type"]), seconds: integer(&v["ttl"]) },
        permissions: Permissions(u8::from_str_radix(permissions, 2).expect("four of 0 and 1")),
        kind: text(&v["type"]),
        data: raw(&v["data_hex"]),
        references: References::build(array(&v["references"]).iter().map(reference), leak(vec![])),
    }
}
