//! A world of services for tests: servers that answer correctly, or fail in various ways. No
//! sockets, no real time.

mod sessions;

use crate::exchange::{AttemptError, Transmit};
use crate::lookup::{Client, Lookup, LookupError, LookupOptions};
use crate::service::ServiceSites;
use crate::testing::{private_key, public_record};
use crate::{ClockReading, LookupAnswer, Question};
use handle_auth::PrivateKey;
use handle_auth::challenge::{request_digest, verify_secret};
use handle_auth::message::sign_message;
use handle_proto::data::kind;
use handle_proto::data::site::{InterfaceProtocol, SiteBuf};
use handle_proto::wire::auth::{Challenge, SecretAnswer};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::Values;
use handle_proto::wire::message::Body;
use handle_proto::wire::query::{Query, QueryAnswer as WireAnswer};
use handle_proto::wire::referral::Referral;
use handle_proto::wire::session::SessionSetup;
use handle_proto::wire::{Credential, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode, Value, ValueBuf, fold};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

/// The time at which the world begins.
pub(crate) const BEGIN: ClockReading = ClockReading { ms: 1_000, unix_s: 1_700_000_000 };

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorldFault {
    /// No answer.
    Silent,
    /// Connections are refused.
    Gone,
    /// The connection ends; over datagrams there is no answer.
    Ends,
    Code(ResponseCode),
    /// Random bytes.
    Garbage,
    /// The answer is to another request.
    OtherId,
    /// The answer is about another handle.
    OtherHandle,
    /// The answer has the digest of another request.
    OtherDigest,
    /// The answer has no digest.
    NoDigest,
    /// The answer has expired.
    Expired,
    /// The answer has another value, and no signature.
    Unsigned,
    /// The answer is signed with another key.
    OtherKey,
    /// The answer was changed after it was signed.
    Changed,
    /// The request itself comes back.
    Echo,
    /// The answer refers to a service that does not exist.
    Refers,
    /// The answer refers to the server itself.
    RefersToItself,
}

/// Faults that make a site useless for clients that want signed answers, and have no other effect.
pub(crate) const SITE_FAULTS: [WorldFault; 16] = [
    WorldFault::Silent,
    WorldFault::Gone,
    WorldFault::Ends,
    WorldFault::Code(ResponseCode::ERROR),
    WorldFault::Code(ResponseCode::SERVER_BUSY),
    WorldFault::Code(ResponseCode::SERVER_NOT_RESPONSIBLE),
    WorldFault::Garbage,
    WorldFault::OtherId,
    WorldFault::OtherHandle,
    WorldFault::OtherDigest,
    WorldFault::NoDigest,
    WorldFault::Expired,
    WorldFault::Unsigned,
    WorldFault::OtherKey,
    WorldFault::Changed,
    WorldFault::Echo,
];

/// A service: its records, and the referral that it sends.
#[derive(Default)]
pub(crate) struct WorldService {
    pub(crate) sites: Vec<SiteBuf>,
    pub(crate) records: HashMap<Vec<u8>, Vec<ValueBuf>>,
    /// Values of a service referral for every handle that it does not have.
    pub(crate) refers_to: Option<Vec<ValueBuf>>,
    /// The secret that gives access to values that are not public.
    pub(crate) secret: Option<Vec<u8>>,
    /// The code of the answer to clients that have proved to have the secret.
    pub(crate) denies: Option<ResponseCode>,
}

/// Services, and the behaviour of their servers.
#[derive(Default)]
pub(crate) struct SimulatedWorld {
    pub(crate) services: Vec<WorldService>,
    pub(crate) faults: HashMap<SocketAddr, WorldFault>,
    /// Servers that are silent over UDP only.
    pub(crate) no_datagrams: Vec<SocketAddr>,
    pub(crate) delay_ms: HashMap<SocketAddr, u64>,
    /// Addresses by name.
    pub(crate) names: HashMap<String, Vec<IpAddr>>,
    /// Names that were looked up.
    pub(crate) named: Vec<String>,
    /// Serial number of all sites in the answers of their servers.
    pub(crate) serial: Option<i16>,
    /// Requests, as address and protocol.
    pub(crate) requests_sent: Vec<String>,
    /// Number of transmissions.
    pub(crate) sent_count: usize,
    /// Number of messages that were answered.
    pub(crate) replied_count: usize,
    /// Requests that wait for the answer to a challenge, by its number.
    challenged: HashMap<i32, Vec<u8>>,
    /// Sessions of all servers.
    pub(crate) sessions: sessions::WorldSessions,
}

/// An answer on its way.
struct PendingReply {
    at_ms: u64,
    number: u64,
    transmit: Transmit,
    content: ReplyContent,
}

/// The content of an answer.
enum ReplyContent {
    Nothing,
    Error(AttemptError),
    Message(Vec<u8>),
}

const NONCE: [u8; 16] = [7; 16];

pub(crate) fn keys() -> &'static [PrivateKey; 2] {
    static KEYS: OnceLock<[PrivateKey; 2]> = OnceLock::new();
    KEYS.get_or_init(|| ["server", "mirror"].map(private_key))
}

pub(crate) fn server_key() -> &'static [u8] {
    static RECORD: OnceLock<Vec<u8>> = OnceLock::new();
    RECORD.get_or_init(|| public_record("server"))
}

/// A value of a record.
pub(crate) fn value(index: i32, kind: &[u8], data: &[u8]) -> ValueBuf {
    ValueBuf::from(&Value::new(index, kind, data))
}

/// A site at 192.0.2.x whose servers sign with the key of the world.
pub(crate) fn signing_site(numbers: &[u8]) -> SiteBuf {
    let mut site = crate::testing::site_of(numbers).edit();
    site.flags = handle_proto::data::site::SiteFlags::PRIMARY;
    site.servers.iter_mut().for_each(|server| server.public_key = server_key().to_vec());
    site.build()
}

impl SimulatedWorld {
    /// Adds a service whose servers are at all addresses of its sites, and returns its number.
    pub(crate) fn service(&mut self, sites: Vec<SiteBuf>) -> usize {
        let mut found = ServiceSites::default();
        sites.into_iter().for_each(|site| found.add(site));
        let sites = found.sites.into_iter().map(Arc::unwrap_or_clone).collect();
        self.services.push(WorldService { sites, ..WorldService::default() });
        self.services.len() - 1
    }

    pub(crate) fn record(&mut self, service: usize, handle: &str, values: Vec<ValueBuf>) {
        self.services[service].records.insert(fold::folded(handle.as_bytes()), values);
    }

    /// Gives the server at 192.0.2.`number` a fault.
    pub(crate) fn fail(&mut self, number: u8, fault: WorldFault) {
        self.faults.insert(([192, 0, 2, number], 2641).into(), fault);
    }

    /// Moves the bytes of a lookup until it has an outcome. Returns the outcome and its time.
    pub(crate) fn run(
        &mut self,
        lookup: &mut Lookup,
        mut now: ClockReading,
    ) -> (Result<LookupAnswer, LookupError>, ClockReading) {
        let mut pending: Vec<PendingReply> = vec![];
        for _ in 0..100_000 {
            if let Some(outcome) = lookup.take_outcome() {
                return (outcome, now);
            }
            if let Some((number, name)) = lookup.poll_name() {
                // Names that the world does not have are not answered.
                if let Some(addresses) = self.names.get(&name) {
                    lookup.handle_addresses(now, number, addresses);
                }
                self.named.push(name);
                continue;
            }
            if let Some((number, transmit)) = lookup.poll_transmit(now) {
                let delay_ms = self.delay_ms.get(&transmit.target.address).copied().unwrap_or(1);
                let content = self.answer(&transmit, now);
                pending.push(PendingReply { at_ms: now.ms + delay_ms, number, transmit, content });
                continue;
            }
            let deadline_ms = lookup.poll_timeout().expect("something is under way");
            let first = pending.iter().enumerate().min_by_key(|(_, pending)| pending.at_ms);
            match first.filter(|(_, pending)| pending.at_ms < deadline_ms).map(|(at, _)| at) {
                Some(at) => {
                    let PendingReply { at_ms, number, transmit, content } = pending.remove(at);
                    now = later(now, at_ms);
                    self.deliver(lookup, number, &transmit, content, now);
                }
                None => {
                    now = later(now, deadline_ms);
                    lookup.handle_timeout(now);
                }
            }
        }
        panic!("the lookup goes on and on");
    }

    fn deliver(
        &self,
        lookup: &mut Lookup,
        number: u64,
        transmit: &Transmit,
        content: ReplyContent,
        now: ClockReading,
    ) {
        match content {
            ReplyContent::Nothing => {}
            ReplyContent::Error(error) => lookup.handle_failure(now, number, error),
            ReplyContent::Message(message) if transmit.target.protocol == InterfaceProtocol::UDP => {
                let Ok((envelope, data)) = Envelope::split(&message) else {
                    return lookup.handle_datagram(now, number, &message);
                };
                // The last one comes first, and the first one twice.
                let mut datagrams: Vec<Vec<u8>> = cut(&envelope)
                    .filter_map(|fragment| Some([&fragment.envelope, data.get(fragment.range)?].concat()))
                    .collect();
                datagrams.reverse();
                datagrams.extend(datagrams.last().cloned());
                datagrams.iter().for_each(|datagram| lookup.handle_datagram(now, number, datagram));
            }
            ReplyContent::Message(mut message) => {
                if transmit.target.protocol == InterfaceProtocol::HTTP {
                    message = self.in_http(&message);
                }
                let (head, rest) = message.split_at(message.len() / 2);
                lookup.handle_stream(now, number, head);
                lookup.handle_stream(now, number, rest);
                if Envelope::split(&message).is_err() {
                    lookup.handle_failure(now, number, AttemptError::Ended);
                }
            }
        }
    }

    /// The message that answers `transmit`.
    pub(crate) fn message(&mut self, transmit: &Transmit, now: ClockReading) -> Vec<u8> {
        match self.answer(transmit, now) {
            ReplyContent::Message(message) => message,
            ReplyContent::Nothing | ReplyContent::Error(_) => panic!("no message comes"),
        }
    }

    /// A message as the body of an HTTP response, each time in another form.
    fn in_http(&self, message: &[u8]) -> Vec<u8> {
        let head = b"HTTP/1.1 200 OK\r\n";
        match self.sent_count % 3 {
            0 => {
                let len = format!("Content-Length: {}\r\n\r\n", message.len());
                [&head[..], len.as_bytes(), message].concat()
            }
            1 => [&head[..], b"\r\n", message].concat(),
            _ => {
                let coding = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", message.len());
                [&head[..], coding.as_bytes(), message, b"\r\n0\r\n\r\n"].concat()
            }
        }
    }

    fn answer(&mut self, transmit: &Transmit, now: ClockReading) -> ReplyContent {
        self.sent_count += 1;
        let address = transmit.target.address;
        if transmit.try_number == 1 {
            let protocol = transmit.target.protocol.name().expect("a name");
            self.requests_sent.push(format!("{}/{protocol}", address.ip()));
        }
        let over_udp = transmit.target.protocol == InterfaceProtocol::UDP;
        let fault = self.faults.get(&address).copied();
        match fault {
            Some(WorldFault::Silent) => return ReplyContent::Nothing,
            Some(WorldFault::Gone) => return ReplyContent::Error(AttemptError::Unreachable),
            Some(WorldFault::Ends) if over_udp => return ReplyContent::Nothing,
            Some(WorldFault::Ends) => return ReplyContent::Error(AttemptError::Ended),
            Some(WorldFault::Garbage) => {
                return ReplyContent::Message(b"nothing that anybody understands".to_vec());
            }
            _ => {}
        }
        if over_udp && self.no_datagrams.contains(&address) {
            return ReplyContent::Nothing;
        }
        let mut datagrams = transmit.datagrams.clone();
        if transmit.target.protocol == InterfaceProtocol::HTTP {
            let head_len = datagrams[0].windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
            datagrams[0].drain(..head_len);
        }
        let mut request = datagrams[0][..Envelope::LEN].to_vec();
        datagrams.iter().for_each(|datagram| request.extend(&datagram[Envelope::LEN..]));
        if fault == Some(WorldFault::Echo) {
            return ReplyContent::Message(request);
        }
        ReplyContent::Message(self.reply(address, &request, fault, now))
    }

    /// The message that a server at `address` sends.
    pub(crate) fn reply(
        &mut self,
        address: SocketAddr,
        request: &[u8],
        fault: Option<WorldFault>,
        now: ClockReading,
    ) -> Vec<u8> {
        self.replied_count += 1;
        let (envelope, data) = Envelope::split(request).expect("an envelope");
        let message = Message::decode(data).expect("a request");
        let Ok(Body::Request(body)) = message.decode_body(envelope.version) else { panic!("no request") };
        if let Request::SessionSetup(setup) = &body {
            return self.set_up(&envelope, &message, setup, now);
        }
        let mut refused = None;
        let (original, proven) = match &body {
            Request::AnswerChallenge(answer) => {
                let original =
                    self.challenged.remove(&envelope.session_id).expect("a challenge that is open");
                let answer = SecretAnswer::decode(answer.signed_response).expect("an answer");
                let digest = request_digest(envelope.answer_version(), &original);
                let covered: [&[u8]; 2] = [&NONCE, &digest];
                let limits = handle_auth::Pbkdf2Limits::DEFAULT;
                let secret = self.services.iter().find_map(|service| service.secret.clone());
                let secret = secret.expect("a secret");
                let proven = verify_secret(envelope.version, &covered, &answer, &secret, &limits).is_ok();
                if proven {
                    self.sessions.authenticate(envelope.session_id);
                }
                (original, proven)
            }
            _ if envelope.session_id != 0 => {
                refused = self.sessions.refuse(&envelope, &message);
                (message.covered.to_vec(), true)
            }
            _ => (message.covered.to_vec(), false),
        };
        let (header, body) = Header::split(&original).expect("a header");
        let Ok(query) = Query::decode(body) else { panic!("no query") };
        let fault = refused.map(WorldFault::Code).or(fault);
        self.reply_to(address, &envelope, &original, &header, &query, proven, fault, now)
    }

    /// The signed answer to a request for a session.
    fn set_up(
        &mut self,
        envelope: &Envelope,
        message: &Message<'_>,
        setup: &SessionSetup<'_>,
        now: ClockReading,
    ) -> Vec<u8> {
        let agreed = self.sessions.set_up(setup);
        let version = envelope.answer_version();
        let digest = request_digest(version, message.covered);
        let algorithm = handle_proto::code::DigestAlgorithm::for_response(version);
        let (code, response) = match &agreed {
            Some((_, data)) => {
                (ResponseCode::SUCCESS, Response::Session(sessions::WorldSessions::answer(data)))
            }
            None => (ResponseCode::SESSION_FAILED, Response::Failure(Failure { message: b"" })),
        };
        let digest = Some(RequestDigest { algorithm, digest: &digest });
        let session_id = agreed.as_ref().map_or(0, |(id, _)| *id);
        let envelope = Envelope { version, session_id, ..*envelope };
        let header = Header { expiration: now.unix_s + 60, response_code: code, ..message.header };
        seal(&envelope, &header, &Reply { code, digest, response }, None)
    }

    /// The code and values of an answer, which some faults change.
    fn answer_values(
        &self,
        address: SocketAddr,
        query: &Query<'_>,
        flags: OpFlags,
        proven: bool,
        fault: Option<WorldFault>,
    ) -> (ResponseCode, Vec<ValueBuf>) {
        match fault {
            Some(WorldFault::Code(code)) => (code, vec![]),
            Some(WorldFault::Refers) => (ResponseCode::SERVICE_REFERRAL, vec![]),
            Some(WorldFault::RefersToItself) => {
                let site = self.site_at(address).expect("a site");
                (ResponseCode::SERVICE_REFERRAL, vec![value(1, b"HS_SITE", site.as_bytes())])
            }
            Some(
                WorldFault::Unsigned | WorldFault::OtherKey | WorldFault::OtherDigest | WorldFault::NoDigest,
            ) => (ResponseCode::SUCCESS, vec![value(1, b"URL", b"a lie")]),
            _ => self.look_up(address, query, flags, proven),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a whole request, taken apart")]
    fn reply_to(
        &mut self,
        address: SocketAddr,
        envelope: &Envelope,
        covered: &[u8],
        header: &Header,
        query: &Query<'_>,
        proven: bool,
        fault: Option<WorldFault>,
        now: ClockReading,
    ) -> Vec<u8> {
        let handle = match fault {
            Some(WorldFault::OtherHandle) => b"another/handle".to_vec(),
            _ => query.handle.to_vec(),
        };
        let (code, values) = self.answer_values(address, query, header.flags, proven, fault);
        let version = envelope.answer_version();
        let digest = match fault {
            Some(WorldFault::OtherDigest) => request_digest(version, b"another request"),
            _ => request_digest(version, covered),
        };
        let digest = RequestDigest {
            algorithm: handle_proto::code::DigestAlgorithm::for_response(version),
            digest: &digest,
        };
        let mut storage = vec![];
        let views: Vec<Value<'_>> = values.iter().map(ValueBuf::view).collect();
        let list = Values::build(views.iter().copied(), &mut storage);
        let response = match code {
            ResponseCode::SUCCESS => Response::Answer(WireAnswer { handle: &handle, values: list }),
            ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL => {
                Response::Referral(Referral { handle: b"", values: Some(list) })
            }
            ResponseCode::AUTHENTICATION_NEEDED => Response::Challenge(Challenge { nonce: &NONCE }),
            _ => Response::Failure(Failure { message: b"" }),
        };
        let wants_digest =
            header.flags.has(OpFlags::REQUEST_DIGEST) || code == ResponseCode::AUTHENTICATION_NEEDED;
        let with_digest = wants_digest && fault != Some(WorldFault::NoDigest);
        let reply = Reply { code, digest: with_digest.then_some(digest), response };
        let session_id = match (code, envelope.session_id) {
            (ResponseCode::AUTHENTICATION_NEEDED, known) => {
                let id = if known == 0 { 77 } else { known };
                self.challenged.insert(id, covered.to_vec());
                id
            }
            (_, 77) => 0,
            (_, known) => known,
        };
        let request_id = match fault {
            Some(WorldFault::OtherId) => envelope.request_id ^ 2,
            _ => envelope.request_id,
        };
        let envelope = Envelope { version, session_id, request_id, ..*envelope };
        let expiration = match fault {
            Some(WorldFault::Expired) => now.unix_s - 1,
            _ => now.unix_s + 60,
        };
        let site_serial = self.serial.unwrap_or(header.site_serial);
        let header = Header { expiration, response_code: code, site_serial, ..*header };
        let sealed = seal(&envelope, &header, &reply, fault);
        self.sessions.seal(&sealed, header.flags.has(OpFlags::CERTIFY)).unwrap_or(sealed)
    }

    fn site_at(&self, address: SocketAddr) -> Option<&SiteBuf> {
        let mut sites = self.services.iter().flat_map(|service| &service.sites);
        sites.find(|site| site.view().servers.iter().any(|server| server.address.ip() == address.ip()))
    }

    /// The answer of a correct server.
    fn look_up(
        &self,
        address: SocketAddr,
        query: &Query<'_>,
        flags: OpFlags,
        proven: bool,
    ) -> (ResponseCode, Vec<ValueBuf>) {
        let has_address =
            |site: &SiteBuf| site.view().servers.iter().position(|at| at.address.ip() == address.ip());
        let found = self.services.iter().find_map(|service| {
            let (site, at) = service.sites.iter().find_map(|site| Some((site, has_address(site)?)))?;
            Some((service, site, at))
        });
        let Some((service, site, at)) = found else { return (ResponseCode::SERVER_NOT_RESPONSIBLE, vec![]) };
        if site.view().server_at(Handle(query.handle)) != Some(at) {
            return (ResponseCode::SERVER_NOT_RESPONSIBLE, vec![]);
        }
        let looked_up = fold::folded(&Handle(query.handle).looked_up());
        let Some(values) = service.records.get(&looked_up) else {
            return service.remote_answer(&looked_up);
        };
        let question = Question {
            indexes: query.indexes.iter().collect(),
            types: query.types.into_iter().map(<[u8]>::to_vec).collect(),
            ..Question::all(query.handle)
        };
        let selected: Vec<ValueBuf> =
            values.iter().filter(|value| question.selects(&value.view())).cloned().collect();
        let public: Vec<_> = selected.iter().filter(|value| value.view().is_public()).cloned().collect();
        if !flags.has(OpFlags::PUBLIC_ONLY) && public.len() < selected.len() {
            return match proven {
                true => service.denies.map_or((ResponseCode::SUCCESS, selected), |code| (code, vec![])),
                false => (ResponseCode::AUTHENTICATION_NEEDED, vec![]),
            };
        }
        match public.is_empty() {
            true => (ResponseCode::VALUES_NOT_FOUND, vec![]),
            false => (ResponseCode::SUCCESS, public),
        }
    }
}

impl WorldService {
    /// The answer for a handle that is not here.
    fn remote_answer(&self, handle: &[u8]) -> (ResponseCode, Vec<ValueBuf>) {
        let delegates = |value: &&ValueBuf| {
            [kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE, kind::HS_SERV_PREFIX].contains(&value.view().kind)
        };
        let mut name = Handle(handle);
        while let Some(parent) = name.parent_prefix_record() {
            let values = self.records.get(parent.0).map(Vec::as_slice).unwrap_or_default();
            let delegation: Vec<_> = values.iter().filter(delegates).cloned().collect();
            if !delegation.is_empty() {
                return (ResponseCode::PREFIX_REFERRAL, delegation);
            }
            name = parent;
        }
        match &self.refers_to {
            Some(values) => (ResponseCode::SERVICE_REFERRAL, values.clone()),
            None => (ResponseCode::HANDLE_NOT_FOUND, vec![]),
        }
    }
}

/// Signs a reply if that was requested, and applies the fault.
fn seal(envelope: &Envelope, header: &Header, reply: &Reply<'_>, fault: Option<WorldFault>) -> Vec<u8> {
    let message = MessageBuf::reply(envelope, header, reply);
    let is_signed = header.flags.has(OpFlags::CERTIFY) && fault != Some(WorldFault::Unsigned);
    if !is_signed {
        return message.unsigned().expect("short enough");
    }
    let key = &keys()[usize::from(fault == Some(WorldFault::OtherKey))];
    let credential = sign_message(envelope, 0, message.covered(), key).expect("a signature");
    let mut bytes =
        message.signed(&Credential::decode(&credential).expect("a credential")).expect("short enough");
    if fault == Some(WorldFault::Changed) {
        // The last byte of the body's expiration: the message still decodes, and has not expired.
        bytes[Envelope::LEN + 19] ^= 1;
    }
    bytes
}

pub(crate) fn later(now: ClockReading, ms: u64) -> ClockReading {
    let passed_s = u32::try_from((ms.max(now.ms) - BEGIN.ms) / 1000).expect("not so long");
    ClockReading { ms: ms.max(now.ms), unix_s: BEGIN.unix_s + passed_s }
}

/// Reproducible random numbers.
pub(crate) fn dice(seed: u64) -> crate::RandomSource {
    let mut state = seed;
    Box::new(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).expect("32 bits")
    })
}

/// Asks a question in a world.
pub(crate) fn ask(
    world: &mut SimulatedWorld,
    client: &Arc<Client>,
    question: &Question,
    options: &LookupOptions,
) -> Result<LookupAnswer, LookupError> {
    let mut lookup = Lookup::new(Arc::clone(client), question.clone(), options.clone(), dice(1), BEGIN);
    world.run(&mut lookup, BEGIN).0
}
