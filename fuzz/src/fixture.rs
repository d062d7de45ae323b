//! The fixed set of records for answering requests, and its contents as a plain map.

use handle_proto::code::HashOption;
use handle_proto::data::{SiteBuf, SiteBuilder};
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::{Handle, Permissions, Value, ValueBuf, fold};
use handle_resolver::{AnswerContext, MayCompute, ServiceFacts};
use handle_snapshot::{Builder, HomedPrefixes, Layer, LayerOptions, RecordSet, fold_key};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::LazyLock;

/// The records of the vectors, with all kinds of values, names and sizes in the tests of the
/// reference server.
const RECORDS: &str = include_str!("../../tests/vectors/records.json");
/// A handle that an older layer has and the newest deletes.
const DELETED: &[u8] = b"TST/TARGET";
/// A handle that both layers have.
const REPLACED: &[u8] = b"TST/ALIAS";
/// An arbitrary fixed time.
pub(crate) const NOW_UNIX_S: u32 = 1_800_000_000;

/// A set of two layers, and the service that answers from it.
pub(crate) struct Fixture {
    layers: [Layer<Vec<u8>>; 2],
    pub(crate) service: ServiceFacts<'static>,
    /// The values of each key, in stored order.
    pub(crate) model: BTreeMap<Vec<u8>, Vec<ValueBuf>>,
    /// The homed prefixes, folded.
    pub(crate) homed: BTreeSet<Vec<u8>>,
    pub(crate) folds: bool,
    /// The handles with their original spelling.
    pub(crate) handles: Vec<Vec<u8>>,
}

/// A site of one server that folds, and one of three servers that do not fold and send only short
/// answers.
pub(crate) static FIXTURES: LazyLock<[Fixture; 2]> =
    LazyLock::new(|| [Fixture::new(true, 1, 0), Fixture::new(false, 3, 1)]);

static SITE: LazyLock<SiteBuf> = LazyLock::new(|| {
    let mut site = SiteBuilder::new();
    site.attribute("desc", "fuzzed");
    site.build()
});

impl Fixture {
    fn new(folds: bool, servers_count: u32, server_at: u32) -> Self {
        let base = records();
        let private =
            Value { permissions: Permissions(0x0c), ..Value::new(1, b"HS_SECKEY", b"in the middle") };
        let (public, other) = (Value::new(3, b"URL", b"new"), Value::new(2, b"URL.OLD", b"older"));
        let delta = vec![
            (REPLACED.to_vec(), [other, private, public].iter().map(ValueBuf::from).collect()),
            (b"TST/new".to_vec(), [private, public].iter().map(ValueBuf::from).collect()),
        ];
        let homed: BTreeSet<_> =
            base.iter().map(|(handle, _)| fold::folded(Handle(handle).naming_authority())).collect();
        // A delegation by an ancestor, without records of its own. The older layer vouches for its
        // own records.
        let homed = homed.into_iter().filter(|prefix| !folds || prefix != b"FAR").collect();
        let mut model = BTreeMap::new();
        for (handle, values) in base.iter().chain(&delta) {
            model.insert(key(handle, folds), values.clone());
        }
        model.remove(&key(DELETED, folds)).expect("the vectors have the deleted handle");
        let layers = [layer(folds, None, &delta, Some(DELETED)), layer(folds, Some(&homed), &base, None)];
        let service = ServiceFacts {
            site: SITE.as_bytes(),
            site_serial: 7,
            primary: folds,
            hash_option: HashOption::Handle,
            servers_count,
            server_at,
            answer_datagrams_max: if folds { FRAGMENTS_MAX } else { 3 },
            ..ServiceFacts::ALONE
        };
        let handles = base.into_iter().chain(delta).map(|(handle, _)| handle).collect();
        Self { layers, service, model, homed, folds, handles }
    }

    /// Returns the context of a request.
    pub(crate) fn context(&self) -> AnswerContext<'_, Vec<u8>> {
        self.context_of(self.service)
    }

    /// Returns the context for a server that signs, makes challenges and computes values.
    pub(crate) fn slow_context(&self) -> AnswerContext<'_, Vec<u8>> {
        let service = ServiceFacts { signs: true, authenticates: true, ..self.service };
        self.context_of(service).computing(Some(&ExtendedNames))
    }

    /// Returns the context for a server with sessions.
    pub(crate) fn session_context(&self) -> AnswerContext<'_, Vec<u8>> {
        self.context_of(ServiceFacts { authenticates: true, sessions: true, ..self.service })
    }

    fn context_of<'a>(&'a self, service: ServiceFacts<'a>) -> AnswerContext<'a, Vec<u8>> {
        let records = RecordSet::new(&self.layers).expect("the layers make a set");
        AnswerContext::new(records, service, NOW_UNIX_S)
    }
}

/// Computes values for handles with an `@`.
#[derive(Debug)]
struct ExtendedNames;

impl MayCompute for ExtendedNames {
    fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]> {
        Some(&handle[..handle.iter().position(|&byte| byte == b'@')?])
    }
}

fn key(handle: &[u8], folds: bool) -> Vec<u8> {
    let mut key = handle.to_vec();
    fold_key(&mut key, folds);
    key
}

type RecordSpec = (Vec<u8>, Vec<ValueBuf>);

fn records() -> Vec<RecordSpec> {
    let json: serde_json::Value = serde_json::from_str(RECORDS).expect("the vectors are JSON");
    let value = |hex: &serde_json::Value| {
        let bytes = data_encoding::HEXLOWER.decode(hex.as_str()?.as_bytes()).ok()?;
        ValueBuf::from_bytes(bytes).ok()
    };
    let record = |record: &serde_json::Value| {
        let handle = record["handle"].as_str()?.as_bytes().to_vec();
        Some((handle, record["values_hex"].as_array()?.iter().map(value).collect::<Option<_>>()?))
    };
    let records = json.as_array().expect("a list").iter().map(record).collect::<Option<_>>();
    records.expect("the records of the vectors decode")
}

fn layer(
    folds: bool,
    homed: Option<&BTreeSet<Vec<u8>>>,
    records: &[RecordSpec],
    deleted: Option<&[u8]>,
) -> Layer<Vec<u8>> {
    let options = LayerOptions { seed: 1, folds, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    if let Some(homed) = homed {
        let mut prefixes = HomedPrefixes::default();
        homed.iter().for_each(|prefix| assert!(prefixes.add(prefix)));
        builder = builder.homed(prefixes);
    }
    for (origin, (handle, values)) in (0..).zip(records) {
        builder.add(origin, handle, values.iter().map(ValueBuf::view)).expect("a record");
    }
    if let Some(deleted) = deleted {
        builder.delete(u64::MAX, deleted).expect("a deletion");
    }
    let (bytes, _) = builder.finish(Cursor::new(Vec::new())).expect("a layer");
    Layer::open(bytes.into_inner()).expect("a layer was built")
}
