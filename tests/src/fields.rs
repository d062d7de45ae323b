//! Messages as JSON, in the form of the vectors: every field of envelope, header, body and
//! credential.
//!
//! [`message_fields`] and [`to_message`] are inverse to each other.

use crate::site;
use crate::site::{array, integer};
use crate::vectors::{bytes, hex};
use handle_proto::code::{DigestAlgorithm, KeyExchangeMode};
use handle_proto::json::message_to_json;
use handle_proto::value::{Permissions, Ttl};
use handle_proto::wire::admin::{CreatedHandle, HandleBody, HandleIndexes, HandleValues, Listing};
use handle_proto::wire::auth::{Challenge, ChallengeAnswer, VerificationAnswer, VerificationRequest};
use handle_proto::wire::credential::Credential;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::{Handles, Indexes, Reference, References, Strings};
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::referral::Referral;
use handle_proto::wire::replication::{
    DumpHandles, NextTransaction, Progress, Receiver, RetrieveTransactions, StartingPoint, TransactionsFollow,
};
use handle_proto::wire::session::{ExchangedKey, KeyExchange, SessionAnswer, SessionSetup};
use handle_proto::wire::{Envelope, Header, MessageBuf, Reply, Request, Response};
use handle_proto::{DecodeError, OpCode, OpFlags, ResponseCode, Value, Values, Version};
use serde_json::Value as Json;

// ---- Bytes to JSON.

/// The fields of a message in its stream form, envelope first.
///
/// # Errors
/// If the message does not decode, or has an unknown code.
pub fn message_fields(bytes: &[u8]) -> Result<Json, FieldsRefusal> {
    let (envelope, rest) = Envelope::split(bytes)?;
    let rest = rest.get(..envelope.message_len as usize).ok_or(FieldsRefusal::Cut)?;
    let fields = message_to_json(&envelope, rest);
    if fields.get("ciphertext_hex").is_some() {
        return Err(FieldsRefusal::Encrypted);
    }
    let (message, body) = (fields.get("error"), fields.get("body").unwrap_or(&Json::Null));
    match message.or(body.get("error")).or(body.get("unknown_hex")) {
        Some(why) => Err(FieldsRefusal::Undecodable(why.to_string())),
        None => Ok(fields),
    }
}

/// Reason why a message has no fields.
#[derive(Debug)]
pub enum FieldsRefusal {
    /// The message ends before its length.
    Cut,
    /// The message is encrypted.
    Encrypted,
    /// The message does not decode, or its codes are unknown; with the error or the body.
    Undecodable(String),
}

impl From<DecodeError> for FieldsRefusal {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error.to_string())
    }
}

// ---- JSON to bytes.

/// The message with these fields in its stream form. Its lengths come from the encoder, and the
/// caller compares them.
///
/// # Panics
/// If a field is missing or invalid.
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
            .map_or(header.response_code, |code| ResponseCode(integer(code)));
        let response = to_response(code, header.op_code, body);
        MessageBuf::reply(&envelope, &header, &Reply { code, digest: to_digest(body), response })
    };
    let message = match to_credential(&fields["credential"]) {
        None => message.unsigned(),
        Some(credential) => message.signed(&credential),
    };
    message.expect("a message that is not too long")
}

/// Leaks a list, because views need something to borrow from.
fn leak<T>(owned: Vec<T>) -> &'static mut Vec<T> {
    Box::leak(Box::new(owned))
}

fn text(v: &Json) -> &'static [u8] {
    leak(bytes(v))
}

/// A byte that the vectors write as a signed number.
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
        OpCode::VERIFY_CHALLENGE => Request::VerifyChallenge(VerificationRequest {
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
        OpCode::RESOLUTION => Response::Answer(QueryAnswer {
            handle: text(&body["handle"]),
            values: to_values(&body["values"]),
        }),
        OpCode::GET_SITE_INFO => Response::SiteInfo(leak(site::from_json(&body["site"]))),
        OpCode::CREATE_HANDLE => Response::Created(CreatedHandle {
            handle: (!body["handle"].is_null()).then(|| text(&body["handle"])),
        }),
        OpCode::LIST_HANDLES | OpCode::LIST_HOMED_NAS => Response::Listing(Listing {
            handles: Handles::build(array(&body["handles"]).iter().map(text), leak(vec![])),
        }),
        OpCode::VERIFY_CHALLENGE => {
            Response::Verdict(VerificationAnswer { is_valid: body["is_valid"] == true })
        }
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
    let reference = |json: &Json| Reference { handle: text(&json["handle"]), index: integer(&json["index"]) };
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
