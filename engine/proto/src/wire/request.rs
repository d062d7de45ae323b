//! Every request, by its operation code.

use super::admin::{HandleBody, HandleIndexes, HandleValues};
use super::auth::{ChallengeAnswer, VerificationRequest};
use super::query::Query;
use super::replication::{DumpHandles, RetrieveTransactions};
use super::session::{ExchangedKey, SessionSetup};
use crate::code::{OpCode, Version};
use crate::error::DecodeError;
use alloc::vec::Vec;

/// A request, by its operation code and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Query for handle values.
    Resolution(Query<'a>),
    /// Query for the site record of the server.
    GetSiteInfo(HandleBody<'a>),
    /// Create a handle.
    CreateHandle(HandleValues<'a>),
    /// Delete a handle.
    DeleteHandle(HandleBody<'a>),
    /// Add values to a handle.
    AddValue(HandleValues<'a>),
    /// Remove values from a handle.
    RemoveValue(HandleIndexes<'a>),
    /// Replace values of a handle.
    ModifyValue(HandleValues<'a>),
    /// List the handles under a prefix.
    ListHandles(HandleBody<'a>),
    /// Answer to a challenge.
    AnswerChallenge(ChallengeAnswer<'a>),
    /// Verify an answer to a challenge for another server.
    VerifyChallenge(VerificationRequest<'a>),
    /// Home a prefix at the server.
    HomeNa(HandleBody<'a>),
    /// Unhome a prefix.
    UnhomeNa(HandleBody<'a>),
    /// List the prefixes that are homed at the server.
    ListHomedNas(HandleBody<'a>),
    /// Set up a session.
    SessionSetup(SessionSetup<'a>),
    /// End a session.
    SessionTerminate(HandleBody<'a>),
    /// Transfer a session key.
    SessionExchangeKey(ExchangedKey<'a>),
    /// Ask for the next transaction number.
    GetNextTxnId(HandleBody<'a>),
    /// Replicate transactions.
    RetrieveTxnLog(RetrieveTransactions<'a>),
    /// Replicate all records.
    DumpHandles(DumpHandles<'a>),
    /// Take a backup.
    BackupServer(HandleBody<'a>),
    /// An unknown operation; its body is kept unchanged.
    Unknown(OpCode, &'a [u8]),
}

impl<'a> Request<'a> {
    /// Decodes the body of a request written in `version`.
    ///
    /// # Errors
    /// When the body does not have the form of the operation. The body of an unknown operation is
    /// never refused.
    pub fn decode(op_code: OpCode, version: Version, body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(match op_code {
            OpCode::RESOLUTION => Self::Resolution(Query::decode(body)?),
            OpCode::GET_SITE_INFO => Self::GetSiteInfo(HandleBody::decode(body)?),
            OpCode::CREATE_HANDLE => Self::CreateHandle(HandleValues::decode(body)?),
            OpCode::DELETE_HANDLE => Self::DeleteHandle(HandleBody::decode(body)?),
            OpCode::ADD_VALUE => Self::AddValue(HandleValues::decode(body)?),
            OpCode::REMOVE_VALUE => Self::RemoveValue(HandleIndexes::decode(body)?),
            OpCode::MODIFY_VALUE => Self::ModifyValue(HandleValues::decode(body)?),
            OpCode::LIST_HANDLES => Self::ListHandles(HandleBody::decode(body)?),
            OpCode::RESPONSE_TO_CHALLENGE => Self::AnswerChallenge(ChallengeAnswer::decode(body)?),
            OpCode::VERIFY_CHALLENGE => Self::VerifyChallenge(VerificationRequest::decode(body)?),
            OpCode::HOME_NA => Self::HomeNa(HandleBody::decode(body)?),
            OpCode::UNHOME_NA => Self::UnhomeNa(HandleBody::decode(body)?),
            OpCode::LIST_HOMED_NAS => Self::ListHomedNas(HandleBody::decode(body)?),
            OpCode::SESSION_SETUP => Self::SessionSetup(SessionSetup::decode(body)?),
            OpCode::SESSION_TERMINATE => Self::SessionTerminate(HandleBody::decode(body)?),
            OpCode::SESSION_EXCHANGE_KEY => Self::SessionExchangeKey(ExchangedKey::decode(body)?),
            OpCode::GET_NEXT_TXN_ID => Self::GetNextTxnId(HandleBody::decode(body)?),
            OpCode::RETRIEVE_TXN_LOG => Self::RetrieveTxnLog(RetrieveTransactions::decode(body, version)?),
            OpCode::DUMP_HANDLES => Self::DumpHandles(DumpHandles::decode(body)?),
            OpCode::BACKUP_SERVER => Self::BackupServer(HandleBody::decode(body)?),
            unknown => Self::Unknown(unknown, body),
        })
    }

    /// The operation code.
    #[must_use]
    pub const fn op_code(&self) -> OpCode {
        match self {
            Self::Resolution(_) => OpCode::RESOLUTION,
            Self::GetSiteInfo(_) => OpCode::GET_SITE_INFO,
            Self::CreateHandle(_) => OpCode::CREATE_HANDLE,
            Self::DeleteHandle(_) => OpCode::DELETE_HANDLE,
            Self::AddValue(_) => OpCode::ADD_VALUE,
            Self::RemoveValue(_) => OpCode::REMOVE_VALUE,
            Self::ModifyValue(_) => OpCode::MODIFY_VALUE,
            Self::ListHandles(_) => OpCode::LIST_HANDLES,
            Self::AnswerChallenge(_) => OpCode::RESPONSE_TO_CHALLENGE,
            Self::VerifyChallenge(_) => OpCode::VERIFY_CHALLENGE,
            Self::HomeNa(_) => OpCode::HOME_NA,
            Self::UnhomeNa(_) => OpCode::UNHOME_NA,
            Self::ListHomedNas(_) => OpCode::LIST_HOMED_NAS,
            Self::SessionSetup(_) => OpCode::SESSION_SETUP,
            Self::SessionTerminate(_) => OpCode::SESSION_TERMINATE,
            Self::SessionExchangeKey(_) => OpCode::SESSION_EXCHANGE_KEY,
            Self::GetNextTxnId(_) => OpCode::GET_NEXT_TXN_ID,
            Self::RetrieveTxnLog(_) => OpCode::RETRIEVE_TXN_LOG,
            Self::DumpHandles(_) => OpCode::DUMP_HANDLES,
            Self::BackupServer(_) => OpCode::BACKUP_SERVER,
            Self::Unknown(op_code, _) => *op_code,
        }
    }

    /// The handle of the request, which determines the server of a site.
    #[must_use]
    pub const fn handle(&self) -> Option<&'a [u8]> {
        match self {
            Self::Resolution(body) => Some(body.handle),
            Self::CreateHandle(body) | Self::AddValue(body) | Self::ModifyValue(body) => Some(body.handle),
            Self::RemoveValue(body) => Some(body.handle),
            Self::GetSiteInfo(body)
            | Self::DeleteHandle(body)
            | Self::ListHandles(body)
            | Self::HomeNa(body)
            | Self::UnhomeNa(body)
            | Self::ListHomedNas(body)
            | Self::SessionTerminate(body)
            | Self::GetNextTxnId(body)
            | Self::BackupServer(body) => Some(body.handle),
            Self::VerifyChallenge(body) => Some(body.identity.handle),
            Self::AnswerChallenge(_)
            | Self::SessionSetup(_)
            | Self::SessionExchangeKey(_)
            | Self::RetrieveTxnLog(_)
            | Self::DumpHandles(_)
            | Self::Unknown(..) => None,
        }
    }

    /// Appends the body as written in `version` to `out`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Self::Resolution(body) => body.encode(out),
            Self::CreateHandle(body) | Self::AddValue(body) | Self::ModifyValue(body) => body.encode(out),
            Self::RemoveValue(body) => body.encode(out),
            Self::GetSiteInfo(body)
            | Self::DeleteHandle(body)
            | Self::ListHandles(body)
            | Self::HomeNa(body)
            | Self::UnhomeNa(body)
            | Self::ListHomedNas(body)
            | Self::SessionTerminate(body)
            | Self::GetNextTxnId(body)
            | Self::BackupServer(body) => body.encode(out),
            Self::AnswerChallenge(body) => body.encode(out),
            Self::VerifyChallenge(body) => body.encode(out),
            Self::SessionSetup(body) => body.encode(out),
            Self::SessionExchangeKey(body) => body.encode(out),
            Self::RetrieveTxnLog(body) => body.encode(version, out),
            Self::DumpHandles(body) => body.encode(out),
            Self::Unknown(_, body) => out.extend_from_slice(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        /// Decoded bytes encode to bytes that decode to the same, for every operation and version.
        #[test]
        fn what_decodes_encodes_to_the_same(
            op_code in prop::sample::select(OpCode::KNOWN.iter().map(|it| it.0).chain([-1, 3, 2001]).collect::<Vec<_>>()),
            minor in 0_u8..13,
            // Small numbers in four bytes, so that counts and lengths often fit.
            words in prop::collection::vec(prop_oneof![4 => 0_u32..6, 1 => any::<u32>()], 0..24),
            tail in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let (op_code, version) = (OpCode(op_code), Version::new(2, minor));
            let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            body.extend(tail);
            if let Ok(request) = Request::decode(op_code, version, &body) {
                prop_assert_eq!(request.op_code(), op_code);
                let mut encoded = vec![];
                request.encode(version, &mut encoded);
                prop_assert_eq!(Request::decode(op_code, version, &encoded), Ok(request));
            }
        }
    }

    #[test]
    fn unknown_operations_are_kept() {
        let request = Request::decode(OpCode(2001), Version::CURRENT, b"any").unwrap();
        assert_eq!(request, Request::Unknown(OpCode(2001), b"any"));
        assert_eq!(request.handle(), None);
    }

    #[test]
    fn every_deployed_operation_has_a_body() {
        for op_code in OpCode::KNOWN.iter().filter(|op_code| op_code.is_deployed()) {
            assert!(Request::decode(*op_code, Version::CURRENT, b"").is_err(), "{op_code:?}");
        }
    }
}
