//! Prints message bodies field by field.

use super::MessagePrinter;
use crate::output;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::kind::HS_SITE;
use handle_proto::value::Value;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::{Handles, Indexes, Reference, Strings, Values};
use handle_proto::wire::replication::{Progress, Receiver, RetrieveTransactions};
use handle_proto::wire::session::{KeyExchange, SessionSetup};
use handle_proto::wire::{Reply, Request, Response};
use handle_proto::{Handle, Version};

/// Prints the body of a request of protocol `version`.
pub(super) fn request(print: &mut MessagePrinter<'_>, request: &Request<'_>, version: Version) {
    match *request {
        Request::Resolution(query) => {
            string(print, "handle", query.handle);
            indexes(print, query.indexes);
            types(print, query.types);
        }
        Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
            string(print, "handle", body.handle);
            values(print, body.values);
        }
        Request::RemoveValue(body) => {
            string(print, "handle", body.handle);
            indexes(print, body.indexes);
        }
        Request::AnswerChallenge(answer) => {
            string(print, "kind of key", answer.auth_type);
            reference(print, "identity", answer.identity);
            counted(print, "answer", answer.signed_response);
        }
        Request::VerifyChallenge(body) => {
            reference(print, "identity", body.identity);
            counted(print, "nonce", body.nonce);
            digest(print, &body.digest);
            counted(print, "answer", body.signed_response);
        }
        Request::SessionSetup(setup) => session_setup(print, &setup),
        Request::SessionExchangeKey(key) => counted(print, "encrypted key", key.encrypted_key),
        Request::RetrieveTxnLog(body) => {
            if version >= RetrieveTransactions::FORMS_SINCE {
                print.field(1, "form", "");
            }
            match body.progress {
                Progress::OneSource { last_txn_id, last_query_ms } => {
                    print.field(8, "last transaction", &last_txn_id.to_string());
                    print.field(8, "up to", &output::unix_time(last_query_ms.div_euclid(1000)));
                }
                Progress::AllSources { state } => string(print, "state", state),
            }
            receiver(print, body.receiver);
        }
        Request::DumpHandles(body) => {
            receiver(print, body.receiver);
            if let Some(start) = body.start {
                string(print, "starts after", start.item);
                print.field(4, "  of kind", &start.kind.to_string());
            }
        }
        // All others are a handle, or unknown.
        _ => request.handle().into_iter().for_each(|handle| string(print, "handle", handle)),
    }
}

/// Prints the body of a response of protocol `version`.
pub(super) fn reply(print: &mut MessagePrinter<'_>, reply: &Reply<'_>, version: Version) {
    let is_challenge = matches!(reply.response, Response::Challenge(_));
    // The old form of a challenge has the digest after the nonce.
    if is_challenge && version < Version::LOWEST {
        response(print, &reply.response);
        reply.digest.iter().for_each(|one| digest(print, one));
    } else {
        reply.digest.iter().for_each(|one| digest(print, one));
        response(print, &reply.response);
    }
    if matches!(reply.response, Response::Done | Response::Unknown([])) {
        println!("        empty: {}", reply.code);
    }
}

fn response(print: &mut MessagePrinter<'_>, response: &Response<'_>) {
    match *response {
        Response::Answer(answer) => {
            string(print, "handle", answer.handle);
            values(print, answer.values);
        }
        Response::SiteInfo(record) => print.field(record.len(), "site", &output::describe(HS_SITE, record)),
        Response::Created(created) => {
            created.handle.iter().for_each(|handle| string(print, "handle", handle))
        }
        Response::Changed(change) => {
            change.handle.iter().for_each(|handle| string(print, "handle", handle));
            print.field(8, "store", &format!("{:016x}", change.position.store));
            print.field(8, "transaction", &change.position.transaction.to_string());
        }
        Response::Listing(listing) => handles(print, listing.handles),
        Response::Verdict(verdict) => print.field(1, "right", if verdict.is_valid { "yes" } else { "no" }),
        Response::Session(answer) => {
            print.field(2, "key exchange", &answer.mode.to_string());
            counted(print, "data", answer.data);
        }
        Response::NextTransaction(next) => print.field(8, "transaction", &next.txn_id.to_string()),
        Response::TransactionsFollow(follow) => {
            print.field(1, "stays open", if follow.keep_alive { "yes" } else { "no" });
        }
        Response::Referral(referral) => {
            string(print, "handle", referral.handle);
            referral.values.into_iter().for_each(|list| values(print, list));
        }
        Response::Challenge(challenge) => counted(print, "nonce", challenge.nonce),
        Response::Failure(failure) => string(print, "message", failure.message),
        Response::Done | Response::Unknown(_) => {}
    }
}

fn session_setup(print: &mut MessagePrinter<'_>, setup: &SessionSetup<'_>) {
    print.field(2, "key exchange", &setup.exchange.mode().to_string());
    print.field(4, "timeout", &format!("{} s", setup.timeout_s));
    reference(print, "identity", setup.identity);
    match setup.exchange {
        KeyExchange::ClientKey(key) | KeyExchange::DiffieHellman(key) => counted(print, "public key", key),
        KeyExchange::HandleKey(key) => reference(print, "key", key),
        KeyExchange::ServerKey | KeyExchange::Other(_) => {}
    }
}

fn receiver(print: &mut MessagePrinter<'_>, receiver: Receiver) {
    print.field(1, "hash option", &receiver.hash_option.to_string());
    print.field(4, "servers", &receiver.servers_count.to_string());
    print.field(4, "server", &receiver.server_at.to_string());
}

fn digest(print: &mut MessagePrinter<'_>, digest: &RequestDigest<'_>) {
    // With a length in front, the digest has no algorithm.
    if digest.algorithm == DigestAlgorithm::OLD_MD5 {
        return counted(print, "request digest", digest.digest);
    }
    print.field(1 + digest.digest.len(), "request digest", &digest.algorithm.to_string());
}

fn indexes(print: &mut MessagePrinter<'_>, indexes: Indexes<'_>) {
    print.field(4, "indexes", &indexes.len().to_string());
    indexes.iter().for_each(|index| print.field(4, "  index", &index.to_string()));
}

fn types(print: &mut MessagePrinter<'_>, types: Strings<'_>) {
    print.field(4, "types", &types.len().to_string());
    types.iter().for_each(|kind| string(print, "  type", kind));
}

fn handles(print: &mut MessagePrinter<'_>, handles: Handles<'_>) {
    print.field(4, "handles", &handles.len().to_string());
    handles.iter().for_each(|handle| string(print, "  handle", handle));
}

fn values(print: &mut MessagePrinter<'_>, values: Values<'_>) {
    print.field(4, "values", &values.len().to_string());
    values.iter().for_each(|one| value(print, &one));
}

fn value(print: &mut MessagePrinter<'_>, value: &Value<'_>) {
    print.field(4, "  index", &value.index.to_string());
    print.field(4, "    timestamp", &output::unix_time(value.timestamp.into()));
    print.field(5, "    ttl", &output::ttl(value.ttl));
    print.field(1, "    permissions", &value.permissions.to_string());
    string(print, "    type", value.kind);
    print.field(4 + value.data.len(), "    data", &output::describe(value.kind, value.data));
    print.field(4, "    references", &value.references.len().to_string());
    value.references.iter().for_each(|one| reference(print, "      to", one));
}

fn reference(print: &mut MessagePrinter<'_>, name: &str, reference: Reference<'_>) {
    print.field(4 + reference.handle.len() + 4, name, &reference.to_string());
}

fn string(print: &mut MessagePrinter<'_>, name: &str, bytes: &[u8]) {
    print.field(4 + bytes.len(), name, &format!("{:?}", Handle(bytes)));
}

/// Length-prefixed bytes without a readable form.
fn counted(print: &mut MessagePrinter<'_>, name: &str, bytes: &[u8]) {
    print.field(4 + bytes.len(), name, &format!("{} bytes", bytes.len()));
}
