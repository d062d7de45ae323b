use super::*;
use handle_auth::{PrivateKey, generate};
use handle_proto::Value;
use handle_proto::wire::put;
use handle_proto::wire::replication_stream::{
    DIGEST_NAME, StreamValues, TransactionAction, TransactionFormat, TransactionStatus,
};
use std::sync::OnceLock;

fn key() -> &'static PrivateKey {
    static KEY: OnceLock<PrivateKey> = OnceLock::new();
    KEY.get_or_init(|| PrivateKey::from_record(generate::rsa(2048).unwrap().as_bytes()).unwrap())
}

/// The bytes of a stream, made block by block.
struct TestStream {
    bytes: Vec<u8>,
    is_signed: bool,
}

impl TestStream {
    fn new(protection: StreamProtection) -> Self {
        let mut bytes = protection.to_bytes().to_vec();
        let is_signed = protection == StreamProtection::Signed;
        if is_signed {
            put::string(&mut bytes, DIGEST_NAME);
        }
        Self { bytes, is_signed }
    }

    fn block(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        if self.is_signed {
            let signature = key().sign(DigestAlgorithm::SHA1, &[&self.bytes[start..]]).unwrap();
            put::string(&mut self.bytes, &signature);
        }
    }
}

fn transactions(protection: StreamProtection) -> Vec<u8> {
    let (mut stream, mut storage) = (TestStream::new(protection), vec![]);
    let values = StreamValues::build([Value::new(1, b"URL", b"http://a")], &mut storage);
    let header =
        TransactionsHeader { format: TransactionFormat::OneSource, status: TransactionStatus::Sending };
    stream.block(|out| header.encode(out));
    for id in 1..4 {
        let action = TransactionAction::Update(values);
        let item = TransactionItem::Transaction { id, handle: b"10.1/A", action, unix_ms: id };
        stream.block(|out| item.encode(out));
    }
    stream.block(|out| TransactionItem::End { unix_ms: Some(9) }.encode(out));
    stream.bytes
}

fn dump(protection: StreamProtection) -> Vec<u8> {
    let mut stream = TestStream::new(protection);
    stream.block(|out| put::u32(out, DUMP_FORMAT));
    stream.block(|out| DumpItem::Source { unix_ms: 1, txn_id: 2 }.encode(out));
    stream.block(|out| DumpItem::Homed(b"0.NA/10.1").encode(out));
    DumpItem::Done.encode(&mut stream.bytes);
    stream.bytes
}

/// Reads a stream in pieces of `step` bytes; returns the number of events, and whether it ended.
fn read_stream(
    bytes: &[u8],
    content: StreamContent,
    transport: StreamTransport,
    step: usize,
) -> Result<(usize, bool), StreamError> {
    let mut reader =
        StreamReader::new(content, transport, Some(key().public().clone()), StreamLimits::default());
    let mut count = 0;
    for piece in bytes.chunks(step) {
        reader.feed(piece);
        while reader.next_event()?.is_some() {
            count += 1;
        }
    }
    Ok((count, reader.is_complete()))
}

#[test]
fn streams_are_read_however_their_bytes_are_split() {
    use StreamTransport::{Clear, Verified};
    let cases = [
        (transactions(StreamProtection::Signed), StreamContent::Transactions, Clear, 5),
        (transactions(StreamProtection::Transport), StreamContent::Transactions, Verified, 5),
        (dump(StreamProtection::Signed), StreamContent::Dump, Clear, 3),
        (dump(StreamProtection::Transport), StreamContent::Dump, Verified, 3),
    ];
    for (bytes, content, transport, events) in cases {
        for step in [1, 7, 100, bytes.len()] {
            assert_eq!(
                read_stream(&bytes, content, transport, step),
                Ok((events, true)),
                "{content:?} {step}"
            );
        }
        for len in 0..bytes.len() {
            let cut = read_stream(&bytes[..len], content, transport, 64);
            assert!(matches!(cut, Ok((_, false))), "{content:?} cut to {len}: {cut:?}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(read_stream(&longer, content, transport, 64), Err(StreamError::AfterEnd));
    }
}

#[test]
fn a_changed_byte_of_a_signed_stream_is_detected() {
    let bytes = transactions(StreamProtection::Signed);
    for at in (0..bytes.len()).step_by(3) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let read = read_stream(&changed, StreamContent::Transactions, StreamTransport::Clear, 4096);
        assert!(!matches!(read, Ok((_, true))), "byte {at}");
    }
    let other = PrivateKey::from_record(generate::rsa(2048).unwrap().as_bytes()).unwrap();
    let limits = StreamLimits::default();
    let (content, transport) = (StreamContent::Transactions, StreamTransport::Clear);
    for (key, error) in [(Some(other.public().clone()), StreamError::Signature), (None, StreamError::NoKey)] {
        let mut reader = StreamReader::new(content, transport, key, limits);
        reader.feed(&bytes);
        assert_eq!(reader.next_event(), Err(error));
    }
}

#[test]
fn an_unprotected_stream_is_refused() {
    let bytes = transactions(StreamProtection::Transport);
    let read = read_stream(&bytes, StreamContent::Transactions, StreamTransport::Clear, 4096);
    assert_eq!(read, Err(StreamError::Unprotected));
    let unknown = read_stream(&[0, 0, 0, 1], StreamContent::Dump, StreamTransport::Verified, 4096);
    assert_eq!(unknown, Err(StreamError::UnknownProtection(1)));
}

#[test]
fn a_stream_over_tls_is_read_after_the_handshake() {
    let bytes = dump(StreamProtection::Tls);
    let limits = StreamLimits::default();
    let mut reader = StreamReader::new(StreamContent::Dump, StreamTransport::Clear, None, limits);
    reader.feed(&bytes[..4]);
    assert_eq!(reader.next_event(), Ok(Some(StreamEvent::BeginTls)));
    assert_eq!(reader.next_event(), Ok(None));
    reader.feed(&bytes[4..]);
    assert!(matches!(reader.next_event(), Ok(Some(StreamEvent::Dump(DumpItem::Source { .. })))));
    let mut early = StreamReader::new(StreamContent::Dump, StreamTransport::Clear, None, limits);
    early.feed(&bytes);
    assert_eq!(early.next_event(), Err(StreamError::BeforeTls));
}

#[test]
fn an_item_beyond_the_limit_is_refused_before_it_is_complete() {
    let mut bytes = StreamProtection::Transport.to_bytes().to_vec();
    put::u32(&mut bytes, DUMP_FORMAT);
    bytes.push(5);
    put::u32(&mut bytes, 1 << 20);
    bytes.resize(1000, 0);
    for (item_len_max, expected) in [(2000, Ok(None)), (900, Err(StreamError::TooLong))] {
        let limits = StreamLimits { item_len_max };
        let mut reader = StreamReader::new(StreamContent::Dump, StreamTransport::Verified, None, limits);
        reader.feed(&bytes);
        assert_eq!(reader.next_event(), expected, "{item_len_max}");
    }
}

#[test]
fn a_record_that_is_too_long_is_named_and_does_not_end_the_stream() {
    const ITEM_LEN_MAX: usize = 10_000;
    let text = vec![b'x'; 30_000];
    for protection in [StreamProtection::Transport, StreamProtection::Signed] {
        let mut stream = TestStream::new(protection);
        let mut buffer = Vec::new();
        stream.block(|out| put::u32(out, DUMP_FORMAT));
        for name in [&b"10.1/A"[..], b"10.1/LONG", b"10.1/Z"] {
            let values = match name {
                b"10.1/LONG" => StreamValues::build(
                    [Value::new(1, b"URL", &text), Value::new(2, b"URL", b""), Value::new(3, b"URL", &text)],
                    &mut buffer,
                ),
                _ => StreamValues::build([Value::new(1, b"URL", b"x")], &mut buffer),
            };
            stream.block(|out| DumpItem::Handle { handle: name, values }.encode(out));
        }
        DumpItem::Done.encode(&mut stream.bytes);
        for step in [1, 7, 1000, 9999, 50_000, usize::MAX] {
            let limits = StreamLimits { item_len_max: ITEM_LEN_MAX };
            let key = Some(key().public().clone());
            let mut reader = StreamReader::new(StreamContent::Dump, StreamTransport::Verified, key, limits);
            let (mut names, mut ended) = (Vec::new(), Ok(()));
            'stream: for piece in stream.bytes.chunks(step.min(stream.bytes.len())) {
                reader.feed(piece);
                assert!(reader.buffer.len() <= ITEM_LEN_MAX + piece.len(), "{step}: {}", reader.buffer.len());
                loop {
                    match reader.next_event() {
                        Ok(Some(StreamEvent::Dump(DumpItem::Handle { handle, values }))) => {
                            names.push((handle.to_vec(), values.len(), values.fault().is_some()));
                        }
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(error) => {
                            ended = Err(error);
                            break 'stream;
                        }
                    }
                }
            }
            let named = |name: &[u8], count, is_left_out| (name.to_vec(), count, is_left_out);
            let all = [named(b"10.1/A", 1, false), named(b"10.1/LONG", 3, true), named(b"10.1/Z", 1, false)];
            // A whole item that is there is verified, whatever its length.
            match protection == StreamProtection::Transport || step > ITEM_LEN_MAX * 6 {
                true => {
                    assert_eq!((&*names, ended, reader.is_complete()), (&all[..], Ok(()), true), "{step}")
                }
                false => assert_eq!((&*names, ended), (&all[..1], Err(StreamError::TooLong)), "{step}"),
            }
        }
    }
}
