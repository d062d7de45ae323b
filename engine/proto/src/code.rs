//! Operation codes, response codes, flags and versions: open newtypes that keep unknown values.

use core::fmt;

macro_rules! open_code {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$item:meta])* $constant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$item])* pub const $constant: Self = Self($value);)*

            /// Every code with a name, in order.
            pub const KNOWN: &'static [Self] = &[$(Self::$constant,)*];

            /// The name of the code in the words of the protocol, if it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self { $(Self::$constant => Some($text),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "unknown {}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}({name})", self.0),
                    None => write!(f, "{}", self.0),
                }
            }
        }
    };
}

open_code! {
    /// The operation of a message. RFC 3652 section 2.2.2.1; 1000 to 1003 are deployed extensions.
    OpCode(i32) {
        /// Reserved; no request may carry it.
        RESERVED = 0, "reserved";
        /// Query for handle values.
        RESOLUTION = 1, "resolution";
        /// Query for the site record of the server.
        GET_SITE_INFO = 2, "get site info";
        /// Create a handle.
        CREATE_HANDLE = 100, "create handle";
        /// Delete a handle.
        DELETE_HANDLE = 101, "delete handle";
        /// Add values to a handle.
        ADD_VALUE = 102, "add value";
        /// Remove values from a handle.
        REMOVE_VALUE = 103, "remove value";
        /// Replace values of a handle.
        MODIFY_VALUE = 104, "modify value";
        /// List the handles under a prefix.
        LIST_HANDLES = 105, "list handles";
        /// List derived prefixes; in the RFC, not deployed.
        LIST_NA = 106, "list naming authorities";
        /// Answer to a challenge.
        RESPONSE_TO_CHALLENGE = 200, "response to challenge";
        /// Verify an answer to a challenge for another server.
        VERIFY_CHALLENGE = 201, "verify challenge";
        /// Home a prefix at the server.
        HOME_NA = 300, "home prefix";
        /// Unhome a prefix.
        UNHOME_NA = 301, "unhome prefix";
        /// List the prefixes that are homed at the server.
        LIST_HOMED_NAS = 302, "list homed prefixes";
        /// Set up a session.
        SESSION_SETUP = 400, "session setup";
        /// End a session.
        SESSION_TERMINATE = 401, "session terminate";
        /// Transfer a session key.
        SESSION_EXCHANGE_KEY = 402, "session key exchange";
        /// Ask for the next transaction number.
        GET_NEXT_TXN_ID = 1000, "get next transaction id";
        /// Replicate transactions.
        RETRIEVE_TXN_LOG = 1001, "retrieve transactions";
        /// Replicate all records.
        DUMP_HANDLES = 1002, "dump handles";
        /// Take a backup.
        BACKUP_SERVER = 1003, "backup server";
    }
}

impl OpCode {
    /// Whether the operation changes or lists records, and so belongs on an interface for
    /// administration.
    #[must_use]
    pub const fn is_admin(self) -> bool {
        matches!(self.0, 100..=105 | 300..=302 | 1000..=1003)
    }

    /// Whether the operation changes records or homed prefixes.
    #[must_use]
    pub const fn changes_records(self) -> bool {
        matches!(self.0, 100..=104 | 300..=301)
    }

    /// Whether a deployed server knows the operation.
    #[must_use]
    pub const fn is_deployed(self) -> bool {
        matches!(self.0, 1 | 2 | 100..=105 | 200 | 201 | 300..=302 | 400..=402 | 1000..=1003)
    }
}

open_code! {
    /// The result of a request; zero in requests. RFC 3652 section 2.2.2.2, with the deployed
    /// meanings.
    ResponseCode(i32) {
        /// Not a response.
        RESERVED = 0, "request";
        /// The request succeeded.
        SUCCESS = 1, "success";
        /// The server failed.
        ERROR = 2, "server error";
        /// The server is overloaded; ask again later.
        SERVER_BUSY = 3, "server too busy";
        /// The request cannot be read.
        PROTOCOL_ERROR = 4, "protocol error";
        /// The server does not support the operation.
        OPERATION_NOT_SUPPORTED = 5, "operation not supported";
        /// Too many indirections.
        RECURSION_COUNT_TOO_HIGH = 6, "recursion count too high";
        /// The server cannot be changed at the moment.
        SERVER_READ_ONLY = 7, "server read-only";
        /// The handle does not exist.
        HANDLE_NOT_FOUND = 100, "handle not found";
        /// The handle exists already.
        HANDLE_ALREADY_EXISTS = 101, "handle already exists";
        /// The name is not a valid handle.
        INVALID_HANDLE = 102, "invalid handle";
        /// The handle has no such values.
        VALUES_NOT_FOUND = 200, "values not found";
        /// The value exists already.
        VALUE_ALREADY_EXISTS = 201, "value already exists";
        /// The value is invalid.
        INVALID_VALUE = 202, "invalid value";
        /// The client's site record is outdated.
        OUT_OF_DATE_SITE_INFO = 300, "out-of-date site info";
        /// Another server of the site has the handle.
        SERVER_NOT_RESPONSIBLE = 301, "server not responsible";
        /// Another service has the handle.
        SERVICE_REFERRAL = 302, "service referral";
        /// Another service has the records of this prefix.
        PREFIX_REFERRAL = 303, "prefix referral";
        /// The administrator is not permitted to do this.
        INVALID_ADMIN = 400, "invalid admin";
        /// No identity is permitted to do this.
        INSUFFICIENT_PERMISSIONS = 401, "insufficient permissions";
        /// The server requires authentication.
        AUTHENTICATION_NEEDED = 402, "authentication needed";
        /// The answer to the challenge is wrong.
        AUTHENTICATION_FAILED = 403, "authentication failed";
        /// The form of the credential is not usable.
        INVALID_CREDENTIAL = 404, "invalid credential";
        /// The challenge is unknown or has expired.
        AUTHENTICATION_TIMEOUT = 405, "authentication timeout";
        /// The answer to the challenge could not be checked.
        AUTHENTICATION_ERROR = 406, "authentication error";
        /// A condition of the request is not met; for requests of this software with a
        /// [`ChangeGuard`](crate::wire::guard::ChangeGuard).
        CONDITION_FAILED = 412, "condition not met";
        /// The session is unknown or has expired.
        SESSION_TIMEOUT = 500, "session timeout";
        /// The session could not be set up or used.
        SESSION_FAILED = 501, "session failed";
        /// The session key is wrong.
        INVALID_SESSION_KEY = 502, "invalid session key";
        /// The server requires an RSA key.
        NEED_RSA_KEY = 503, "need RSA key for exchange";
        /// The session set-up is invalid.
        INVALID_SESSION_REQUEST = 504, "invalid session setup request";
        /// The message is a replay.
        SESSION_MESSAGE_REJECTED = 505, "session message rejected";
    }
}

impl ResponseCode {
    /// Whether this code marks a referral in a message of `version`.
    ///
    /// Before 2.5 the code 303 meant that the server is being backed up.
    #[must_use]
    pub fn is_referral(self, version: Version) -> bool {
        self == Self::SERVICE_REFERRAL || (self == Self::PREFIX_REFERRAL && version >= Version::new(2, 5))
    }

    /// The code to write in an answer in `version`: older versions lack two codes.
    #[must_use]
    pub fn for_version(self, version: Version) -> Self {
        match self {
            Self::INVALID_VALUE if version < Version::new(2, 5) => Self::VALUE_ALREADY_EXISTS,
            Self::SERVER_READ_ONLY if version < Version::new(2, 5) => Self::PREFIX_REFERRAL,
            code => code,
        }
    }

    /// The current meaning of a code in a message of `version`: before 2.5, 303 meant what 7 means
    /// today.
    #[must_use]
    pub fn read_in(self, version: Version) -> Self {
        match self {
            Self::PREFIX_REFERRAL if version < Version::new(2, 5) => Self::SERVER_READ_ONLY,
            code => code,
        }
    }
}

open_code! {
    /// The algorithm of a digest, for request digests, signatures and the answers to challenges.
    DigestAlgorithm(u8) {
        /// MD5, framed as a counted string, as in versions below 2.1.
        OLD_MD5 = 0, "old MD5";
        /// MD5, 16 bytes.
        MD5 = 1, "MD5";
        /// SHA-1, 20 bytes.
        SHA1 = 2, "SHA1";
        /// SHA-256, 32 bytes.
        SHA256 = 3, "SHA-256";
        /// HMAC over SHA-1.
        HMAC_SHA1 = 0x12, "HMAC-SHA1";
        /// HMAC over SHA-256.
        HMAC_SHA256 = 0x13, "HMAC-SHA256";
        /// HMAC over SHA-1 with a key derived by PBKDF2.
        PBKDF2_HMAC_SHA1 = 0x22, "PBKDF2-HMAC-SHA1";
    }
}

open_code! {
    /// How the two sides agree on the key of a session. RFC 3652 section 3.8, with deployed
    /// numbers.
    KeyExchangeMode(u16) {
        /// No key.
        NONE = 0, "none";
        /// The server encrypts a key with the client's RSA key.
        CLIENT_KEY = 1, "client key";
        /// The client encrypts a key with the server's RSA key.
        SERVER_KEY = 2, "server key";
        /// The server encrypts a key with an RSA key that a handle value holds.
        HANDLE_KEY = 3, "handle key";
        /// Diffie-Hellman, the only mode that deployed software completes.
        DIFFIE_HELLMAN = 4, "Diffie-Hellman";
    }
}

open_code! {
    /// The cipher of the messages in a session.
    Cipher(i32) {
        /// DES.
        DES = 1, "DES";
        /// Triple DES.
        DESEDE = 2, "DESede";
        /// AES with 128 bits.
        AES = 3, "AES";
    }
}

/// Flags of a header. RFC 3652 section 2.2.2.3, three deployed extensions, and one of this
/// software.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct OpFlags(pub u32);

impl OpFlags {
    /// AT: ask a primary site, bypassing caches. In a response: sent by a primary site.
    pub const AUTHORITATIVE: Self = Self(0x8000_0000);
    /// CT: sign the response.
    pub const CERTIFY: Self = Self(0x4000_0000);
    /// ENC: encrypt the response.
    pub const ENCRYPT: Self = Self(0x2000_0000);
    /// REC: the server may resolve the handle at other services. Set in all responses, without
    /// meaning.
    pub const RECURSIVE: Self = Self(0x1000_0000);
    /// CA: caches should verify and sign.
    pub const CACHE_CERTIFY: Self = Self(0x0800_0000);
    /// CN: more messages follow for this request.
    pub const CONTINUOUS: Self = Self(0x0400_0000);
    /// KC: keep the connection open.
    pub const KEEP_CONNECTION: Self = Self(0x0200_0000);
    /// PO: only publicly readable values.
    pub const PUBLIC_ONLY: Self = Self(0x0100_0000);
    /// RD: put the digest of the request into the response.
    pub const REQUEST_DIGEST: Self = Self(0x0080_0000);
    /// Extension: overwrite existing values.
    pub const OVERWRITE: Self = Self(0x0040_0000);
    /// Extension: let the server complete the name.
    pub const MINT_SUFFIX: Self = Self(0x0020_0000);
    /// Extension: no prefix referral.
    pub const DO_NOT_REFER: Self = Self(0x0010_0000);
    /// Extension of this software: put the transaction of a change into the response.
    pub const SHOW_TRANSACTION: Self = Self(0x0008_0000);

    /// Every flag of deployed software, with the name that tools print.
    pub const KNOWN: [(Self, &'static str); 12] = [
        (Self::AUTHORITATIVE, "authoritative"),
        (Self::CERTIFY, "certify"),
        (Self::ENCRYPT, "encrypt"),
        (Self::RECURSIVE, "recursive"),
        (Self::CACHE_CERTIFY, "cache_certify"),
        (Self::CONTINUOUS, "continuous"),
        (Self::KEEP_CONNECTION, "keep_alive"),
        (Self::PUBLIC_ONLY, "public_only"),
        (Self::REQUEST_DIGEST, "return_request_digest"),
        (Self::OVERWRITE, "overwrite_when_exists"),
        (Self::MINT_SUFFIX, "mint_new_suffix"),
        (Self::DO_NOT_REFER, "do_not_refer"),
    ];

    /// The flags of a client without special requests.
    pub const PLAIN_REQUEST: Self = Self(Self::RECURSIVE.0 | Self::CACHE_CERTIFY.0 | Self::PUBLIC_ONLY.0);

    /// Whether all bits of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags with the bits of `flags` set.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These flags with the bits of `flags` cleared.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl fmt::Debug for OpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)?;
        for (flag, name) in Self::KNOWN {
            if self.has(flag) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// A protocol version. Ordered by age: deployed senders that announce 5.x rank lowest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// Always 2, except in deployed mistakes.
    pub major: u8,
    /// The number that distinguishes features.
    pub minor: u8,
}

impl Version {
    /// The version of this implementation.
    pub const CURRENT: Self = Self::new(2, 11);
    /// Assumed for a server whose site record is not known, and written in replies to unreadable
    /// messages.
    pub const COMPATIBLE: Self = Self::new(2, 3);
    /// Lowest version in which digests and challenges have their current form.
    pub const LOWEST: Self = Self::new(2, 1);

    /// Makes a version from its parts.
    #[must_use]
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor }
    }

    /// A number that grows with the version; 5.x is lowest.
    const fn rank(self) -> u32 {
        let major = if self.major == 5 { 0 } else { self.major as u32 + 1 };
        major << 8 | self.minor as u32
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The part of a handle that determines the server of a site. RFC 3652 section 3.1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HashOption {
    /// The part before the first slash.
    Prefix = 0,
    /// The part after the first slash.
    Suffix = 1,
    /// The whole handle.
    Handle = 2,
}

impl HashOption {
    /// The option with this number; `None` for an undefined number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Prefix),
            1 => Some(Self::Suffix),
            2 => Some(Self::Handle),
            _ => None,
        }
    }
}
