//! As much of DNS as a comparison takes: questions, and a server that answers every one of them at once.

use handle_net::Datapath;

use crate::serve::PATIENCE_MAX;

/// Bytes of a query, and of an answer, in front of the first name.
const HEAD_LEN: usize = 12;
/// Bytes of a record with a name that points to the question, without its data.
const RECORD_LEN: usize = 12;
/// Bytes of a question after its name.
const QUESTION_LEN: usize = 4;

/// A question for the TXT records of a name of these labels.
#[must_use]
pub fn query(labels: &[&str], id: u16) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    // No recursion; one question.
    query.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in labels {
        query.push(u8::try_from(label.len()).unwrap_or(0));
        query.extend_from_slice(label.as_bytes());
    }
    query.extend([0, 0, 16, 0, 1]);
    query
}

/// An answer without error, with one record.
#[must_use]
pub fn is_success(answer: &[u8]) -> bool {
    matches!(answer, [_, _, flags, code, _, _, 0, 1, ..] if flags & 0x80 != 0 && code & 15 == 0)
}

/// A server that answers every question with one TXT record, without looking up anything.
#[derive(Debug)]
pub struct DnsResponder {
    answer_len: usize,
}

impl DnsResponder {
    /// Answers of so many bytes, or more where the question needs them.
    #[must_use]
    pub const fn of_len(answer_len: usize) -> Self {
        Self { answer_len }
    }

    /// Answers a batch.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn turn(&mut self, path: &mut dyn Datapath) -> std::io::Result<()> {
        let batch = path.wait(PATIENCE_MAX)?;
        if batch.inbox.is_empty() {
            return Ok(());
        }
        for datagram in batch.inbox.iter() {
            for query in datagram.segments() {
                let len = self.answer_len.max(query.len() + RECORD_LEN + 1);
                // The outbox has room for more than a batch.
                let _ = batch.outbox.push(datagram.peer, len, |room| answer(query, room));
            }
        }
        path.flush().map(drop)
    }
}

/// Fills `room` with the answer to `query`; what is too short to be a query is given back as it is.
fn answer(query: &[u8], room: &mut [u8]) -> usize {
    let (question, record) = room.split_at_mut(query.len());
    question.copy_from_slice(query);
    if query.len() < HEAD_LEN + 1 + QUESTION_LEN {
        return query.len();
    }
    // An answer of who is responsible, without error; one record.
    question[2] = 0x84 | query[2] & 1;
    question[3] = 0;
    question[6..8].copy_from_slice(&[0, 1]);
    let data_len = record.len() - RECORD_LEN;
    // The name of the question, TXT, the Internet, for a day.
    record[..10].copy_from_slice(&[0xc0, 0x0c, 0, 16, 0, 1, 0, 1, 0x51, 0x80]);
    record[10..RECORD_LEN].copy_from_slice(&u16::try_from(data_len).unwrap_or(0).to_be_bytes());
    let data = &mut record[RECORD_LEN..];
    for string in data.chunks_mut(256) {
        string.fill(b'x');
        string[0] = u8::try_from(string.len() - 1).unwrap_or(0);
    }
    room.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_their_length_and_the_id_of_the_question() {
        let query = query(&["000000001", "bench"], 0x1234);
        assert_eq!(query.len(), HEAD_LEN + 10 + 6 + 1 + QUESTION_LEN);
        for len in [180, 512] {
            let mut room = vec![0; len];
            assert_eq!(answer(&query, &mut room), len);
            assert!(is_success(&room) && !is_success(&query));
            assert_eq!((&room[..2], &room[HEAD_LEN..query.len()]), (&query[..2], &query[HEAD_LEN..]));
            // The strings of the record end where it does.
            let data_len = usize::from(u16::from_be_bytes([room[query.len() + 10], room[query.len() + 11]]));
            let mut data = &room[query.len() + RECORD_LEN..];
            assert_eq!(data.len(), data_len);
            while let [string_len, rest @ ..] = data {
                data = &rest[usize::from(*string_len)..];
            }
        }
        assert_eq!(answer(b"noise", &mut [0; 18]), 5);
    }
}
