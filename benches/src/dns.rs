//! The part of DNS that a comparison needs: queries, and a server that answers them without a
//! lookup.

use handle_net::Datapath;

use crate::serve::TIMEOUT_MAX;

/// Length of the header of a query or answer.
const HEAD_LEN: usize = 12;
/// Length of a record without its data, with a compressed name.
const RECORD_LEN: usize = 12;
/// Length of a question without its name.
const QUESTION_LEN: usize = 4;

/// Encodes a query for the TXT records of the name with these labels.
#[must_use]
pub fn query(labels: &[&str], id: u16) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    // Flags without recursion; one question.
    query.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in labels {
        query.push(u8::try_from(label.len()).unwrap_or(0));
        query.extend_from_slice(label.as_bytes());
    }
    query.extend([0, 0, 16, 0, 1]);
    query
}

/// Encodes the same query with the request to ask other servers.
#[must_use]
pub fn recursive_query(labels: &[&str], id: u16) -> Vec<u8> {
    let mut query = query(labels, id);
    query[2] |= 1;
    query
}

/// Returns whether this is an answer without error that has one record.
#[must_use]
pub fn is_success(answer: &[u8]) -> bool {
    matches!(answer, [_, _, flags, code, _, _, 0, 1, ..] if flags & 0x80 != 0 && code & 15 == 0)
}

/// A server that answers every query with one TXT record, without a lookup.
#[derive(Debug)]
pub struct DnsResponder {
    answer_len: usize,
}

impl DnsResponder {
    /// Creates a server whose answers have `answer_len` bytes, or more if the query needs them.
    #[must_use]
    pub const fn of_len(answer_len: usize) -> Self {
        Self { answer_len }
    }

    /// Answers a batch.
    ///
    /// # Errors
    /// When the datapath fails.
    pub fn turn(&mut self, path: &mut dyn Datapath) -> std::io::Result<()> {
        let batch = path.wait(TIMEOUT_MAX)?;
        if batch.inbox.is_empty() {
            return Ok(());
        }
        for datagram in batch.inbox.iter() {
            for query in datagram.segments() {
                let query = &query[..question_end(query)];
                let len = self.answer_len.max(query.len() + RECORD_LEN + 1);
                // The outbox has capacity for more than a batch.
                let _ = batch.outbox.push(datagram.peer, len, |buffer| answer(query, buffer));
            }
        }
        path.flush().map(drop)
    }
}

/// The end of the question of `query`, without records that follow it, as of EDNS.
fn question_end(query: &[u8]) -> usize {
    let mut at = HEAD_LEN;
    while let Some(&label_len) = query.get(at) {
        at += 1 + usize::from(label_len);
        if label_len == 0 {
            break;
        }
    }
    (at + QUESTION_LEN).min(query.len())
}

/// Fills `buffer` with the answer to `query`, which ends with its question. Input too short for a
/// query is copied unchanged.
fn answer(query: &[u8], buffer: &mut [u8]) -> usize {
    let (question, record) = buffer.split_at_mut(query.len());
    question.copy_from_slice(query);
    if query.len() < HEAD_LEN + 1 + QUESTION_LEN {
        return query.len();
    }
    // An authoritative answer without error; one record, and none besides.
    question[2] = 0x84 | query[2] & 1;
    question[3] = 0;
    question[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    let data_len = record.len() - RECORD_LEN;
    // Pointer to the name of the question, TXT, IN, a TTL of one day.
    record[..10].copy_from_slice(&[0xc0, 0x0c, 0, 16, 0, 1, 0, 1, 0x51, 0x80]);
    record[10..RECORD_LEN].copy_from_slice(&u16::try_from(data_len).unwrap_or(0).to_be_bytes());
    let data = &mut record[RECORD_LEN..];
    for string in data.chunks_mut(256) {
        string.fill(b'x');
        string[0] = u8::try_from(string.len() - 1).unwrap_or(0);
    }
    buffer.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_their_length_and_the_id_of_the_question() {
        let query = query(&["000000001", "bench"], 0x1234);
        assert_eq!(query.len(), HEAD_LEN + 10 + 6 + 1 + QUESTION_LEN);
        for len in [180, 512] {
            let mut buffer = vec![0; len];
            assert_eq!(answer(&query, &mut buffer), len);
            assert!(is_success(&buffer) && !is_success(&query));
            assert_eq!((&buffer[..2], &buffer[HEAD_LEN..query.len()]), (&query[..2], &query[HEAD_LEN..]));
            // The strings of the record end where it does.
            let data_len =
                usize::from(u16::from_be_bytes([buffer[query.len() + 10], buffer[query.len() + 11]]));
            let mut data = &buffer[query.len() + RECORD_LEN..];
            assert_eq!(data.len(), data_len);
            while let [string_len, rest @ ..] = data {
                data = &rest[usize::from(*string_len)..];
            }
        }
        assert_eq!(answer(b"noise", &mut [0; 18]), 5);
        assert_eq!(question_end(b"noise"), 5);
    }

    #[test]
    fn records_after_the_question_are_not_answered() {
        let mut query = recursive_query(&["a", "bench"], 7);
        let len = query.len();
        assert_eq!((question_end(&query), query[2]), (len, 1));
        query[11] = 1;
        query.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(question_end(&query), len);
        let mut buffer = [0; 180];
        assert_eq!(answer(&query[..len], &mut buffer), 180);
        assert_eq!((&buffer[6..12], buffer[len]), (&[0, 1, 0, 0, 0, 0][..], 0xc0));
        for cut in 0..len {
            assert!(question_end(&query[..cut]) <= cut);
        }
    }
}
