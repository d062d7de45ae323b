//! The sockets of `handle-admin` for callers over HTTP, and for changes of many records.

use handle_daemon::bulk::{BulkReply, BulkRequest, BulkResult, covered, put_frame};
use handle_daemon::callers::{CallerReply, CallerRequest, read_frame, write_frame};

/// A frame about a caller decodes to a value that encodes to a frame of the same value, and has the
/// same bytes unless it has an address, which may be written in several forms. A frame that is cut
/// or continued is another value or none.
///
/// Input: frames, each after its length in four bytes.
pub fn caller_socket(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(frame) = read_frame(&mut rest) {
        let mut written = Vec::new();
        write_frame(&mut written, &frame).expect("a frame that was read is not too long");
        assert_eq!((&written[4..], written.len()), (&frame[..], frame.len() + 4));
        if let Some(request) = CallerRequest::decode(&frame) {
            let again = request.encode();
            assert_eq!(CallerRequest::decode(&again), Some(request));
            let has_address = !matches!(request, CallerRequest::NonceStart | CallerRequest::End(_));
            assert!(has_address || again == frame, "{request:?}");
            for other in [&frame[..frame.len() - 1], &[&frame[..], b"x"].concat()] {
                assert_ne!(CallerRequest::decode(other), Some(request));
            }
        }
        if let Some(reply) = CallerReply::decode(&frame) {
            assert_eq!(reply.encode(), frame, "{reply:?}");
            assert_eq!(CallerReply::decode(&frame[..frame.len() - 1]), None);
        }
    }
}

/// A frame about changes decodes to a value that encodes to the same bytes; texts of results that
/// are not UTF-8 become so. A proof covers the whole of the first frame.
///
/// Input: a frame without its length.
pub fn bulk_socket(frame: &[u8]) {
    if let Some(request) = BulkRequest::decode(frame) {
        let mut again = Vec::new();
        put_frame(&mut again, |out| request.encode(out));
        assert_eq!(&again[4..], frame, "{request:?}");
        assert_eq!(again[..4], u32::try_from(frame.len()).expect("a short frame").to_be_bytes());
        if let (BulkRequest::Begin(_), [first, ..]) = (&request, frame) {
            let changed = [&[first ^ 1], &frame[1..]].concat();
            assert_ne!(covered(&changed)[..], covered(frame)[..]);
        }
    }
    let Some(reply) = BulkReply::decode(frame) else { return };
    let mut again = Vec::new();
    reply.encode(&mut again);
    assert_eq!(BulkReply::decode(&again).as_ref(), Some(&reply));
    if let BulkReply::Results(_, results) = &reply {
        // The kind of the frame and the position are before them.
        assert_eq!(BulkResult::decode_all(&again[17..]).as_ref(), Some(results));
        // Each result has three numbers: its own, its code and the length of its text.
        assert!(results.len() * 12 < frame.len());
    } else {
        assert_eq!(again, frame, "{reply:?}");
    }
}
