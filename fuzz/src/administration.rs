//! The administration process as a state machine: requests, challenges, proofs, and their changes.

use arbitrary::{Arbitrary, Unstructured};
use handle_admin::audit::Audit;
use handle_admin::config::Config;
use handle_admin::operation::OperationRules;
use handle_admin::service::reply::ReplySealer;
use handle_admin::service::{ActiveRules, AdminService, Authenticator, DecisionContext, ReceivedMessage};
use handle_auth::challenge::answer_with_secret;
use handle_auth::challenges::Challenges;
use handle_auth::source::SourceList;
use handle_daemon::site::SiteRecord;
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode, Value, Values, Version};
use handle_store::Store;
use std::net::SocketAddr;
use std::sync::Arc;

/// Names that requests use; some are equal when folded, some do not exist.
const HANDLES: [&[u8]; 8] =
    [b"10.1/a", b"10.1/A", b"10.1/b", b"0.NA/10.1", b"0.NA/10.1.2", b"10.2/x", b"10.1", b"\xff/"];
/// Identities: an administrator of everything, one of a single handle, and one without rights.
const IDENTITIES: [Reference<'_>; 3] = [
    Reference { handle: b"10.1/admin", index: 1 },
    Reference { handle: b"10.1/admin", index: 2 },
    Reference { handle: b"10.1/nobody", index: 1 },
];
const SECRETS: [&[u8]; 2] = [b"one secret", b"another"];
const STEPS_MAX: usize = 40;
const SITE: &str = r#"{"version":1,"protocolVersion":"2.11","serialNumber":1,"primarySite":true,
    "servers":[{"serverId":1,"address":"127.0.0.1","interfaces":[]}]}"#;

#[derive(Arbitrary, Debug)]
struct ValueSpec {
    index: u8,
    permissions: u8,
    kind: u8,
    data: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum OperationSpec {
    Create(Vec<ValueSpec>),
    Add(Vec<ValueSpec>),
    Modify(Vec<ValueSpec>),
    Remove(Vec<u8>),
    Delete,
    List,
    ListHomed,
    Home,
    Unhome,
    Resolve(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A client sends a request.
    Request { handle: u8, flags: u8, minor: u8, operation: OperationSpec },
    /// A client answers one of the last challenges, perhaps repeatedly. Sometimes the answer covers
    /// another challenge or uses the secret of another identity.
    Answer { back: u8, crossed: u8, identity: u8, wrong_secret: u8 },
    /// Arbitrary bytes.
    Noise(Vec<u8>),
}

/// A challenge as a client keeps it.
struct ChallengeSpec {
    id: i32,
    version: Version,
    nonce: Vec<u8>,
    digest: Vec<u8>,
    is_answered: bool,
}

/// A service with one prefix, its record, an administrator of it and one of `10.1/b`.
fn service() -> Arc<AdminService> {
    let config = Config::default();
    let store = Store::in_memory(&config.store, true).expect("the store opens in memory");
    store.home(b"10.1").expect("the store accepts the change");
    store
        .change(|transaction| {
            let (mut all, mut one) = (Vec::new(), Vec::new());
            Admin { permissions: AdminPermissions::ALL, reference: IDENTITIES[0], legacy: None }
                .encode(&mut all);
            Admin { permissions: AdminPermissions::ALL, reference: IDENTITIES[1], legacy: None }
                .encode(&mut one);
            let secret = |index, data| Value {
                permissions: Permissions::ADMIN_READ,
                ..Value::new(index, b"HS_SECKEY", data)
            };
            let mut buffer = Vec::new();
            let keys = [secret(1, SECRETS[0]), secret(2, SECRETS[1])];
            transaction.put(b"10.1/ADMIN", Values::build(keys, &mut buffer))?;
            let admin = Value::new(100, b"HS_ADMIN", &all);
            transaction.put(b"0.NA/10.1", Values::build([admin], &mut buffer))?;
            transaction.put(b"10.1/B", Values::build([Value::new(100, b"HS_ADMIN", &one)], &mut buffer))
        })
        .expect("the store accepts the change");
    let site = SiteRecord::parse(SITE, None).expect("the site record parses");
    let rules = OperationRules {
        pulled: handle_source::PulledPrefixes::default(),
        site: Arc::new(site),
        administrators: config.administrators().expect("no identities"),
        anonymous_full_access: false,
        lists_handles: true,
        replicates: true,
        primaries: None,
        bounds: config.bounds(),
    };
    let challenges = Challenges::new(config.challenge_limits());
    let audit = Audit::open(None, config.audit_files(), config.audit_bounds())
        .expect("the audit log opens without a file");
    let active = ActiveRules { rules, effort: config.effort(), exempt: SourceList::default() };
    let proof = Authenticator::new(challenges, None, None, None, store.folds());
    let decision = DecisionContext::new(active, None, None, None);
    let sealer = ReplySealer::new(None, None);
    Arc::new(AdminService::new(Arc::new(store), sealer, audit, proof, decision, None))
}

fn message(minor: u8, session_id: i32, request_id: i32, flags: u8, request: &Request<'_>) -> Option<Vec<u8>> {
    // An old version, so that answers to challenges need no PBKDF2.
    let suggested = Version::new(2, 1 + minor % 6);
    let envelope = Envelope { suggested, session_id, ..Envelope::request(request_id) };
    let bits = [
        OpFlags::PUBLIC_ONLY,
        OpFlags::OVERWRITE,
        OpFlags::MINT_SUFFIX,
        OpFlags::REQUEST_DIGEST,
        OpFlags::DO_NOT_REFER,
    ];
    let flags = (0..).zip(bits).filter(|(at, _)| flags & 1 << at != 0);
    let flags = flags.fold(OpFlags(0), |all, (_, bit)| all.with(bit));
    let header = Header::request(OpCode::RESERVED, flags, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().ok()
}

impl OperationSpec {
    /// Encodes the message with this request.
    fn message(&self, handle: &[u8], minor: u8, flags: u8, request_id: i32) -> Option<Vec<u8>> {
        let (mut values_buffer, mut indexes_buffer) = (Vec::new(), Vec::new());
        let mut values = |specs: &[ValueSpec]| {
            let kinds: [&[u8]; 4] = [b"URL", b"HS_ADMIN", b"HS_ADMIN.x", b""];
            for spec in specs {
                let kind = kinds[usize::from(spec.kind) % kinds.len()];
                let value = Value::new(i32::from(spec.index % 8), kind, &spec.data);
                Value { permissions: Permissions(spec.permissions), ..value }.encode(&mut values_buffer);
            }
        };
        let count = match self {
            Self::Create(specs) | Self::Add(specs) | Self::Modify(specs) => {
                values(specs);
                specs.len()
            }
            _ => 0,
        };
        let values = Values::from_encoded(count, &values_buffer).ok()?;
        let indexes = match self {
            Self::Remove(indexes) | Self::Resolve(indexes) => indexes.as_slice(),
            _ => &[],
        };
        let indexes = Indexes::build(indexes.iter().map(|&index| i32::from(index % 8)), &mut indexes_buffer);
        let request = match self {
            Self::Create(_) => Request::CreateHandle(HandleValues { handle, values }),
            Self::Add(_) => Request::AddValue(HandleValues { handle, values }),
            Self::Modify(_) => Request::ModifyValue(HandleValues { handle, values }),
            Self::Remove(_) => Request::RemoveValue(HandleIndexes { handle, indexes }),
            Self::Delete => Request::DeleteHandle(HandleBody { handle }),
            Self::List => Request::ListHandles(HandleBody { handle }),
            Self::ListHomed => Request::ListHomedNas(HandleBody { handle: b"/" }),
            Self::Home => Request::HomeNa(HandleBody { handle }),
            Self::Unhome => Request::UnhomeNa(HandleBody { handle }),
            Self::Resolve(_) => Request::Resolution(Query { handle, indexes, types: Strings::EMPTY }),
        };
        message(minor, 0, request_id, flags, &request)
    }
}

/// Answers carry the id of their request, nothing changes without an answer that confirms it, only
/// identities with the right change anything, no challenge is answered twice, and the store stays
/// consistent.
///
/// Input: any bytes, parsed as a plan by the crate `arbitrary`.
pub fn administration(bytes: &[u8]) {
    let mut plan = Unstructured::new(bytes);
    let steps: Vec<Step> = std::iter::from_fn(|| if plan.is_empty() { None } else { plan.arbitrary().ok() })
        .take(STEPS_MAX)
        .collect();
    let service = service();
    let source: SocketAddr = ([127, 0, 0, 1], 1).into();
    let mut challenges: Vec<ChallengeSpec> = Vec::new();
    for (at, step) in (1..).zip(&steps) {
        let before = service.store.last_id();
        let (sent, may_change) = match step {
            Step::Request { handle, flags, minor, operation } => {
                let handle = HANDLES[usize::from(*handle) % HANDLES.len()];
                // Without an identity, only publicly writable values are changed.
                (operation.message(handle, *minor, *flags, at), matches!(operation, OperationSpec::Modify(_)))
            }
            Step::Answer { back, crossed, identity, wrong_secret } => {
                let Some(challenge_at) = challenges.len().checked_sub(1 + usize::from(back % 4)) else {
                    continue;
                };
                let covered = if *crossed < 32 { challenges.len() - 1 } else { challenge_at };
                let (to, covered) = (&challenges[challenge_at], &challenges[covered]);
                let identity = usize::from(*identity) % IDENTITIES.len();
                let secret = if *wrong_secret < 64 { 1 - identity % 2 } else { identity % 2 };
                let bytes: [&[u8]; 2] = [&covered.nonce, &covered.digest];
                let response = answer_with_secret(to.version, to.version, &bytes, SECRETS[secret], &[0; 16]);
                let body = ChallengeAnswer {
                    auth_type: auth::SECRET_KEY,
                    identity: IDENTITIES[identity],
                    signed_response: &response,
                };
                let is_right = identity == secret && to.id == covered.id && !to.is_answered;
                let sent = message(0, to.id, at, 0, &Request::AnswerChallenge(body));
                challenges[challenge_at].is_answered = true;
                (sent, is_right)
            }
            Step::Noise(bytes) => (Some(bytes.clone()), true),
        };
        let Some(sent) = sent else { continue };
        let mut replies = service.answer(ReceivedMessage::direct(&sent, source));
        let mut pages = 0;
        while let Some(page) = replies.rest.as_mut().and_then(|rest| rest.next_page()) {
            assert!(!page.is_empty());
            pages += 1;
            assert!(pages < 10, "more pages than the names fill");
        }
        let has_changed = service.store.last_id() != before;
        assert!(may_change || !has_changed, "{step:?}");
        if matches!(step, Step::Noise(_)) {
            continue;
        }
        let (envelope, rest) = Envelope::split(&replies.first).expect("the reply has an envelope");
        let read = Message::decode(rest).expect("the reply is a message");
        let Ok(Body::Reply(reply)) = read.decode_body(envelope.version) else {
            panic!("a reply to {step:?}")
        };
        assert_eq!(envelope.request_id, at, "{step:?}");
        assert!(!has_changed || reply.code == ResponseCode::SUCCESS, "{step:?}: {:?}", reply.code);
        if let Response::Challenge(challenge) = reply.response {
            challenges.push(ChallengeSpec {
                id: envelope.session_id,
                version: envelope.version,
                nonce: challenge.nonce.to_vec(),
                digest: reply.digest.expect("a challenge has a digest").digest.to_vec(),
                is_answered: false,
            });
        }
    }
    let check = service.store.check(|finding| assert!(!finding.is_damage(), "{finding}"));
    check.expect("the store can be read");
}
