//! A receiver of streams, as a mirror is one: requests them with the key of an administrator, and
//! keeps what arrives.

use handle_auth::PrivateKey;
use handle_auth::challenge::answer_with_key;
use handle_client::replication::connection::{ReceiveError, StreamConnection};
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits};
use handle_proto::wire::auth::{ChallengeAnswer, PUBLIC_KEY};
use handle_proto::wire::list::Reference;
use handle_proto::wire::replication::{DumpHandles, Progress, Receiver, RetrieveTransactions, StartingPoint};
use handle_proto::wire::replication_stream::{DumpItem, StreamValues, TransactionAction, TransactionItem};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{HashOption, OpCode, OpFlags, ResponseCode, ValueBuf, Version};
use std::net::SocketAddr;
use std::time::Duration;

/// A site of one server.
pub const WHOLE: Receiver =
    Receiver { hash_option: HashOption::Handle as u8, servers_count: 1, server_at: 0 };

/// The receiver, and the server from which it receives.
#[derive(Debug)]
pub struct TestReceiver<'k> {
    /// The address of the server.
    pub server: SocketAddr,
    /// The record of the public key of the server.
    pub server_key: Vec<u8>,
    /// The handle of the identity.
    pub handle: &'k [u8],
    /// Its index.
    pub index: i32,
    /// Its key.
    pub key: &'k PrivateKey,
    /// The version of requests.
    pub version: Version,
    /// Time for each read.
    pub timeout: Duration,
}

/// An item of a stream, as text: `update 7 10.1/A [..]` for transactions.
pub type ReceivedItem = String;

/// How a request for a stream ended.
#[derive(Debug)]
pub enum PullOutcome {
    /// The code of a refusal.
    Refused(ResponseCode),
    /// The items of a complete stream.
    Complete(Vec<ReceivedItem>),
    /// The items that were received before the stream broke, and why it did.
    Broken(Vec<ReceivedItem>, ReceiveError),
}

impl PullOutcome {
    /// The items of a complete stream.
    ///
    /// # Panics
    /// If it is not complete.
    #[must_use]
    pub fn items(self) -> Vec<ReceivedItem> {
        match self {
            Self::Complete(items) => items,
            other => panic!("{other:?}"),
        }
    }
}

/// The code of the answer in `message`, and the challenge if it is one.
fn reply_of(message: &[u8]) -> (Envelope, Reply<'_>) {
    let (envelope, rest) = Envelope::split(message).expect("an envelope");
    match Message::decode(rest).expect("a message").decode_body(envelope.version).expect("a body") {
        Body::Reply(reply) => (envelope, reply),
        Body::Request(_) => panic!("a request instead of an answer"),
    }
}

impl TestReceiver<'_> {
    fn message(&self, session_id: i32, request: &Request<'_>, op_code: OpCode) -> Vec<u8> {
        // As deployed mirrors ask.
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
        let header = Header::request(op_code, flags, 0);
        let (version, suggested) = (self.version, self.version);
        let envelope = Envelope { version, suggested, session_id, ..Envelope::request(4711) };
        MessageBuf::request(&envelope, &header, request).unsigned().expect("a short request")
    }

    /// The message that requests a stream.
    #[must_use]
    pub fn first_message(&self, request: &Request<'_>) -> Vec<u8> {
        self.message(0, request, request.op_code())
    }

    /// The message that answers the challenge in `answer`.
    ///
    /// # Panics
    /// If it is no challenge.
    #[must_use]
    pub fn second_message(&self, answer: &[u8]) -> Vec<u8> {
        let (envelope, reply) = reply_of(answer);
        let (Response::Challenge(challenge), Some(digest)) = (reply.response, reply.digest) else {
            panic!("no challenge: {reply:?}");
        };
        let signed = answer_with_key(envelope.version, &[challenge.nonce, digest.digest], self.key);
        let answer = ChallengeAnswer {
            auth_type: PUBLIC_KEY,
            identity: Reference { handle: self.handle, index: self.index },
            signed_response: &signed.expect("a signature"),
        };
        self.message(envelope.session_id, &Request::AnswerChallenge(answer), OpCode::RESPONSE_TO_CHALLENGE)
    }

    /// Sends a request and answers its challenge; the connection on which the stream follows.
    ///
    /// # Errors
    /// The code of a refusal.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn begin(&self, request: &Request<'_>) -> Result<StreamConnection, ResponseCode> {
        let first = self.first_message(request);
        let (_, challenge) = StreamConnection::request(self.server, &first, self.timeout).expect("an answer");
        let (_, reply) = reply_of(&challenge);
        if reply.code != ResponseCode::AUTHENTICATION_NEEDED {
            return Err(reply.code);
        }
        let second = self.second_message(&challenge);
        let (connection, answer) =
            StreamConnection::request(self.server, &second, self.timeout).expect("an answer");
        match reply_of(&answer).1.code {
            ResponseCode::SUCCESS => Ok(connection),
            code => Err(code),
        }
    }

    /// Requests a stream and receives it.
    #[must_use]
    pub fn pull(&self, request: &Request<'_>) -> PullOutcome {
        let content = match request {
            Request::DumpHandles(_) => StreamContent::Dump,
            _ => StreamContent::Transactions,
        };
        let connection = match self.begin(request) {
            Ok(connection) => connection,
            Err(code) => return PullOutcome::Refused(code),
        };
        let mut items = vec![];
        let received = connection.receive(content, &self.server_key, StreamLimits::default(), |event| {
            items.push(show(&event));
            Ok::<_, ReceiveError>(())
        });
        match received {
            Ok(()) => PullOutcome::Complete(items),
            Err(error) => PullOutcome::Broken(items, error),
        }
    }

    /// Requests the transactions of the source after one of them.
    #[must_use]
    pub fn transactions(&self, last_txn_id: i64, last_query_ms: i64, receiver: Receiver) -> PullOutcome {
        let progress = Progress::OneSource { last_txn_id, last_query_ms };
        self.pull(&Request::RetrieveTxnLog(RetrieveTransactions { progress, receiver }))
    }

    /// Requests all records, or those after `start`.
    #[must_use]
    pub fn dump(&self, start: Option<(&[u8], i32)>, receiver: Receiver) -> PullOutcome {
        let start = start.map(|(item, kind)| StartingPoint { item, kind });
        self.pull(&Request::DumpHandles(DumpHandles { receiver, start }))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shown_values(values: StreamValues<'_>) -> String {
    let each = values.iter().map(|value| ValueBuf::from(&value));
    let each = each.map(|value| data_encoding::HEXLOWER.encode(value.as_bytes()));
    each.collect::<Vec<_>>().join(",")
}

/// An item as text: kind, number or date where it has one, name, values in hexadecimal.
#[must_use]
pub fn show(event: &StreamEvent<'_>) -> ReceivedItem {
    match event {
        StreamEvent::BeginTls => "tls".to_owned(),
        StreamEvent::Header(header) => format!("{:?} {:?}", header.format, header.status),
        StreamEvent::Transaction(item) => match item {
            TransactionItem::End { unix_ms } => format!("end {}", unix_ms.unwrap_or(0)),
            TransactionItem::Queue(name) => format!("queue {}", text(name)),
            TransactionItem::QueueDate(unix_ms) => format!("queue-date {unix_ms}"),
            TransactionItem::Transaction { id, handle, action, .. } => {
                let (action, values) = match action {
                    TransactionAction::Placeholder => ("placeholder", None),
                    TransactionAction::Create(values) => ("create", Some(*values)),
                    TransactionAction::Delete => ("delete", None),
                    TransactionAction::Update(values) => ("update", Some(*values)),
                    TransactionAction::Home => ("home", None),
                    TransactionAction::Unhome => ("unhome", None),
                    TransactionAction::DeleteAll => ("delete-all", None),
                };
                let values = values.map(shown_values).unwrap_or_default();
                format!("{action} {id} {} {values}", text(handle)).trim_end().to_owned()
            }
        },
        StreamEvent::Dump(item) => match item {
            DumpItem::Source { unix_ms, txn_id } => format!("source {unix_ms} {txn_id}"),
            DumpItem::Handle { handle, values } => {
                format!("handle {} {}", text(handle), shown_values(*values))
            }
            DumpItem::Homed(name) => format!("homed {}", text(name)),
            DumpItem::HandleDate(date) => format!("date {} {}", text(date.name), date.unix_ms),
            DumpItem::PrefixDate(date) => format!("prefix-date {} {}", text(date.name), date.unix_ms),
            DumpItem::OtherSites(state) => format!("other-sites {}", text(state)),
            DumpItem::Done => "done".to_owned(),
        },
    }
}
