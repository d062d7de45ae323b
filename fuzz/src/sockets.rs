//! The local socket of `handle-admin`: its frames, and their contents by kind.

use handle_local::bulk::{BulkReply, BulkRequest, BulkResult, covered};
use handle_local::callers::{CallerReply, CallerRequest};
use handle_local::forward::{ForwardFrame, ForwardedAnswer};
use handle_local::frame::{self, FrameHeader};
use handle_local::kind::LocalKind;
use handle_local::relay::RelayedRequest;

/// What is read as a frame encodes to the bytes that were read, and no more of the input is looked
/// at; its content is no longer than its kind allows, however long its header says it is. Contents
/// decode to values that encode to the same bytes; an address of IPv4 in two forms is one address,
/// and texts of results that are not UTF-8 become so.
///
/// Input: frames, one after another.
pub fn local_socket(bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(header) = rest.first_chunk().and_then(|header| FrameHeader::decode(header).ok()) {
        let (kind, before) = (header.kind, rest);
        let len_max = kind.request_len_max();
        let Ok(content) = frame::read(&mut rest, kind, len_max) else {
            assert!(header.len > len_max || before.len() < FrameHeader::LEN + header.len);
            return;
        };
        assert!(content.len() == header.len && content.len() <= len_max);
        let again = frame::encode(kind, content.len(), |out| out.extend_from_slice(&content));
        assert_eq!(again[..], before[..before.len() - rest.len()]);
        match kind {
            LocalKind::Forward => forward_content(&content),
            LocalKind::Bulk => bulk_content(&content),
            LocalKind::Callers => caller_content(&content),
            LocalKind::Relay => relay_content(&content),
            LocalKind::Changes => {}
        }
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn forward_content(content: &[u8]) {
    if let Some(ForwardFrame::Request(request)) = ForwardFrame::decode(content) {
        let again = encoded(|out| request.encode(out));
        assert_eq!(again.len(), content.len(), "{request:?}");
        let Some(ForwardFrame::Request(decoded)) = ForwardFrame::decode(&again) else {
            panic!("{request:?}")
        };
        assert_eq!(encoded(|out| decoded.encode(out)), again, "{request:?}");
    }
    if let Some(answer) = ForwardedAnswer::decode(content) {
        assert_eq!(encoded(|out| answer.encode(out)), content, "{answer:?}");
    }
}

fn relay_content(content: &[u8]) {
    let Some(request) = RelayedRequest::decode(content) else { return };
    let again = encoded(|out| request.encode(out));
    assert_eq!((again.len(), RelayedRequest::decode(&again)), (content.len(), Some(request)));
}

/// What is cut or continued is another value or none.
fn caller_content(content: &[u8]) {
    if let Some(request) = CallerRequest::decode(content) {
        let again = request.encode();
        assert_eq!((again.len(), CallerRequest::decode(&again)), (content.len(), Some(request)));
        for other in [&content[..content.len() - 1], &[content, b"x"].concat()] {
            assert_ne!(CallerRequest::decode(other), Some(request));
        }
    }
    if let Some(reply) = CallerReply::decode(content) {
        assert_eq!(reply.encode()[..], *content, "{reply:?}");
        assert_eq!(CallerReply::decode(&content[..content.len() - 1]), None);
    }
}

/// A proof covers the whole of the first frame.
fn bulk_content(frame: &[u8]) {
    if let Some(request) = BulkRequest::decode(frame) {
        let again = encoded(|out| request.encode(out));
        assert_eq!((again.len(), BulkRequest::decode(&again).as_ref()), (frame.len(), Some(&request)));
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
