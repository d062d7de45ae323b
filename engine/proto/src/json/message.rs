//! Messages as JSON: every field of envelope, header, body and credential.
//!
//! Messages can be written, not read, for people and for tests. Members are named, and numbers are
//! signed, as in `messages.jsonl`.

use super::{Json, object, site};
use crate::code::OpFlags;
use crate::data::Site;
use crate::error::DecodeError;
use crate::value::Value;
use crate::wire::credential::Credential;
use crate::wire::envelope::EnvelopeFlags;
use crate::wire::list::{Indexes, Reference, Values};
use crate::wire::replication::{Progress, Receiver, RetrieveTransactions};
use crate::wire::session::{KeyExchange, SessionSetup};
use crate::wire::{Body, Envelope, Header, Message, Request, Response};
use alloc::format;
use alloc::string::String;
use data_encoding::HEXLOWER;
use serde_json::{Map, json};

/// A message as JSON; `rest` is everything after the envelope.
///
/// A byte string is a string if it is UTF-8, otherwise `{"hex": ...}`. An encrypted message has
/// `ciphertext_hex` in place of everything but the envelope. A part that does not decode has the
/// members `error` and `hex`: the body, or the message if its header, or a length in it, is
/// invalid. The body of an unknown operation or code has `unknown_hex`.
#[must_use]
pub fn message_to_json(envelope: &Envelope, rest: &[u8]) -> Json {
    let mut json = object([("envelope", of_envelope(envelope))]);
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        json["ciphertext_hex"] = hex(rest);
        return json;
    }
    if let Ok((header, _)) = Header::split(rest) {
        json["header"] = of_header(&header);
    }
    let message = match Message::decode(rest) {
        Ok(message) => message,
        Err(error) => {
            json["error"] = format!("{error}").into();
            json["hex"] = hex(rest);
            return json;
        }
    };
    let body = message.decode_body(envelope.version);
    json["body"] = match &body {
        Ok(body) => of_body(body),
        Err(error) => refused(error, message.body),
    };
    json["credential"] = of_credential(&message);
    if let Ok(Body::Reply(reply)) = body
        && reply.code != message.header.response_code
    {
        json["response_code_after_decode"] = reply.code.0.into();
    }
    json
}

fn refused(error: &DecodeError, bytes: &[u8]) -> Json {
    json!({ "error": format!("{error}"), "hex": hex(bytes) })
}

fn hex(bytes: &[u8]) -> Json {
    Json::String(HEXLOWER.encode(bytes))
}

fn string(bytes: &[u8]) -> Json {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => object([("hex", hex(bytes))]),
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
    let named = OpFlags::KNOWN.iter().map(|&(flag, name)| (name.into(), header.flags.has(flag).into()));
    let mut flags: Map<String, Json> = named.collect();
    let unknown = OpFlags::KNOWN.iter().fold(header.flags, |left, &(flag, _)| left.without(flag));
    if unknown != OpFlags::default() {
        flags.insert("unknown_bits_hex".into(), format!("{:08x}", unknown.0).into());
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
        Ok(Some(credential)) => of_decoded_credential(&credential),
        Err(_) => {
            let byte = |at| message.credential.get(at).copied().unwrap_or(0);
            json!({
                "version": byte(0),
                "reserved": byte(1),
                "options": u16::from_be_bytes([byte(2), byte(3)]),
                "undecodable_hex": hex(message.credential),
            })
        }
    }
}

fn of_decoded_credential(credential: &Credential<'_>) -> Json {
    json!({
        "version": credential.version,
        "reserved": credential.reserved,
        "options": credential.options,
        "signer_handle": string(credential.signer),
        "signer_index_or_session_counter": credential.counter,
        "type": string(credential.kind),
        "signed_info_length": credential.signed_info_len(),
        // A code is one byte, which is valid text too, so it is written as a code.
        "digest_algorithm": match credential.algorithm {
            [_] => object([("hex", hex(credential.algorithm))]),
            name => string(name),
        },
        "signature_hex": hex(credential.signature),
    })
}

fn of_body(body: &Body<'_>) -> Json {
    match body {
        Body::Request(request) => of_request(request),
        Body::Reply(reply) => {
            let mut fields = Map::new();
            if let Some(digest) = reply.digest {
                fields.insert("request_digest_algorithm".into(), digest.algorithm.0.into());
                fields.insert("request_digest_hex".into(), hex(digest.digest));
            }
            let mut response = of_response(&reply.response);
            fields.append(response.as_object_mut().expect("every body is an object"));
            fields.into()
        }
    }
}

fn of_request(request: &Request<'_>) -> Json {
    match *request {
        Request::Resolution(query) => json!({
            "handle": string(query.handle),
            "indexes": of_indexes(query.indexes),
            "types": query.types.iter().map(string).collect::<Json>(),
        }),
        Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
            json!({ "handle": string(body.handle), "values": of_values(body.values) })
        }
        Request::RemoveValue(body) => {
            json!({ "handle": string(body.handle), "indexes": of_indexes(body.indexes) })
        }
        Request::AnswerChallenge(answer) => json!({
            "auth_type": string(answer.auth_type),
            "user_id_handle": string(answer.identity.handle),
            "user_id_index": answer.identity.index,
            "answer_hex": hex(answer.signed_response),
        }),
        Request::VerifyChallenge(body) => json!({
            "handle": string(body.identity.handle),
            "handle_index": body.identity.index,
            "nonce_hex": hex(body.nonce),
            "original_request_digest_hex": hex(body.digest.digest),
            "answer_hex": hex(body.signed_response),
        }),
        Request::SessionSetup(setup) => of_session_setup(&setup),
        Request::SessionExchangeKey(key) => json!({ "encrypted_session_key_hex": hex(key.encrypted_key) }),
        Request::RetrieveTxnLog(RetrieveTransactions { progress, receiver }) => match progress {
            Progress::OneSource { last_txn_id, last_query_ms } => with_receiver(
                json!({ "last_txn_id": last_txn_id, "last_query_date": last_query_ms }),
                receiver,
            ),
            Progress::AllSources { state } => {
                let parsed = serde_json::from_slice(state).unwrap_or_else(|_| string(state));
                with_receiver(object([("replication_state", parsed)]), receiver)
            }
        },
        Request::DumpHandles(dump) => {
            let mut fields = with_receiver(json!({}), dump.receiver);
            if let Some(start) = dump.start {
                fields["starting_point"] = string(start.item);
                fields["starting_point_type"] = start.kind.into();
            }
            fields
        }
        Request::Unknown(_, body) => json!({ "unknown_hex": hex(body) }),
        // All others are a handle.
        _ => json!({ "handle": request.handle().map(string) }),
    }
}

fn with_receiver(mut fields: Json, receiver: Receiver) -> Json {
    fields["receiver_hash_type"] = receiver.hash_option.cast_signed().into();
    fields["num_servers"] = receiver.servers_count.into();
    fields["server_num"] = receiver.server_at.into();
    fields
}

fn of_session_setup(setup: &SessionSetup<'_>) -> Json {
    let mut fields = json!({
        "key_exchange_mode": setup.exchange.mode().0,
        "timeout": setup.timeout_s,
        "identity_handle": string(setup.identity.handle),
        "identity_index": setup.identity.index,
    });
    match setup.exchange {
        KeyExchange::ClientKey(key) | KeyExchange::DiffieHellman(key) => fields["public_key_hex"] = hex(key),
        KeyExchange::HandleKey(key) => {
            fields["exchange_key_handle"] = string(key.handle);
            fields["exchange_key_index"] = key.index.into();
        }
        KeyExchange::ServerKey | KeyExchange::Other(_) => {}
    }
    fields
}

fn of_response(response: &Response<'_>) -> Json {
    match *response {
        Response::Answer(answer) => {
            json!({ "handle": string(answer.handle), "values": of_values(answer.values) })
        }
        Response::SiteInfo(record) => match Site::decode(record) {
            Ok(record) => json!({ "site": site::site_to_json(&record) }),
            Err(error) => refused(&error, record),
        },
        Response::Created(created) => json!({ "handle": created.handle.map(string) }),
        Response::Changed(change) => json!({
            "handle": change.handle.map(string),
            "store": format!("{:016x}", change.position.store),
            "transaction": change.position.transaction,
        }),
        Response::Done => json!({}),
        Response::Listing(listing) => {
            json!({ "handles": listing.handles.iter().map(string).collect::<Json>() })
        }
        Response::Verdict(verdict) => json!({ "is_valid": verdict.is_valid }),
        Response::Session(answer) => {
            json!({ "key_exchange_mode": answer.mode.0, "data_hex": hex(answer.data) })
        }
        Response::NextTransaction(next) => json!({ "next_txn_id": next.txn_id }),
        Response::TransactionsFollow(follow) => json!({ "keep_alive": follow.keep_alive }),
        Response::Referral(referral) => {
            json!({ "handle": string(referral.handle), "values": referral.values.map(of_values) })
        }
        Response::Challenge(challenge) => json!({ "nonce_hex": hex(challenge.nonce) }),
        Response::Failure(failure) => json!({ "message": string(failure.message) }),
        Response::Unknown(body) => json!({ "unknown_hex": hex(body) }),
    }
}

fn of_indexes(indexes: Indexes<'_>) -> Json {
    indexes.iter().collect()
}

fn of_values(values: Values<'_>) -> Json {
    values.iter().map(of_value).collect()
}

fn of_value(value: Value<'_>) -> Json {
    let reference = |it: Reference<'_>| json!({ "index": it.index, "handle": string(it.handle) });
    json!({
        "index": value.index,
        "type": string(value.kind),
        "data_hex": hex(value.data),
        "ttl_type": value.ttl.kind.cast_signed(),
        "ttl": value.ttl.seconds,
        "timestamp": value.timestamp.cast_signed(),
        "permissions": format!("{}", value.permissions),
        "references": value.references.iter().map(reference).collect::<Json>(),
    })
}
