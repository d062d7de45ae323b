//! Streams of transactions and records, as a mirror reads them.

use handle_client::replication::{
    StreamContent, StreamError, StreamEvent, StreamLimits, StreamReader, StreamTransport,
};

/// Limit on an item that short inputs can exceed.
const ITEM_LEN_MAX: usize = 4096;

/// A stream that was read: the items encoded again, whether it is complete, and the error.
#[derive(Debug, PartialEq, Eq)]
struct ReadStream {
    items: Vec<Vec<u8>>,
    is_complete: bool,
    error: Option<StreamError>,
}

fn read(bytes: &[u8], content: StreamContent, step: usize) -> ReadStream {
    let limits = StreamLimits { item_len_max: ITEM_LEN_MAX };
    let mut reader = StreamReader::new(content, StreamTransport::Verified, None, limits);
    let mut items = Vec::new();
    for piece in bytes.chunks(step) {
        reader.feed(piece);
        loop {
            match reader.next_event() {
                Ok(Some(event)) => items.push(encode(&event)),
                Ok(None) => break,
                Err(error) => {
                    return ReadStream { items, is_complete: reader.is_complete(), error: Some(error) };
                }
            }
        }
    }
    ReadStream { items, is_complete: reader.is_complete(), error: None }
}

fn encode(event: &StreamEvent<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match event {
        StreamEvent::BeginTls => {}
        StreamEvent::Header(header) => header.encode(&mut bytes),
        StreamEvent::Transaction(item) => item.encode(&mut bytes),
        StreamEvent::Dump(item) => item.encode(&mut bytes),
    }
    bytes
}

/// A stream for a mirror: the first byte says whether it is a dump, the rest is the stream. However
/// it is cut, the same items result, and they encode to the bytes that they were read from.
pub fn replication_stream(bytes: &[u8]) {
    let Some((&kind, stream)) = bytes.split_first() else { return };
    let content = if kind & 1 == 1 { StreamContent::Dump } else { StreamContent::Transactions };
    let whole = read(stream, content, stream.len().max(1));
    for step in [1, 5, 64] {
        let cut = read(stream, content, step);
        // What begins TLS has to be the last that arrives before it, so the cut matters there, as
        // it does for errors in what follows a complete stream.
        let is_tls = stream.starts_with(&0x544C_5300_u32.to_be_bytes());
        assert!(is_tls || cut.items == whole.items, "{step}: {cut:?}, {whole:?}");
        assert!(
            is_tls || cut.error == whole.error || is_about_length(&cut, &whole),
            "{step}: {cut:?}, {whole:?}"
        );
    }
    if stream.starts_with(&u32::MAX.to_be_bytes()) {
        let header_len = if content == StreamContent::Dump { 8 } else { 4 };
        let read: Vec<u8> = whole.items.concat();
        assert!(read.is_empty() || stream[header_len..].starts_with(&read), "{whole:?}");
    }
}

/// Whether one of two readings has found an item too long of which the other has not seen enough.
fn is_about_length(cut: &ReadStream, whole: &ReadStream) -> bool {
    [cut, whole].iter().any(|it| it.error == Some(StreamError::TooLong))
}
