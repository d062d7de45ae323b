use super::*;
use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;

const PREFACE: &[u8; PREFACE_LEN] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// A block of fields with this path as a literal: `first` has its kind and name.
fn block(first: &[u8], path: &[u8]) -> Vec<u8> {
    let mut block = vec![0x82, 0x3f, 0x01, 0x87, 0x41, 1, b'x'];
    block.extend_from_slice(first);
    put_integer(path.len(), &mut block);
    block.extend_from_slice(path);
    // Another field.
    block.extend_from_slice(&[0x10, 1, b'a', 2, b'<', b'>']);
    block
}

/// What is read of `bytes`, which arrive in parts of at most `len` bytes.
fn read(bytes: &[u8], len: usize) -> Vec<u8> {
    struct Parts<'b>(&'b [u8], usize);
    impl AsyncRead for Parts<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let len = self.1.min(self.0.len()).min(buffer.remaining());
            let (part, rest) = self.0.split_at(len);
            buffer.put_slice(part);
            self.0 = rest;
            Poll::Ready(Ok(()))
        }
    }
    let mut stream = EncodedTargets::new(Parts(bytes, len));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut read = Vec::new();
    runtime.block_on(stream.read_to_end(&mut read)).unwrap();
    read
}

#[test]
fn paths_that_are_not_added_to_the_table_are_encoded() {
    let (raw, sent) = (b"/10.1/a<b>\xe9", b"/10.1/a%3Cb%3E%E9");
    for first in [&[0x04][..], &[0x14], &[0x05], &[0x00, 5, b':', b'p', b'a', b't', b'h']] {
        for (flags, before, after) in [
            (4, &b""[..], &b""[..]),
            (0x2c, &[2, 0, 0, 0, 0, 9], &[0, 0]),
            (0x24, &[0, 0, 0, 0, 9], b""),
            (0, b"", b""),
        ] {
            let all = |path: &[u8]| {
                let headers = frame(HEADERS, flags, &[before, &block(first, path), after].concat());
                [&PREFACE[..], &frame(4, 0, b""), &headers, &frame(0, 1, b"a<b"), &headers].concat()
            };
            for len in [1, 5, 30, 10_000] {
                assert_eq!(read(&all(raw), len), all(sent), "{first:?} {flags} {len}");
                assert_eq!(read(&all(sent), len), all(sent), "{first:?} {flags} {len}");
            }
        }
    }
    let added = [&PREFACE[..], &frame(HEADERS, 4, &block(&[0x44], raw))].concat();
    assert_eq!(read(&added, 100), added, "its length matters to the table");
}

#[test]
fn a_compressed_path_is_encoded() {
    // RFC 7541 section C.4.1.
    let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    assert_eq!(huffman::decode(&example).as_deref(), Some(&b"www.example.com"[..]));
    assert_eq!(huffman::decode(&[0xff; 4]), None, "a code that is not one");
    assert_eq!(huffman::decode(&[0x1f, 0xff]), None, "too much padding");
    // `/<`: 011000, 111111111111100, and padding.
    let compressed = [0x04, 0x83, 0b0110_0011, 0b1111_1111, 0b1110_0111];
    let expected = [&[0x04, 4][..], b"/%3C"].concat();
    assert_eq!(with_encoded_path(&frame(HEADERS, 4, &compressed)), Some(frame(HEADERS, 4, &expected)));
}

#[test]
fn a_frame_that_would_be_too_long_stays() {
    let raw = [PREFACE, &frame(HEADERS, 4, &block(&[4], &[b'<'; 6000]))[..]].concat();
    assert_eq!(read(&raw, 4000), raw);
    let long = [PREFACE, &frame(HEADERS, 4, &[b'<'; PAYLOAD_LEN_MAX + 1])[..]].concat();
    assert_eq!(read(&long, 4000), long);
}

proptest! {
    #[test]
    fn other_bytes_pass_as_they_are(
        frames in prop::collection::vec((0..10_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        rest in prop::collection::vec(any::<u8>(), 0..20),
        len in 1..50_usize,
    ) {
        let mut all = PREFACE.to_vec();
        for (kind, flags, payload) in &frames {
            let sent = frame(*kind, *flags, payload);
            // A random payload is no block with a path, or it stays whole in every split.
            all.extend_from_slice(&sent);
        }
        all.extend_from_slice(&rest);
        prop_assert_eq!(read(&all, len), read(&all, usize::MAX));
        if frames.iter().all(|(kind, ..)| *kind != HEADERS) && rest.len() < HEADER_LEN {
            prop_assert_eq!(read(&all, len), all);
        }
    }
}
