//! Every response, by its response code and operation code.

use super::admin::{CommittedChange, CreatedHandle, Listing};
use super::auth::{Challenge, VerificationAnswer};
use super::cursor::Cursor;
use super::digest::RequestDigest;
use super::failure::Failure;
use super::header::Header;
use super::query::QueryAnswer;
use super::referral::Referral;
use super::replication::{NextTransaction, TransactionsFollow};
use super::session::SessionAnswer;
use crate::code::{OpCode, OpFlags, ResponseCode, Version};
use crate::error::DecodeError;
use alloc::vec::Vec;

/// The content of a response, without its code and the digest of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// The requested values.
    Answer(QueryAnswer<'a>),
    /// The site record of the server, to the end of the body.
    SiteInfo(&'a [u8]),
    /// The handle that was created.
    Created(CreatedHandle<'a>),
    /// The change was made, and includes the state of the store that has it.
    Changed(CommittedChange<'a>),
    /// Success, without further content.
    Done,
    /// A part of a listing.
    Listing(Listing<'a>),
    /// Whether the answer to a challenge is correct.
    Verdict(VerificationAnswer),
    /// The session is set up, or its key can be agreed on.
    Session(SessionAnswer<'a>),
    /// The next transaction number.
    NextTransaction(NextTransaction),
    /// A stream of transactions follows the message.
    TransactionsFollow(TransactionsFollow),
    /// Another service has the record.
    Referral(Referral<'a>),
    /// The server requires authentication.
    Challenge(Challenge<'a>),
    /// The request failed.
    Failure(Failure<'a>),
    /// An unknown code, or the success of an unknown operation; the rest of the body is kept
    /// unchanged.
    Unknown(&'a [u8]),
}

/// A response: its code with the current meaning, the digest of the request, and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The code. In messages below version 2.5, the code 303 is read as the current 7, and 7 is
    /// written as 303.
    pub code: ResponseCode,
    /// The digest of the request.
    pub digest: Option<RequestDigest<'a>>,
    /// The content of the response.
    pub response: Response<'a>,
}

impl<'a> Reply<'a> {
    /// Decodes the body of a response written in `version`.
    ///
    /// # Errors
    /// When the digest or the body does not decode. Unknown codes are kept.
    pub fn decode(header: &Header, version: Version, body: &'a [u8]) -> Result<Self, DecodeError> {
        let code = header.response_code.read_in(version);
        if code == ResponseCode::AUTHENTICATION_NEEDED && version < Version::LOWEST {
            let (challenge, digest) = Challenge::decode_old(body)?;
            return Ok(Self { code, digest: Some(digest), response: Response::Challenge(challenge) });
        }
        let mut cursor = Cursor::new(body);
        let digest = match header.flags.has(OpFlags::REQUEST_DIGEST) {
            true => Some(RequestDigest::decode(&mut cursor)?),
            false => None,
        };
        let shows_transaction = header.flags.has(OpFlags::SHOW_TRANSACTION);
        let response = Response::decode(code, header.op_code, shows_transaction, cursor.rest());
        // Offsets count from the start of the body, also after a digest.
        let response = response.map_err(|error| error.moved_by(cursor.at()))?;
        Ok(Self { code, digest, response })
    }

    /// Appends the body as written in `version` to `out`.
    ///
    /// Below version 2.1 a digest is written in challenges only: no flag announces it elsewhere.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        if version >= Version::LOWEST {
            if let Some(digest) = &self.digest {
                digest.encode(out);
            }
        } else if let Response::Challenge(challenge) = &self.response {
            return challenge.encode_old(self.digest.map_or(b"", |it| it.digest), out);
        }
        self.response.encode(out);
    }

    /// `flags` with RD set or cleared, as the body written in `version` requires.
    #[must_use]
    pub fn flags(&self, flags: OpFlags, version: Version) -> OpFlags {
        match self.digest.is_some() && version >= Version::LOWEST {
            true => flags.with(OpFlags::REQUEST_DIGEST),
            false => flags.without(OpFlags::REQUEST_DIGEST),
        }
    }
}

impl<'a> Response<'a> {
    fn decode(
        code: ResponseCode,
        op_code: OpCode,
        shows_transaction: bool,
        body: &'a [u8],
    ) -> Result<Self, DecodeError> {
        Ok(match code {
            ResponseCode::SUCCESS if shows_transaction && op_code.changes_records() => {
                Self::Changed(CommittedChange::decode(body, op_code == OpCode::CREATE_HANDLE)?)
            }
            ResponseCode::SUCCESS => return Self::decode_success(op_code, body),
            ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL => {
                Self::Referral(Referral::decode(body)?)
            }
            ResponseCode::AUTHENTICATION_NEEDED => Self::Challenge(Challenge::decode(body)?),
            known if known.name().is_some() => Self::Failure(Failure::decode(body)?),
            _ => Self::Unknown(body),
        })
    }

    fn decode_success(op_code: OpCode, body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(match op_code {
            OpCode::RESOLUTION => Self::Answer(QueryAnswer::decode(body)?),
            OpCode::GET_SITE_INFO => Self::SiteInfo(body),
            OpCode::CREATE_HANDLE => Self::Created(CreatedHandle::decode(body)?),
            OpCode::LIST_HANDLES | OpCode::LIST_HOMED_NAS => Self::Listing(Listing::decode(body)?),
            OpCode::VERIFY_CHALLENGE => Self::Verdict(VerificationAnswer::decode(body)?),
            OpCode::SESSION_SETUP => Self::Session(SessionAnswer::decode(body)?),
            OpCode::GET_NEXT_TXN_ID => Self::NextTransaction(NextTransaction::decode(body)?),
            OpCode::RETRIEVE_TXN_LOG => Self::TransactionsFollow(TransactionsFollow::decode(body)?),
            OpCode::DELETE_HANDLE
            | OpCode::ADD_VALUE
            | OpCode::REMOVE_VALUE
            | OpCode::MODIFY_VALUE
            | OpCode::HOME_NA
            | OpCode::UNHOME_NA
            | OpCode::SESSION_TERMINATE
            | OpCode::SESSION_EXCHANGE_KEY
            | OpCode::DUMP_HANDLES
            | OpCode::BACKUP_SERVER => Self::Done,
            _ => Self::Unknown(body),
        })
    }

    /// Appends the bytes after the request digest to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Answer(body) => body.encode(out),
            Self::Created(body) => body.encode(out),
            Self::Changed(body) => body.encode(out),
            Self::Done => {}
            Self::Listing(body) => body.encode(out),
            Self::Verdict(body) => body.encode(out),
            Self::Session(body) => body.encode(out),
            Self::NextTransaction(body) => body.encode(out),
            Self::TransactionsFollow(body) => body.encode(out),
            Self::Referral(body) => body.encode(out),
            Self::Challenge(body) => body.encode(out),
            Self::Failure(body) => body.encode(out),
            Self::SiteInfo(body) | Self::Unknown(body) => out.extend_from_slice(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::admin::StorePosition;
    use super::super::testing::refuses_every_truncation;
    use super::*;
    use crate::code::DigestAlgorithm;
    use alloc::vec;
    use proptest::prelude::*;

    fn header(op_code: OpCode, response_code: ResponseCode, flags: OpFlags) -> Header {
        Header {
            op_code,
            response_code,
            flags,
            site_serial: Header::NO_SITE_SERIAL,
            recursion_count: 0,
            reserved: 0,
            expiration: 0,
            body_len: 0,
        }
    }

    proptest! {
        /// Decoded bytes encode to bytes that decode to the same, for every code and version.
        #[test]
        fn what_decodes_encodes_to_the_same(
            op_code in prop::sample::select(OpCode::KNOWN.iter().map(|it| it.0).chain([-1]).collect::<Vec<_>>()),
            code in prop_oneof![
                Just(1), Just(302), Just(303), Just(402),
                prop::sample::select(ResponseCode::KNOWN.iter().map(|it| it.0).chain([900]).collect::<Vec<_>>()),
            ],
            minor in 0_u8..13,
            shows_transaction in any::<bool>(),
            digest in prop::sample::select(vec![None, Some((0, 16)), Some((1, 16)), Some((2, 20)), Some((3, 32))]),
            words in prop::collection::vec(prop_oneof![4 => 0_u32..6, 1 => any::<u32>()], 0..24),
        ) {
            let version = Version::new(2, minor);
            let mut body = vec![];
            let mut flags = OpFlags::default();
            if let Some((algorithm, len)) = digest.filter(|_| version >= Version::LOWEST) {
                let digest = vec![7; len];
                RequestDigest { algorithm: DigestAlgorithm(algorithm), digest: &digest }.encode(&mut body);
                flags = flags.with(OpFlags::REQUEST_DIGEST);
            }
            if shows_transaction {
                flags = flags.with(OpFlags::SHOW_TRANSACTION);
            }
            body.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            let header = header(OpCode(op_code), ResponseCode(code), flags);
            if let Ok(reply) = Reply::decode(&header, version, &body) {
                let mut encoded = vec![];
                reply.encode(version, &mut encoded);
                prop_assert_eq!(reply.flags(flags, version), flags);
                prop_assert_eq!(Reply::decode(&header, version, &encoded), Ok(reply));
            }
        }
    }

    #[test]
    fn before_2_5_a_prefix_referral_is_an_error() {
        let header = header(OpCode::RESOLUTION, ResponseCode::PREFIX_REFERRAL, OpFlags::default());
        let body = b"\0\0\0\x06backup";
        let old = Reply::decode(&header, Version::new(2, 4), body).unwrap();
        assert_eq!(old.code, ResponseCode::SERVER_READ_ONLY);
        assert_eq!(old.response, Response::Failure(Failure { message: b"backup" }));
        let new = Reply::decode(&header, Version::new(2, 5), body).unwrap();
        assert_eq!(new.code, ResponseCode::PREFIX_REFERRAL);
        assert!(matches!(new.response, Response::Referral(Referral { handle: b"backup", values: None })));
    }

    #[test]
    fn errors_behind_a_digest_are_found_where_they_are() {
        let flags = OpFlags::REQUEST_DIGEST;
        let header = header(OpCode::VERIFY_CHALLENGE, ResponseCode::SUCCESS, flags);
        let body = [&[2][..], &[0; 20], &[1]].concat();
        refuses_every_truncation(&body, &[], |bytes| {
            Reply::decode(&header, Version::CURRENT, bytes).map(|_| ())
        });
        let error = Reply::decode(&header, Version::CURRENT, &body[..21]).unwrap_err();
        assert_eq!(error.at(), 21);
    }

    #[test]
    fn changes_show_their_transaction_where_it_was_requested() {
        let position = StorePosition { store: 7, transaction: 9 };
        for (op_code, handle) in [(OpCode::CREATE_HANDLE, Some(&b"10/a"[..])), (OpCode::DELETE_HANDLE, None)]
        {
            let mut body = vec![];
            let response = Response::Changed(CommittedChange { handle, position });
            response.encode(&mut body);
            let shown = header(op_code, ResponseCode::SUCCESS, OpFlags::SHOW_TRANSACTION);
            refuses_every_truncation(&body, &[], |bytes| {
                Reply::decode(&shown, Version::CURRENT, bytes).map(|_| ())
            });
            assert_eq!(Reply::decode(&shown, Version::CURRENT, &body).unwrap().response, response);
            let plain = header(op_code, ResponseCode::SUCCESS, OpFlags::default());
            let plain = Reply::decode(&plain, Version::CURRENT, &body).unwrap();
            assert!(!matches!(plain.response, Response::Changed(_)), "{op_code:?}");
        }
        let query = header(OpCode::RESOLUTION, ResponseCode::SUCCESS, OpFlags::SHOW_TRANSACTION);
        let body = b"\0\0\0\x01a\0\0\0\0";
        let query = Reply::decode(&query, Version::CURRENT, body).unwrap();
        assert!(matches!(query.response, Response::Answer(_)));
    }

    #[test]
    fn unknown_codes_are_kept() {
        let header = header(OpCode::RESOLUTION, ResponseCode(12_345), OpFlags::default());
        let reply = Reply::decode(&header, Version::CURRENT, b"any").unwrap();
        assert_eq!((reply.code, reply.response), (ResponseCode(12_345), Response::Unknown(b"any")));
    }
}
