//! Why bytes do not decode. The error is cheap to make, because a hostile sender decides how often
//! it occurs.

use core::fmt;

/// Why bytes do not decode, with the offset of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ended inside `field`, or its length or count cannot fit in the input.
    Truncated {
        /// The field being read.
        field: Field,
        /// Offset of the field in the bytes given to the decoder.
        at: u32,
    },
    /// `field` is longer, or has more items, than the protocol allows.
    TooLong {
        /// The field being read.
        field: Field,
        /// Offset of the field in the bytes given to the decoder.
        at: u32,
    },
    /// `field` has an invalid content.
    Invalid {
        /// The field being read.
        field: Field,
        /// Offset of the field in the bytes given to the decoder.
        at: u32,
    },
    /// Bytes follow where `field` must be the last.
    Trailing {
        /// The field being read.
        field: Field,
        /// Offset of the first excess byte.
        at: u32,
    },
}
const _: () = assert!(size_of::<DecodeError>() <= 8, "fits in one word");

impl DecodeError {
    /// The field in which decoding stopped.
    #[must_use]
    pub const fn field(self) -> Field {
        match self {
            Self::Truncated { field, .. }
            | Self::TooLong { field, .. }
            | Self::Invalid { field, .. }
            | Self::Trailing { field, .. } => field,
        }
    }

    /// The same error for bytes that begin `by` bytes earlier.
    #[must_use]
    pub fn moved_by(mut self, by: usize) -> Self {
        let (Self::Truncated { at, .. }
        | Self::TooLong { at, .. }
        | Self::Invalid { at, .. }
        | Self::Trailing { at, .. }) = &mut self;
        *at = at.saturating_add(u32::try_from(by).unwrap_or(u32::MAX));
        self
    }

    /// The offset at which decoding stopped.
    #[must_use]
    pub const fn at(self) -> usize {
        match self {
            Self::Truncated { at, .. }
            | Self::TooLong { at, .. }
            | Self::Invalid { at, .. }
            | Self::Trailing { at, .. } => at as usize,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, at) = (self.field(), self.at());
        match self {
            Self::Truncated { .. } => write!(f, "{field} at byte {at} is cut short"),
            Self::TooLong { .. } => write!(f, "{field} at byte {at} is longer than allowed"),
            Self::Invalid { .. } => write!(f, "{field} at byte {at} is not valid"),
            Self::Trailing { .. } => write!(f, "bytes follow {field} at byte {at}"),
        }
    }
}

impl core::error::Error for DecodeError {}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The field that a decoder was reading when it stopped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Field { $($(#[$doc])* $name,)* }

        impl fmt::Display for Field {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

fields! {
    /// The 20 bytes before a message.
    Envelope = "envelope",
    /// The message length in an envelope.
    MessageLength = "message length",
    /// The 24 bytes before a body.
    Header = "header",
    /// The body length in a header.
    BodyLength = "body length",
    /// The body as a whole.
    Body = "body",
    /// The request digest before a response body.
    Digest = "request digest",
    /// A handle.
    Handle = "handle",
    /// A list of value indexes.
    Indexes = "index list",
    /// A list of value types.
    Types = "type list",
    /// A list of handles.
    Handles = "handle list",
    /// The conditions in front of the body of a change.
    Guard = "guard",
    /// A list of values.
    Values = "value list",
    /// A value as a whole.
    Value = "value",
    /// The type of a value.
    Type = "type",
    /// The data of a value.
    Data = "data",
    /// The references of a value.
    References = "references",
    /// The text of an error response.
    ErrorMessage = "error message",
    /// The credential of a message.
    Credential = "credential",
    /// The nonce of a challenge.
    Nonce = "nonce",
    /// The answer to a challenge.
    Answer = "challenge answer",
    /// A session set-up or its answer.
    Session = "session set-up",
    /// A key record.
    Key = "key",
    /// A replication request.
    Replication = "replication request",
    /// A stream of transactions or records.
    ReplicationStream = "replication stream",
    /// The administrator record HS_ADMIN.
    Admin = "HS_ADMIN",
    /// The site record HS_SITE.
    Site = "HS_SITE",
    /// A server inside a site record.
    Server = "server of a site",
    /// The administrator group HS_VLIST.
    Vlist = "HS_VLIST",
    /// The number of a fragment.
    Fragment = "fragment",
    /// The operation code.
    OpCode = "operation code",
    /// The response code.
    ResponseCode = "response code",
    /// A private key file.
    KeyFile = "key file",
}
