//! Replication requests, and the small bodies of transactions. Not in the RFCs.

use super::cursor::Cursor;
use super::put;
use crate::code::Version;
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

const FORM_ONE_SOURCE: u8 = 0;
const FORM_ALL_SOURCES: u8 = 1;

/// The receiving site: the source sends only records that hash to this server of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Number of a [`HashOption`](crate::code::HashOption), as written.
    pub hash_option: u8,
    /// Number of servers in the site.
    pub servers_count: i32,
    /// Position of the server in the site.
    pub server_at: i32,
}

impl Receiver {
    fn decode(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            hash_option: cursor.u8(Field::Replication)?,
            servers_count: cursor.i32(Field::Replication)?,
            server_at: cursor.i32(Field::Replication)?,
        })
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.push(self.hash_option);
        put::i32(out, self.servers_count);
        put::i32(out, self.server_at);
    }
}

/// The transactions that the receiver already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Requests the source's own transactions.
    OneSource {
        /// The last transaction received.
        last_txn_id: i64,
        /// The date up to which everything was received, in milliseconds since 1970.
        last_query_ms: i64,
    },
    /// Requests the transactions of every queue that the source knows; since version 2.9.
    AllSources {
        /// JSON: the last transaction and date of each queue.
        state: &'a [u8],
    },
}

/// Body of the request to retrieve transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrieveTransactions<'a> {
    /// The transactions that the receiver already has.
    pub progress: Progress<'a>,
    /// The receiving site.
    pub receiver: Receiver,
}

impl<'a> RetrieveTransactions<'a> {
    /// First version in which the first byte gives the form of the request.
    pub const FORMS_SINCE: Version = Version::new(2, 9);

    /// Decodes the body of a request of `version`. Bytes after it are ignored, as in deployed
    /// software.
    ///
    /// # Errors
    /// When the body is too short, a length in it is wrong, or the form is unknown.
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let form =
            if version >= Self::FORMS_SINCE { cursor.u8(Field::Replication)? } else { FORM_ONE_SOURCE };
        let progress = match form {
            FORM_ONE_SOURCE => {
                Progress::OneSource { last_txn_id: i64_of(&mut cursor)?, last_query_ms: i64_of(&mut cursor)? }
            }
            FORM_ALL_SOURCES => Progress::AllSources { state: cursor.string(Field::Replication)? },
            _ => return Err(DecodeError::Invalid { field: Field::Replication, at: 0 }),
        };
        Ok(Self { progress, receiver: Receiver::decode(&mut cursor)? })
    }

    /// Appends the body as a request of `version` to `out`.
    ///
    /// Before 2.9 a request for all sources cannot be expressed: it becomes, as deployed, one for
    /// the source's own transactions from the first on (`messages.jsonl`,
    /// `version/retrieve_txn_all_sources`).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let names_form = version >= Self::FORMS_SINCE;
        match self.progress {
            Progress::OneSource { last_txn_id, last_query_ms } => {
                if names_form {
                    out.push(FORM_ONE_SOURCE);
                }
                put::u64(out, last_txn_id.cast_unsigned());
                put::u64(out, last_query_ms.cast_unsigned());
            }
            Progress::AllSources { state } if names_form => {
                out.push(FORM_ALL_SOURCES);
                put::string(out, state);
            }
            Progress::AllSources { .. } => out.extend_from_slice(&[0; 16]),
        }
        self.receiver.encode(out);
    }
}

fn i64_of(cursor: &mut Cursor<'_>) -> Result<i64, DecodeError> {
    cursor.u64(Field::Replication).map(u64::cast_signed)
}

/// Where an interrupted dump continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartingPoint<'a> {
    /// The last item received.
    pub item: &'a [u8],
    /// The kind of item: 0 handle date, 1 prefix date, 2 handle, 3 homed prefix.
    pub kind: i32,
}

/// Body of the request to dump all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpHandles<'a> {
    /// The receiving site.
    pub receiver: Receiver,
    /// Where to continue; `None` to start from the beginning.
    pub start: Option<StartingPoint<'a>>,
}

impl<'a> DumpHandles<'a> {
    /// Decodes a body. Bytes after it are ignored, as in deployed software.
    ///
    /// # Errors
    /// When the body is too short or a length in it is wrong.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let receiver = Receiver::decode(&mut cursor)?;
        if cursor.rest().is_empty() {
            return Ok(Self { receiver, start: None });
        }
        let item = cursor.string(Field::Replication)?;
        let start = StartingPoint { item, kind: cursor.i32(Field::Replication)? };
        Ok(Self { receiver, start: Some(start) })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.receiver.encode(out);
        if let Some(start) = self.start {
            put::string(out, start.item);
            put::i32(out, start.kind);
        }
    }
}

/// Body of the answer to [`RetrieveTransactions`]; a stream of transactions follows the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionsFollow {
    /// Whether the connection stays open after the stream; never in practice.
    pub keep_alive: bool,
}

impl TransactionsFollow {
    /// Decodes a body: one byte, whose lowest bit counts.
    ///
    /// # Errors
    /// When it is empty.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { keep_alive: Cursor::new(body).u8(Field::Replication)? & 1 == 1 })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.keep_alive.into());
    }
}

/// Body of the answer to the request for the next transaction number; deployed servers never send
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextTransaction {
    /// The number.
    pub txn_id: i64,
}

impl NextTransaction {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When it is too short.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { txn_id: i64_of(&mut Cursor::new(body))? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::u64(out, self.txn_id.cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use alloc::vec;

    const RECEIVER: Receiver = Receiver { hash_option: 2, servers_count: 3, server_at: 1 };
    const ONE: Progress<'_> = Progress::OneSource { last_txn_id: 5, last_query_ms: -6 };
    const ALL: Progress<'_> = Progress::AllSources { state: b"{}" };

    #[test]
    fn requests_for_transactions_round_trip() {
        let (old, new) = (Version::new(2, 8), Version::new(2, 9));
        for (progress, version, len) in [(ONE, old, 25), (ONE, new, 26), (ALL, new, 16)] {
            let (request, mut out) = (RetrieveTransactions { progress, receiver: RECEIVER }, vec![]);
            request.encode(version, &mut out);
            assert_eq!(out.len(), len);
            assert_eq!(RetrieveTransactions::decode(&out, version), Ok(request));
            let decode = |bytes: &[u8]| RetrieveTransactions::decode(bytes, version).map(|_| ());
            refuses_every_truncation(&out, &[], decode);
            survives_false_numbers(&out, decode);
        }
    }

    #[test]
    fn old_sources_are_asked_for_their_own_transactions() {
        let (version, mut out) = (Version::new(2, 8), vec![]);
        RetrieveTransactions { progress: ALL, receiver: RECEIVER }.encode(version, &mut out);
        let all = Progress::OneSource { last_txn_id: 0, last_query_ms: 0 };
        assert_eq!(RetrieveTransactions::decode(&out, version).unwrap().progress, all);
    }

    #[test]
    fn an_unknown_form_is_refused() {
        for form in 2..=255 {
            let body = [&[form][..], &[0; 40]].concat();
            let refused = DecodeError::Invalid { field: Field::Replication, at: 0 };
            assert_eq!(RetrieveTransactions::decode(&body, Version::CURRENT), Err(refused));
        }
    }

    #[test]
    fn dumps_round_trip_with_and_without_a_start() {
        let start = Some(StartingPoint { item: b"10/A", kind: 2 });
        let mut out = vec![];
        for request in
            [DumpHandles { receiver: RECEIVER, start: None }, DumpHandles { receiver: RECEIVER, start }]
        {
            out.clear();
            request.encode(&mut out);
            assert_eq!(DumpHandles::decode(&out), Ok(request));
        }
        refuses_every_truncation(&out, &[9], |bytes| DumpHandles::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| DumpHandles::decode(bytes).map(|_| ()));
    }

    #[test]
    fn small_answers_round_trip() {
        let mut out = vec![];
        TransactionsFollow { keep_alive: true }.encode(&mut out);
        assert_eq!(TransactionsFollow::decode(&out), Ok(TransactionsFollow { keep_alive: true }));
        assert_eq!(TransactionsFollow::decode(&[0xfe]), Ok(TransactionsFollow { keep_alive: false }));
        assert!(TransactionsFollow::decode(b"").is_err());
        out.clear();
        NextTransaction { txn_id: -1 }.encode(&mut out);
        assert_eq!(NextTransaction::decode(&out), Ok(NextTransaction { txn_id: -1 }));
        refuses_every_truncation(&out, &[], |bytes| NextTransaction::decode(bytes).map(|_| ()));
    }
}
