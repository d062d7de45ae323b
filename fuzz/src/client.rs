//! The client side: references, bootstrap files, lookups with arbitrary answers, signed values.

use handle_auth::PublicKey;
use handle_client::bootstrap::{Overrides, Root, read_site};
use handle_client::lookup::{Client, Lookup, LookupLimits, LookupOptions};
use handle_client::reference::{HandleReference, PROXY, ReferenceRules, canonical, charset, url};
use handle_client::service::SITES_MAX;
use handle_client::signature::{Certificate, Claims, Jws};
use handle_client::{ClockReading, Question};
use handle_proto::data::site::{Address, Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::wire::fragment::cut;
use handle_proto::wire::{Envelope, Header, Message, put};
use handle_proto::{Handle, OpFlags, ResponseCode};
use std::net::IpAddr;
use std::sync::Arc;

/// A text that parses as a reference prints in two forms that parse as the same handle and nothing
/// else.
pub fn reference(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut rules = ReferenceRules::typed();
    for (lenient, encoding) in [(false, None), (true, charset("latin1"))] {
        (rules.lenient, rules.charset) = (lenient, encoding);
        read_back(&text, &rules);
    }
    read_back(&text, &ReferenceRules::proxy());
}

fn read_back(text: &str, rules: &ReferenceRules) {
    let Ok(read) = HandleReference::parse(text, rules) else { return };
    assert!(!read.handle.is_empty());
    for printed in [canonical(&read.handle), url(&read.handle, PROXY)] {
        let again =
            HandleReference::parse(&printed, &ReferenceRules::typed()).expect("the printed reference parses");
        assert_eq!(again.handle, read.handle, "{printed}");
        assert!(again.indexes.is_empty() && again.types.is_empty() && again.options.is_empty());
        assert!(again.fragment.is_none() && again.server.is_none());
    }
}

/// A bootstrap file, a file of prefixes with a service, or a site that can be read has a limited
/// number of sites, each once, with a server for every handle.
pub fn bootstrap(bytes: &[u8]) {
    if let Ok(root) = Root::read(bytes) {
        assert!((1..=SITES_MAX).contains(&root.sites.len()));
        for (at, site) in root.sites.iter().enumerate() {
            assert!(site.view().server_at(Handle(b"10.1045/x")).is_some());
            assert!(root.sites[..at].iter().all(|other| other.as_bytes() != site.as_bytes()));
        }
    }
    let mut overrides = Overrides::default();
    if overrides.add_local_info(bytes).is_ok() {
        let sites = overrides.sites_for(Handle(b"10.1045/x"), true);
        assert!(sites.is_none_or(|sites| !sites.is_empty()));
    }
    if let Ok(site) = read_site(bytes) {
        assert_eq!(SiteBuf::from_bytes(site.as_bytes().to_vec()).expect("a site"), site);
    }
}

/// Makes a service of one server over all protocols except HTTPS, with an address of each family,
/// and one with only a host name. The private half of the key is not used.
fn root(key: &[u8]) -> Root {
    let site = |address: Address| {
        let mut site = SiteBuilder::new();
        let interfaces = [InterfaceProtocol::UDP, InterfaceProtocol::TCP, InterfaceProtocol::HTTP]
            .map(|protocol| Interface::new(InterfaceKind::BOTH, protocol, 2641));
        site.server(ServerBuilder {
            id: 1,
            address,
            public_key: key.to_vec(),
            interfaces: interfaces.to_vec(),
        });
        site
    };
    let mut both = site(IpAddr::from([192, 0, 2, 1]).into());
    both.attribute("alt_addr", "2001:db8::1");
    let mut named = site(Address::UNSPECIFIED);
    named.attribute("domain", "hdl.example").attribute("path", "/handles");
    Root::of_sites([both.build(), named.build()])
}

/// Maximum number of requests of a lookup.
const REQUESTS_MAX: usize = 32;

/// Every lookup ends within its limits, and one that requires signatures never ends with an answer.
///
/// Input: answers, each after its length in two bytes, big-endian; `reply` documents the first
/// byte.
pub fn lookup(bytes: &[u8]) {
    let key = public_key();
    for certified in [false, true] {
        let mut client = Client::new(root(&key));
        client.limits =
            LookupLimits { requests_max: REQUESTS_MAX, timeout_ms: 30_000, ..LookupLimits::default() };
        client.timeout.tcp_ms = 2_000;
        let mut question = Question::all(b"10.1045/july95-arms");
        question.wants.certified = certified;
        let options = LookupOptions { aliases_max: 3, trace: true, ..LookupOptions::default() };
        let begin = ClockReading { ms: 0, unix_s: 1_700_000_000 };
        let mut count = 0;
        let random = Box::new(move || {
            count += 1_000_003;
            count
        });
        let mut lookup = Lookup::new(Arc::new(client), question, options, random, begin);
        let outcome = feed(&mut lookup, bytes, begin);
        assert!(lookup.requests_count() <= REQUESTS_MAX);
        assert!(!certified || outcome.is_err(), "an unsigned answer was accepted");
        for event in lookup.events() {
            assert!(event.at_ms <= 30_000 && !event.to_string().is_empty());
        }
    }
}

fn feed(
    lookup: &mut Lookup,
    mut bytes: &[u8],
    mut now: ClockReading,
) -> Result<handle_client::LookupAnswer, handle_client::LookupError> {
    loop {
        if let Some(outcome) = lookup.take_outcome() {
            return outcome;
        }
        if let Some((number, _)) = lookup.poll_name() {
            // Four bytes of the input make an address; without an answer, time passes.
            if let Some(answer) = take(&mut bytes) {
                let addresses = answer.chunks_exact(4).map(|ip| [ip[0], ip[1], ip[2], ip[3]].into());
                lookup.handle_addresses(now, number, &addresses.collect::<Vec<IpAddr>>());
            }
            continue;
        }
        if let Some((number, transmit)) = lookup.poll_transmit(now) {
            let answer = take(&mut bytes);
            let request: Vec<u8> = transmit.datagrams.concat();
            match answer {
                Some(answer) if transmit.target.protocol == InterfaceProtocol::HTTP => {
                    let head_len = request
                        .windows(4)
                        .position(|four| four == b"\r\n\r\n")
                        .expect("the request has a head");
                    let message = reply(&request[head_len + 4..], answer).concat();
                    // With bit 6 the head comes from the input, too.
                    if answer.first().is_none_or(|choice| choice & 0x40 == 0) {
                        lookup.handle_stream(now, number, b"HTTP/1.1 200 OK\r\n\r\n");
                    }
                    lookup.handle_stream(now, number, &message);
                }
                Some(answer) if transmit.target.protocol == InterfaceProtocol::UDP => {
                    for datagram in reply(&request, answer) {
                        lookup.handle_datagram(now, number, &datagram);
                    }
                }
                Some(answer) => lookup.handle_stream(now, number, &reply(&request, answer).concat()),
                None => {}
            }
            continue;
        }
        if let Some(deadline_ms) = lookup.poll_timeout() {
            now.ms = now.ms.max(deadline_ms);
            lookup.handle_timeout(now);
        }
    }
}

/// Splits off two bytes of length, and up to that many bytes.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let ([high, low], rest) = bytes.split_first_chunk()?;
    let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
    let (taken, rest) = rest.split_at(len);
    *bytes = rest;
    Some(taken)
}

/// Makes a reply from `answer`. The lower three bits of its first byte choose the response code.
/// Bit 3 puts the handle of the request before the body, as in real answers; bit 4 adds a request
/// digest. With bit 5 the rest of the bytes is the message, except for the request id; with bit 6
/// including it. Long replies are sent in fragments.
fn reply(request: &[u8], answer: &[u8]) -> Vec<Vec<u8>> {
    const CODES: [ResponseCode; 8] = [
        ResponseCode::SUCCESS,
        ResponseCode::PREFIX_REFERRAL,
        ResponseCode::SERVICE_REFERRAL,
        ResponseCode::HANDLE_NOT_FOUND,
        ResponseCode::ERROR,
        ResponseCode::AUTHENTICATION_NEEDED,
        ResponseCode::SERVER_NOT_RESPONSIBLE,
        ResponseCode::VALUES_NOT_FOUND,
    ];
    let Some((&choice, rest)) = answer.split_first() else { return vec![] };
    if choice & 0x20 != 0 {
        let mut message = rest.to_vec();
        if choice & 0x40 == 0
            && let (Some(id), Some(request_id)) = (message.get_mut(8..12), request.get(8..12))
        {
            id.copy_from_slice(request_id);
        }
        return vec![message];
    }
    let (Ok((envelope, data)), code) = (Envelope::split(request), CODES[usize::from(choice & 7)]) else {
        return vec![];
    };
    // These requests fit into one datagram.
    let Ok(message) = Message::decode(data) else { return vec![] };
    let mut body = vec![];
    let mut flags = message.header.flags.without(OpFlags::REQUEST_DIGEST);
    if choice & 0x10 != 0 {
        let digest = handle_auth::challenge::request_digest(envelope.version, message.covered);
        body.push(3);
        body.extend_from_slice(&digest);
        flags = flags.with(OpFlags::REQUEST_DIGEST);
    }
    if choice & 8 != 0 {
        let handle_len =
            message.body.get(..4).map_or(0, |len| u32::from_be_bytes(len.try_into().expect("four bytes")));
        put::string(&mut body, message.body.get(4..4 + handle_len as usize).unwrap_or_default());
    }
    body.extend_from_slice(rest);
    let body_len = u32::try_from(body.len()).expect("an input is short");
    let header = Header { response_code: code, flags, expiration: u32::MAX, body_len, ..message.header };
    let mut message = header.to_bytes().to_vec();
    message.extend_from_slice(&body);
    message.extend_from_slice(&[0; 4]);
    let message_len = u32::try_from(message.len()).expect("an input is short");
    let envelope = Envelope { message_len, ..envelope };
    cut(&envelope).map(|fragment| [&fragment.envelope, &message[fragment.range]].concat()).collect()
}

/// Returns the record of a public key of a usual size, whose private half is unknown.
fn public_key() -> Vec<u8> {
    use handle_proto::data::PublicKey;
    use handle_proto::data::key::Number;
    PublicKey::Rsa { e: Number::new(&[1, 0, 1]), n: Number::new(&[0xc5; 256]) }.to_bytes()
}

/// A signed value does not verify with an invented key, and always reads the same.
///
/// Input: the data of a signed value.
pub fn jws(bytes: &[u8]) {
    let Ok(jws) = Jws::parse(bytes) else { return };
    assert_eq!(Jws::parse(bytes).as_ref(), Ok(&jws));
    let key = PublicKey::from_record(&public_key()).expect("a key");
    assert!(jws.verify(&key).is_err());
    if let Ok(claims) = Claims::read(jws.payload()) {
        let always = claims.not_before.is_none() && claims.expires.is_none();
        assert!(!always || (claims.counts_at(0) && claims.counts_at(u32::MAX)));
    }
    if let Ok(certificate) = Certificate::read(jws.payload()) {
        let permits = certificate.permits(Handle(b"10.1045/x"));
        assert!(!permits || !certificate.permissions.is_empty());
    }
}
