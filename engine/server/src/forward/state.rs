//! The state of a job while it is forwarded.

use super::permits::ForwardPermit;
use handle_daemon::sessions::forward::ForwardedRequest;
use std::os::unix::net::UnixStream;
use zeroize::Zeroizing;

/// The state of a job while it is forwarded.
#[derive(Debug)]
pub(crate) struct ForwardState {
    pub(super) permit: ForwardPermit,
    /// The progress of the request: the frame to send, or the connection of a listing from its
    /// first part on.
    pub(super) stage: ForwardStage,
    /// The unsigned answer that is used when `handle-admin` gives none.
    pub(super) busy: Vec<u8>,
    /// Whether `busy` is to be signed.
    pub(super) signs: bool,
}

#[derive(Debug)]
pub(super) enum ForwardStage {
    /// This frame is to be sent.
    Request(Zeroizing<Vec<u8>>),
    /// A part of a listing arrived over this connection, and more will follow.
    Listing(UnixStream),
    /// The answer is complete.
    Over,
}

impl ForwardState {
    /// Creates the state of `request` in its `permit`. `busy` is the answer when there is no other,
    /// and `signs` says whether it is to be signed.
    pub(crate) fn new(
        permit: ForwardPermit,
        request: &ForwardedRequest<'_>,
        busy: Vec<u8>,
        signs: bool,
    ) -> Box<Self> {
        let mut frame = Zeroizing::new(Vec::with_capacity(4 + request.expected_len()));
        frame.extend_from_slice(&[0; 4]);
        request.encode(&mut frame);
        let len = u32::try_from(frame.len() - 4).expect("two messages are below 4 GiB");
        frame[..4].copy_from_slice(&len.to_be_bytes());
        Box::new(Self { permit, stage: ForwardStage::Request(frame), busy, signs })
    }

    /// Whether more parts of the answer follow.
    pub(crate) const fn has_more(&self) -> bool {
        matches!(self.stage, ForwardStage::Listing(_))
    }
}
