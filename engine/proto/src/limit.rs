//! Every limit of the protocol, by name, with its unit and its source.

/// Port registered for the protocol, TCP and UDP.
pub const PORT: u16 = 2641;
/// Media type of a message over HTTP.
pub const MEDIA_TYPE: &str = "application/x-hdl-message";

/// Most bytes of a message after its envelope. Deployed servers refuse more.
pub const MESSAGE_LEN_MAX: u32 = 262_144;
/// Most bytes of one message in one UDP datagram, envelope included.
///
/// RFC 3652 section 2.1.2, which does not count the IP and UDP headers.
pub const UDP_MESSAGE_LEN_MAX: usize = 512;
/// Most bytes of a message after the envelope in one datagram. Every fragment but the last has this
/// many.
pub const UDP_DATA_LEN_MAX: usize = UDP_MESSAGE_LEN_MAX - crate::wire::Envelope::LEN;
/// Most fragments of a message.
pub const FRAGMENTS_MAX: usize = (MESSAGE_LEN_MAX as usize).div_ceil(UDP_DATA_LEN_MAX);

/// Most items in any counted list. Deployed decoders refuse more.
pub const LIST_COUNT_MAX: usize = 1_048_576;
/// Most values in a response (resolution and referral). Deployed clients refuse more.
pub const VALUES_COUNT_MAX: usize = 2048;
/// Most comparisons of the lists of a query with the values of a record, one by one: the number of
/// indexes and types, times the number of values. They take about 50 microseconds; for more, the
/// lists are sorted first.
pub const QUERY_COMPARISONS_MAX: usize = 1 << 13;
/// Most bytes of a handle in a response, and of a handle that may be created.
pub const HANDLE_LEN_MAX: usize = 2048;
/// Bytes of a message that are reserved for everything but values: message header, digest, longest
/// handle, signature.
pub const MESSAGE_OVERHEAD_LEN: usize = 4096;
/// Most bytes of all values of a record together, in wire form, so that one message can carry them.
/// A longer record is neither stored nor published.
pub const VALUES_LEN_MAX: usize = MESSAGE_LEN_MAX as usize - MESSAGE_OVERHEAD_LEN;
/// Most references in one stored value.
pub const REFERENCES_COUNT_MAX: usize = 1024;
/// Most references followed while expanding HS_VLIST groups.
pub const VLIST_EXPANSION_MAX: usize = 1000;

/// Bytes of a challenge nonce as deployed. RFC 3652 section 3.5.1 asks for 20.
pub const NONCE_LEN: usize = 16;
/// TTL of a value without an explicit one, in seconds.
pub const TTL_DEFAULT_S: i32 = 86_400;
/// Longest time for which a cache keeps a value, in seconds.
pub const TTL_MAX_S: i32 = 172_800;
/// Time after which a message expires, in seconds from now.
pub const MESSAGE_EXPIRATION_S: u32 = 43_200;
/// Idle time after which a session ends unless the client requests another, in seconds.
pub const SESSION_TIMEOUT_DEFAULT_S: u32 = 86_400;
/// Message counters kept for a session, against replay.
pub const SESSION_COUNTER_WINDOW: usize = 200;
/// Names in one message of a listing.
pub const LIST_PAGE_COUNT: usize = 50;

/// Most servers that a request may have passed through when a server asks others about it.
pub const SERVER_RECURSION_MAX: u8 = 10;
/// Most indirections a client makes for one request.
pub const CLIENT_INDIRECTION_MAX: u8 = 40;
/// Deepest nesting of HS_SERV references.
pub const SERVICE_NESTING_MAX: usize = 20;
/// Deepest nesting of template references.
pub const TEMPLATE_NESTING_MAX: usize = 10;
/// Longest chain of certificates.
pub const CERTIFICATE_CHAIN_MAX: usize = 50;

/// Waits of a client before each retransmission of a datagram and before it gives up, in
/// milliseconds.
pub const UDP_RETRY_MS: [u32; 3] = [500, 1000, 1500];
/// Wait of a client for a connection or an answer over TCP, in milliseconds.
pub const TCP_TIMEOUT_MS: u32 = 60_000;
/// Idle time after which a server closes a connection, in milliseconds.
pub const TCP_IDLE_TIMEOUT_MS: u32 = 300_000;
/// Wait for the missing fragments of a message, in milliseconds.
pub const UDP_REASSEMBLY_MS: u32 = 5_000;
/// Head start of IPv6 over IPv4 when both are tried, in milliseconds.
pub const IPV4_DELAY_MS: u32 = 300;

/// Default number of PBKDF2 rounds.
pub const PBKDF2_ITERATIONS: u32 = 10_000;
/// Most PBKDF2 rounds that are accepted; the sender chooses the cost.
pub const PBKDF2_ITERATIONS_MAX: u32 = 1_000_000;
/// Default number of PBKDF2 salt bytes.
pub const PBKDF2_SALT_LEN: usize = 16;
/// Default number of PBKDF2 key bits in answers to challenges.
pub const PBKDF2_KEY_BITS: u32 = 160;
/// Most PBKDF2 key bits that are accepted.
pub const PBKDF2_KEY_BITS_MAX: u32 = 512;
/// Smallest accepted Diffie-Hellman modulus, in bits.
pub const DH_MODULUS_BITS_MIN: u32 = 512;
/// Largest accepted Diffie-Hellman modulus, in bits.
pub const DH_MODULUS_BITS_MAX: u32 = 8192;
/// Milliseconds by which the clock of another machine may be ahead of one's own. A later time of
/// another machine is not believed: clocks that are kept by NTP differ by milliseconds, so one that
/// is a minute ahead is wrong, and it is not known by how much.
pub const CLOCK_AHEAD_MS_MAX: u64 = 60_000;
