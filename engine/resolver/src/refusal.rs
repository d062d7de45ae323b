//! The reasons why a request gets an error, each with its response code and its text.

use handle_proto::ResponseCode;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text_name:literal, $code:ident, $text:literal;)*) => {
        /// The reason why a request gets an error instead of an answer.
        ///
        /// A negative answer (no such handle or value) is an answer, not an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RefusalReason { $($(#[$doc])* $name,)* }

        impl RefusalReason {
            /// Every reason, by its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text_name,)* }
            }

            /// The response code on the wire.
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

// Where deployed servers refuse too, the text is theirs; shown by `conversations.jsonl`.
reasons! {
    /// A length, a count or a code in the request is invalid.
    Malformed = "malformed", ERROR, b"Server error processing request, see server logs";
    /// The datagram carries more bytes of a message than a datagram of the protocol may.
    Oversized = "oversized", ERROR, b"Server error processing request, see server logs";
    /// The message is a response, not a request.
    Response = "response", ERROR, b"Server error processing request, see server logs";
    /// The operation is unknown to deployed servers too.
    UnknownOperation = "unknown_operation", ERROR, b"Server error processing request, see server logs";
    /// The message is shorter than a header.
    Short = "short", PROTOCOL_ERROR, b"Invalid message length";
    /// The stream ended within a message. The text is completed with the number of missing bytes.
    CutOff = "cut_off", PROTOCOL_ERROR, b"Expecting more bytes";
    /// The rest of a message did not arrive in time.
    HalfRequest = "half_request", PROTOCOL_ERROR, b"Timed out waiting for the rest of the request";
    /// No request arrived in time.
    Idle = "idle", PROTOCOL_ERROR, b"Timed out waiting for a request";
    /// The message is longer than a request may be here.
    TooLong = "too_long", PROTOCOL_ERROR, b"The request is too long.";
    /// The message has no operation.
    NoOperation = "no_operation", PROTOCOL_ERROR, b"Unknown opCode in message: 0";
    /// The request is for administration, on an interface for queries.
    Administration = "administration", PROTOCOL_ERROR, b"Received admin request on non-admin interface";
    /// The message is encrypted, but outside any session.
    EncryptedOutsideSession = "encrypted_outside_session", SESSION_FAILED, b"Invalid session id. Unable to decrypt request message.";
    /// The message is encrypted in an unknown session.
    EncryptedInUnknownSession = "encrypted_in_unknown_session", SESSION_TIMEOUT, b"Session information not available or time out. Unable to decrypt request message.";
    /// The request is in an unknown session.
    UnknownSession = "unknown_session", SESSION_TIMEOUT, b"Invalid session id or session time out. Please try again.";
    /// The message is encrypted in a session, but cannot be decrypted or has no MAC that
    /// authenticates it.
    Undecryptable = "undecryptable", SESSION_FAILED, b"Exception decrypting request with session key HandleException (ENCRYPTION_ERROR) Error decrypting buffer";
    /// The request ends a session, but names none.
    NoSession = "no_session", SESSION_TIMEOUT, b"Can not get session info.";
    /// The request sets up a session, and this server has no sessions.
    NoSessions = "no_sessions", SESSION_FAILED, b"This server has no sessions.";
    /// The client wants the session key encrypted with the client's own key.
    ClientKeyExchange = "client_key_exchange", SESSION_FAILED, b"Error performing client cipher key exchange.";
    /// The client wants the session key encrypted with a key from a handle value.
    HandleKeyExchange = "handle_key_exchange", SESSION_FAILED, b"Error performing hdl cipher key exchange.";
    /// The client wants the session key exchanged in another unsupported way.
    KeyExchange = "key_exchange", SESSION_FAILED, b"Session keys are exchanged by Diffie-Hellman only.";
    /// The client's key for a session cannot be read.
    SessionKey = "session_key", SESSION_FAILED, b"Error encoding public session key";
    /// The client's key for a session is in a group that is not accepted, or makes the shared
    /// secret predictable.
    SessionGroup = "session_group", SESSION_FAILED, b"This server does not accept the Diffie-Hellman group, or the value in it.";
    /// The client supports no cipher that this server accepts.
    SessionCipher = "session_cipher", SESSION_FAILED, b"This server uses no cipher that the client knows.";
    /// The table of sessions is full.
    TooManySessions = "too_many_sessions", SERVER_BUSY, b"Too many sessions; ask again later.";
    /// The client suggests a version in which messages in sessions are not protected.
    SessionVersion = "session_version", SESSION_FAILED, b"This server has sessions of version 2.7 and later only.";
    /// The request would make the server keep state for a sender that did not prove its address,
    /// and there is much such state already. Deployed clients ask again over TCP.
    OverTcp = "over_tcp", ERROR, b"Ask over TCP.";
    /// A request in a session lacks the MAC that it must have.
    NoMac = "no_mac", INVALID_CREDENTIAL, b"Session request missing MAC code.";
    /// A request in a session has a wrong MAC.
    WrongMac = "wrong_mac", INVALID_SESSION_KEY, b"Session authentication failed.";
    /// The counter of a request in a session was used before, or is too old to be checked. The text
    /// is completed with the counter.
    Replayed = "replayed", SESSION_MESSAGE_REJECTED, b"Duplicate session counter";
    /// The request answers a challenge that was never made.
    NoChallenge = "no_challenge", AUTHENTICATION_TIMEOUT, b"";
    /// The server does not support the operation.
    NotSupported = "not_supported", OPERATION_NOT_SUPPORTED, b"This server only answers queries.";
    /// The request asks for the site record, and the server has none.
    NoSiteRecord = "no_site_record", OPERATION_NOT_SUPPORTED, b"This server has no site record.";
    /// The request asks for values that are not public.
    NotPublic = "not_public", OPERATION_NOT_SUPPORTED, b"This server shows public values only.";
    /// The queue of requests that wait for a signature or a challenge is full.
    Busy = "busy", SERVER_BUSY, b"Too many requests wait to be signed or authenticated; ask again later.";
    /// As many requests as allowed wait for answers of other services.
    TooManyQuestions = "too_many_questions", SERVER_BUSY, b"Too many questions to other servers are under way; ask again later.";
    /// The source has asked for too many signatures over TCP.
    TooManySignatures = "too_many_signatures", SERVER_BUSY, b"Too many signed answers were asked for from your network; use a session, or ask again later.";
    /// No other server has answered, and there is no answer to fall back on.
    NotResolved = "not_resolved", SERVER_BUSY, b"No responsible server has answered; ask again later.";
    /// Answers about the record must be signed by its servers, and none has a valid signature.
    NotCertified = "not_certified", SERVER_BUSY, b"No responsible server has given an answer with a valid signature; ask again later.";
    /// The request has passed through so many servers that it is not passed on.
    TooManyServers = "too_many_servers", RECURSION_COUNT_TOO_HIGH, b"The request has come through too many servers.";
    /// The table of challenges that wait for an answer is full.
    TooManyChallenges = "too_many_challenges", SERVER_BUSY, b"Too many challenges wait for an answer; ask again later.";
    /// The identity may not read these values.
    NotPermitted = "not_permitted", INVALID_ADMIN, b"";
    /// The answer to the challenge is wrong, or the identity has no such key.
    WrongKey = "wrong_key", AUTHENTICATION_FAILED, b"";
    /// The source has sent too many wrong secret keys.
    TooManySecrets = "too_many_secrets", SERVER_BUSY, b"Too many wrong secret keys came from your network; ask again later.";
    /// The answer to the challenge demands more work than the server does.
    TooMuchWork = "too_much_work", AUTHENTICATION_FAILED, b"The answer asks for more PBKDF2 rounds, or for a longer or shorter key, than this server accepts.";
    /// The key of the identity is at another service, which this server does not query.
    IdentityElsewhere = "identity_elsewhere", AUTHENTICATION_FAILED, b"This server can only check identities whose handles it has.";
    /// The answer to the challenge has an unknown form, whatever the key.
    UnreadableAnswer = "unreadable_answer", AUTHENTICATION_ERROR, b"The answer to the challenge cannot be read.";
    /// The method of authentication is unknown.
    UnknownAuthentication = "unknown_authentication", INVALID_CREDENTIAL, b"Unknown authentication type; use HS_PUBKEY or HS_SECKEY.";
    /// The request asks for values that nobody may read.
    Unreadable = "unreadable", INSUFFICIENT_PERMISSIONS, b"";
    /// Another server of the site has the handle.
    OtherServer = "other_server", SERVER_NOT_RESPONSIBLE, b"Request was hashed incorrectly";
    /// The prefix is not homed.
    NotHomed = "not_homed", SERVER_NOT_RESPONSIBLE, b"That prefix doesn't live here";
    /// The query lists more indexes and types than a worker compares with the values of this
    /// record, and there is no slow path to sort them.
    QueryTooLong = "query_too_long", PROTOCOL_ERROR, b"Too many indexes and types; ask for all values.";
    /// The answer would be longer than a message may be.
    AnswerTooLong = "answer_too_long", PROTOCOL_ERROR, b"The values do not fit into an answer; ask by index or type.";
    /// The answer takes more datagrams than are sent; TCP can carry it. This is the only code that
    /// makes deployed clients ask over TCP.
    TooManyDatagrams = "too_many_datagrams", ERROR, b"The answer takes too many datagrams; ask over TCP, or by index or type.";
    /// The network of the sender has used up its answers. This is the only code that makes deployed
    /// clients go on to another site or to TCP; "too busy" is final for them.
    RateLimited = "rate_limited", ERROR, b"";
    /// The templates of the handle are invalid, or exceed their limits.
    TemplateFailed = "template_failed", ERROR, b"The templates of this handle cannot be applied.";
    /// The templates of the prefix have used up the time that they may take.
    TemplatesCostly = "templates_costly", SERVER_BUSY, b"The templates of this prefix take too much time; ask again later.";
    /// The publisher has not renewed its statement about the set for too long.
    StaleSet = "stale_set", SERVER_BUSY, b"The records of this server are out of date; ask another server.";
    /// The stored record is damaged.
    DamagedRecord = "damaged_record", ERROR, b"The stored record cannot be read.";
}
