//! An outgoing answer: a message, and the pages of a listing that follow it.

use super::AdminService;
use super::reply::ReplyTarget;
use crate::operation::{Lister, OperationAnswer};
use crate::replication::stream::ReplicationStream;
use handle_daemon::clock::now_unix_s;
use handle_store::StoreSnapshot;
use std::sync::Arc;

/// An outgoing answer.
#[derive(Debug)]
pub struct ReplyMessages {
    /// The first message; empty if nothing is sent.
    pub first: Vec<u8>,
    /// The pages that follow it.
    pub rest: Option<ListPages>,
    /// The stream that follows the messages and ends the connection.
    pub stream: Option<Box<ReplicationStream>>,
    /// Whether the client wants to keep the connection.
    pub keeps_connection: bool,
}

impl ReplyMessages {
    /// The last message of a connection; empty if nothing is sent.
    pub(super) const fn last(message: Vec<u8>) -> Self {
        Self { first: message, rest: None, stream: None, keeps_connection: false }
    }
}

/// The pages of a listing that have not been sent yet.
#[derive(Debug)]
pub struct ListPages {
    pub(super) service: Arc<AdminService>,
    pub(super) snapshot: Arc<StoreSnapshot>,
    pub(super) lister: Lister,
    pub(super) to: ReplyTarget,
    pub(super) has_more: bool,
}

impl ListPages {
    /// Whether there is a next message.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    /// The next message; `None` after the last one. Reads the store.
    pub fn next_page(&mut self) -> Option<Vec<u8>> {
        if !self.has_more {
            return None;
        }
        let service = &self.service;
        let (names, has_more) = match self.lister.page(&self.snapshot) {
            Ok(page) => page,
            Err(error) => {
                self.has_more = false;
                let answer = OperationAnswer::Refused(service.store_refusal(&error));
                return Some(service.sealer.answer(
                    &self.to,
                    &service.decision.site(),
                    &answer,
                    now_unix_s(),
                ));
            }
        };
        self.has_more = has_more;
        Some(service.sealer.page(&self.to, &service.decision.site(), &names, has_more, now_unix_s()))
    }
}
