//! The state of a job while it is forwarded.

use super::permits::ForwardPermit;
use handle_local::client::LocalClient;
use handle_local::forward::ForwardedRequest;
use handle_local::frame;
use handle_local::kind::LocalKind;
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
    Listing(LocalClient),
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
        let frame =
            frame::encode(LocalKind::Forward, request.expected_len(), |content| request.encode(content));
        Box::new(Self { permit, stage: ForwardStage::Request(frame), busy, signs })
    }

    /// Whether more parts of the answer follow.
    pub(crate) const fn has_more(&self) -> bool {
        matches!(self.stage, ForwardStage::Listing(_))
    }
}
