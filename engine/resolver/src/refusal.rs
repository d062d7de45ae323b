//! Why a request gets an error: every reason with its response code and its text.

use handle_proto::ResponseCode;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text_name:literal, $code:ident, $text:literal;)*) => {
        /// Why a request gets an error instead of an answer.
        ///
        /// That there is no such handle or value is an answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RefusalReason { $($(#[$doc])* $name,)* }

        impl RefusalReason {
            /// Every reason; its position is its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name under which it is counted.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text_name,)* }
            }

            /// The code that says it on the wire.
            #[must_use]
            pub const fn code(self) -> ResponseCode {
                match self { $(Self::$name => ResponseCode::$code,)* }
            }

            /// The text that goes with the code.
            pub(crate) const fn text(self) -> &'static [u8] {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

// Texts of what deployed servers refuse are theirs; shown by `conversations.jsonl`.
reasons! {
    /// A length, a count or a code in the request makes no sense.
    Malformed = "malformed", ERROR, b"Server error processing request, see server logs";
    /// The datagram has more of a message than one of the protocol may have.
    Oversized = "oversized", ERROR, b"Server error processing request, see server logs";
    /// It is a response, not a request.
    Response = "response", ERROR, b"Server error processing request, see server logs";
    /// No deployed server knows the operation.
    UnknownOperation = "unknown_operation", ERROR, b"Server error processing request, see server logs";
    /// There is no whole header.
    Short = "short", PROTOCOL_ERROR, b"Invalid message length";
    /// The stream ended within a message; how many bytes are missing is told.
    CutOff = "cut_off", PROTOCOL_ERROR, b"Expecting more bytes";
    /// The rest of a message did not come in time.
    HalfRequest = "half_request", PROTOCOL_ERROR, b"Timed out waiting for the rest of the request";
    /// No request came in time.
    Idle = "idle", PROTOCOL_ERROR, b"Timed out waiting for a request";
    /// The message is longer than a request may be here.
    TooLong = "too_long", PROTOCOL_ERROR, b"The request is too long.";
    /// There is no operation.
    NoOperation = "no_operation", PROTOCOL_ERROR, b"Unknown opCode in message: 0";
    /// Administration, on an interface for queries.
    Administration = "administration", PROTOCOL_ERROR, b"Received admin request on non-admin interface";
    /// Encrypted, outside any session.
    EncryptedOutsideSession = "encrypted_outside_session", SESSION_FAILED, b"Invalid session id. Unable to decrypt request message.";
    /// Encrypted, in a session that is not known.
    EncryptedInUnknownSession = "encrypted_in_unknown_session", SESSION_TIMEOUT, b"Session information not available or time out. Unable to decrypt request message.";
    /// In a session that is not known.
    UnknownSession = "unknown_session", SESSION_TIMEOUT, b"Invalid session id or session time out. Please try again.";
    /// Encrypted in a session, but not so that it can be read, or without a MAC that tells who wrote it.
    Undecryptable = "undecryptable", SESSION_FAILED, b"Exception decrypting request with session key HandleException (ENCRYPTION_ERROR) Error decrypting buffer";
    /// A session is to be ended, and none is named.
    NoSession = "no_session", SESSION_TIMEOUT, b"Can not get session info.";
    /// A session is to be set up.
    NoSessions = "no_sessions", SESSION_FAILED, b"This server has no sessions.";
    /// The key of a session is to be encrypted with the client's key.
    ClientKeyExchange = "client_key_exchange", SESSION_FAILED, b"Error performing client cipher key exchange.";
    /// The key of a session is to be encrypted with a key that a value holds.
    HandleKeyExchange = "handle_key_exchange", SESSION_FAILED, b"Error performing hdl cipher key exchange.";
    /// The key of a session is to be exchanged in some other way.
    KeyExchange = "key_exchange", SESSION_FAILED, b"Session keys are exchanged by Diffie-Hellman only.";
    /// The client's key for a session cannot be read.
    SessionKey = "session_key", SESSION_FAILED, b"Error encoding public session key";
    /// The client's key for a session is in a group that is not accepted, or keeps nothing secret.
    SessionGroup = "session_group", SESSION_FAILED, b"This server does not accept the Diffie-Hellman group, or the value in it.";
    /// The client knows no cipher that may be used.
    SessionCipher = "session_cipher", SESSION_FAILED, b"This server uses no cipher that the client knows.";
    /// There are more sessions than there is room for.
    TooManySessions = "too_many_sessions", SERVER_BUSY, b"Too many sessions; ask again later.";
    /// The version that the client suggests is one in which messages in sessions are not protected.
    SessionVersion = "session_version", SESSION_FAILED, b"This server has sessions of version 2.7 and later only.";
    /// State would be kept for a sender that need not receive the answer, and there is much of it already. Deployed clients
    /// ask again over TCP.
    OverTcp = "over_tcp", ERROR, b"Ask over TCP.";
    /// A request in a session that has to tell who wrote it, and does not.
    NoMac = "no_mac", INVALID_CREDENTIAL, b"Session request missing MAC code.";
    /// A request in a session with a MAC that is wrong.
    WrongMac = "wrong_mac", INVALID_SESSION_KEY, b"Session authentication failed.";
    /// A request in a session that has come before, or could have; which is told.
    Replayed = "replayed", SESSION_MESSAGE_REJECTED, b"Duplicate session counter";
    /// The answer to a challenge that was never made.
    NoChallenge = "no_challenge", AUTHENTICATION_TIMEOUT, b"";
    /// An operation that this server does not do.
    NotSupported = "not_supported", OPERATION_NOT_SUPPORTED, b"This server only answers queries.";
    /// The site record of a server that has none.
    NoSiteRecord = "no_site_record", OPERATION_NOT_SUPPORTED, b"This server has no site record.";
    /// Values that are not public.
    NotPublic = "not_public", OPERATION_NOT_SUPPORTED, b"This server shows public values only.";
    /// More requests wait for a signature or a challenge than there is room for.
    Busy = "busy", SERVER_BUSY, b"Too many requests wait to be signed or authenticated; ask again later.";
    /// More challenges wait for an answer than there is room for.
    TooManyChallenges = "too_many_challenges", SERVER_BUSY, b"Too many challenges wait for an answer; ask again later.";
    /// The identity may not read these values.
    NotPermitted = "not_permitted", INVALID_ADMIN, b"";
    /// The answer to the challenge is wrong, or the identity has no such key.
    WrongKey = "wrong_key", AUTHENTICATION_FAILED, b"";
    /// The answer to the challenge asks for more work than is done for it.
    TooMuchWork = "too_much_work", AUTHENTICATION_FAILED, b"The answer asks for more PBKDF2 rounds, or for a longer or shorter key, than this server accepts.";
    /// The key of the identity is at another server, and this one asks nobody.
    IdentityElsewhere = "identity_elsewhere", AUTHENTICATION_FAILED, b"This server can only check identities whose handles it has.";
    /// The answer to the challenge has no form that is known, whatever the key.
    UnreadableAnswer = "unreadable_answer", AUTHENTICATION_ERROR, b"The answer to the challenge cannot be read.";
    /// A way to authenticate that nobody knows.
    UnknownAuthentication = "unknown_authentication", INVALID_CREDENTIAL, b"Unknown authentication type; use HS_PUBKEY or HS_SECKEY.";
    /// Values that nobody may read.
    Unreadable = "unreadable", INSUFFICIENT_PERMISSIONS, b"";
    /// Another server of the site has the handle.
    OtherServer = "other_server", SERVER_NOT_RESPONSIBLE, b"Request was hashed incorrectly";
    /// The prefix is not homed.
    NotHomed = "not_homed", SERVER_NOT_RESPONSIBLE, b"That prefix doesn't live here";
    /// More indexes and types are asked for than a worker compares with the values of this record, and there is no slow
    /// path to sort them.
    QueryTooLong = "query_too_long", PROTOCOL_ERROR, b"Too many indexes and types; ask for all values.";
    /// The answer would be longer than a message.
    AnswerTooLong = "answer_too_long", PROTOCOL_ERROR, b"The values do not fit into an answer; ask by index or type.";
    /// The answer would take more datagrams than are sent; over TCP there it is. Of all codes only this one makes deployed
    /// clients ask there.
    TooManyDatagrams = "too_many_datagrams", ERROR, b"The answer takes too many datagrams; ask over TCP, or by index or type.";
    /// The sender of requests, or somebody near it, has had its answers. Of all codes only this one
    /// makes deployed clients go on to another site or to TCP; "too busy" is final to them.
    RateLimited = "rate_limited", ERROR, b"";
    /// The templates of the handle are wrong, or go further than they may.
    TemplateFailed = "template_failed", ERROR, b"The templates of this handle cannot be applied.";
    /// The stored record is damaged.
    DamagedRecord = "damaged_record", ERROR, b"The stored record cannot be read.";
}
