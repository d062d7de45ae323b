//! Tests of answers from a cache of other services' records.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Version};
use handle_resolver::batch::Scratch;
use handle_resolver::slow::FirstEvaluation;
use handle_resolver::{
    AnswerContext, AnswerOutcome, CachedLookup, InBatch, RecordCache, RefusalReason, ServiceFacts,
    StagedCacheLookup, WireReply as _, answer, answer_batch,
};
use handle_snapshot::builder::Builder;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_snapshot::{EncodedRecord, Layer, RecordSet};
use std::cell::RefCell;
use std::io::Cursor;

const NOW: u32 = 1_700_000_000;
const SERVICE: ServiceFacts<'static> =
    ServiceFacts { authenticates: true, primary: false, ..ServiceFacts::ALONE };

/// Two records and a negative answer; notes what it is asked for.
#[derive(Debug, Default)]
struct TestCache {
    values: Vec<u8>,
    long: Vec<u8>,
    asked: RefCell<Vec<Vec<u8>>>,
}

impl TestCache {
    fn new() -> Self {
        let mut cache = Self::default();
        Value::new(1, b"URL", b"https://a.example/").encode(&mut cache.values);
        Value::new(2, b"EMAIL", b"a@a.example").encode(&mut cache.values);
        Value::new(1, b"TEXT", &[b'x'; 700]).encode(&mut cache.long);
        cache
    }

    fn asked(&self) -> Vec<Vec<u8>> {
        self.asked.take()
    }
}

impl RecordCache for TestCache {
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]) {
        for lookup in lookups {
            assert_eq!(lookup.slot, 0, "once for each");
            lookup.slot = lookup.handle.0.len() + 1;
        }
    }

    fn find<'c>(&'c self, lookups: &mut [StagedCacheLookup<'c>]) {
        for lookup in lookups.iter_mut().filter(|lookup| lookup.is_wanted) {
            let handle = lookup.handle.0;
            assert_eq!(lookup.slot, handle.len() + 1, "after the first step");
            self.asked.borrow_mut().push(handle.to_vec());
            let of = |values, count| CachedLookup::Record(EncodedRecord::of_public_values(values, count));
            lookup.known = match &*handle.to_ascii_lowercase() {
                b"20.1/a" | b"10.1/kept" => of(&self.values, 2),
                b"20.1/long" => of(&self.long, 1),
                b"20.1/empty" => of(&[], 0),
                b"20.1/none" => CachedLookup::NoHandle,
                _ => CachedLookup::Unknown,
            };
        }
    }
}

fn layers() -> [Layer<Vec<u8>>; 1] {
    let mut homed = HomedPrefixes::default();
    assert!(homed.add(b"10.1"));
    let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
    builder.add(0, b"10.1/own", [Value::new(1, b"URL", b"https://own.example/")]).unwrap();
    let (file, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
    [Layer::open(file.into_inner()).unwrap()]
}

fn request(handle: &str, indexes: &[i32], flags: OpFlags, version: Version) -> Vec<u8> {
    let mut storage = vec![];
    let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
    let query = Query { handle: handle.as_bytes(), indexes, types: Strings::EMPTY };
    let header = Header::request(OpCode::RESOLUTION, flags, NOW);
    let envelope = Envelope { version, ..Envelope::request(4711) };
    MessageBuf::request(&envelope, &header, &Request::Resolution(query)).unsigned().unwrap()
}

fn plain(handle: &str) -> Vec<u8> {
    request(handle, &[], OpFlags::PLAIN_REQUEST, Version::CURRENT)
}

/// The outcome of one request in words: its bytes, or the path that it takes.
fn outcome(outcome: &InBatch<'_>) -> (String, Vec<u8>) {
    let write = |reply: &dyn Fn(&mut [u8]), len: usize| {
        let mut out = vec![0; len];
        reply(&mut out);
        out
    };
    match outcome {
        InBatch::Fast(reply) => {
            ("reply".into(), write(&|out| reply.write_datagrams(out), reply.datagrams_len()))
        }
        InBatch::Other(AnswerOutcome::Reply(reply)) => {
            ("reply".into(), write(&|out| reply.write_datagrams(out), reply.datagrams_len()))
        }
        InBatch::Other(other) => (format!("{other:?}").split('(').next().unwrap().to_owned(), vec![]),
    }
}

fn in_batch(context: &AnswerContext<'_, Vec<u8>>, datagram: &[u8]) -> (String, Vec<u8>) {
    let mut seen = None;
    let mut scratch = Scratch::new();
    answer_batch(context, &mut scratch, [datagram], |_, answered| seen = Some(outcome(answered)));
    seen.unwrap()
}

fn code_and_values(message: &[u8]) -> (ResponseCode, usize, Vec<u8>) {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let message = Message::decode(rest).unwrap();
    match message.decode_body(envelope.version).unwrap() {
        Body::Reply(reply) => match reply.response {
            Response::Answer(answer) => (reply.code, answer.values.iter().count(), answer.handle.to_vec()),
            _ => (reply.code, 0, vec![]),
        },
        Body::Request(_) => panic!("a reply"),
    }
}

#[test]
fn a_known_handle_is_answered_as_spelt_alone_and_in_a_batch() {
    let (cache, layers) = (TestCache::new(), layers());
    for layers in [&layers[..], &[]] {
        let context = AnswerContext::new(RecordSet::new(layers).unwrap(), SERVICE, NOW).caching(Some(&cache));
        let cases = [
            (plain("20.1/a"), ResponseCode::SUCCESS, 2, "20.1/a"),
            (plain("20.1/A"), ResponseCode::SUCCESS, 2, "20.1/A"),
            (
                request("20.1/a", &[2], OpFlags::PLAIN_REQUEST, Version::CURRENT),
                ResponseCode::SUCCESS,
                1,
                "20.1/a",
            ),
            (
                request("20.1/a", &[7], OpFlags::PLAIN_REQUEST, Version::CURRENT),
                ResponseCode::VALUES_NOT_FOUND,
                0,
                "",
            ),
            (
                request(
                    "20.1/a",
                    &[],
                    OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST),
                    Version::CURRENT,
                ),
                ResponseCode::SUCCESS,
                2,
                "20.1/a",
            ),
            (
                request("20.1/a", &[], OpFlags::PLAIN_REQUEST, Version::new(2, 1)),
                ResponseCode::SUCCESS,
                2,
                "20.1/a",
            ),
            (plain("20.1/empty"), ResponseCode::VALUES_NOT_FOUND, 0, ""),
            (plain("20.1/none"), ResponseCode::HANDLE_NOT_FOUND, 0, ""),
        ];
        for (datagram, code, count, handle) in cases {
            let (path, bytes) = in_batch(&context, &datagram);
            assert_eq!(path, "reply", "{handle}");
            let alone = outcome(&InBatch::Other(answer(&context, &datagram)));
            assert_eq!(bytes, alone.1, "{handle} {code:?}");
            assert_eq!(code_and_values(&bytes), (code, count, handle.as_bytes().to_vec()));
            let flags = Header::split(&bytes[Envelope::LEN..]).unwrap().0.flags;
            assert!(!flags.has(OpFlags::AUTHORITATIVE), "{handle} {code:?}");
        }
        let (_, long) = in_batch(&context, &plain("20.1/long"));
        let alone = outcome(&InBatch::Other(answer(&context, &plain("20.1/long"))));
        assert!(long.len() > 700 && long == alone.1, "in two datagrams");
    }
}

#[test]
fn the_cache_is_asked_only_about_other_prefixes() {
    let (cache, layers) = (TestCache::new(), layers());
    let context = AnswerContext::new(RecordSet::new(&layers).unwrap(), SERVICE, NOW).caching(Some(&cache));
    let (_, own) = in_batch(&context, &plain("10.1/own"));
    assert_eq!(code_and_values(&own).1, 1);
    let (_, none) = in_batch(&context, &plain("10.1/kept"));
    assert_eq!(code_and_values(&none).0, ResponseCode::HANDLE_NOT_FOUND, "whatever is in the cache");
    let _ = answer(&context, &plain("10.1/kept"));
    assert!(cache.asked().is_empty());
    let names = ["20.1/a", "20.1/none", "20.1/long", "20.1/new"];
    for name in names {
        in_batch(&context, &plain(name));
    }
    assert_eq!(cache.asked(), names.map(|name| name.as_bytes().to_vec()), "once for each");
    // Without a cache, nothing has changed.
    let without = AnswerContext::new(RecordSet::new(&layers).unwrap(), SERVICE, NOW);
    let (_, refused) = in_batch(&without, &plain("20.1/a"));
    assert_eq!(code_and_values(&refused).0, ResponseCode::SERVER_NOT_RESPONSIBLE);
}

#[test]
fn what_the_cache_does_not_know_goes_to_the_slow_path() {
    let cache = TestCache::new();
    let context = AnswerContext::new(RecordSet::<Vec<u8>>::new(&[]).unwrap(), SERVICE, NOW);
    let context = context.caching(Some(&cache));
    let authoritative = OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE);
    let cases = [
        plain("20.1/new"),
        request("20.1/new", &[1], OpFlags::PLAIN_REQUEST, Version::CURRENT),
        request("20.1/a", &[], authoritative, Version::CURRENT),
        request("20.1/a", &[1], authoritative, Version::CURRENT),
        request("20.1/none", &[], authoritative, Version::CURRENT),
    ];
    for (at, datagram) in cases.iter().enumerate() {
        assert_eq!(in_batch(&context, datagram).0, "Slow", "{at}");
        let AnswerOutcome::Slow(slow) = answer(&context, datagram) else { panic!("{at}") };
        assert!(matches!(slow.evaluate(&context), FirstEvaluation::Uncached), "{at}");
        assert_eq!(slow.is_authoritative(), at > 1);
    }
}

#[test]
fn certified_answers_are_made_from_the_cache_and_private_values_never() {
    let cache = TestCache::new();
    let signing = ServiceFacts { signs: true, ..SERVICE };
    let certified = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
    for service in [signing, SERVICE] {
        let context = AnswerContext::new(RecordSet::<Vec<u8>>::new(&[]).unwrap(), service, NOW);
        let context = context.caching(Some(&cache));
        let datagram = request("20.1/a", &[1], certified, Version::CURRENT);
        let reply = match answer(&context, &datagram) {
            AnswerOutcome::Slow(slow) if service.signs => match slow.evaluate(&context) {
                FirstEvaluation::Reply(reply) => reply,
                other => panic!("{other:?}"),
            },
            AnswerOutcome::Reply(reply) if !service.signs => reply,
            other => panic!("{other:?}"),
        };
        assert_eq!(reply.response_code(), ResponseCode::SUCCESS);
        // More than public values: only the responsible service can challenge the client.
        let all = OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY);
        for flags in [all, all.with(OpFlags::CERTIFY)] {
            let datagram = request("20.1/a", &[], flags, Version::CURRENT);
            let reply = match answer(&context, &datagram) {
                AnswerOutcome::Slow(slow) => match slow.evaluate(&context) {
                    FirstEvaluation::Reply(reply) => reply,
                    other => panic!("{other:?}"),
                },
                AnswerOutcome::Reply(reply) => reply,
                other => panic!("{other:?}"),
            };
            assert_eq!(reply.refused(), Some(RefusalReason::NotHomed));
        }
    }
}
