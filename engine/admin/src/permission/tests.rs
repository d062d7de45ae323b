//! One case allowed and one refused for each cell of the matrix, and groups with their bounds.

use super::group::{Entitlement, EntitlementOutcome};
use super::view::{RemoteFacts, WantedFact};
use super::*;
use handle_proto::data::vlist::Vlist;
use handle_proto::limit::VLIST_EXPANSION_MAX;
use handle_proto::wire::list::References;
use handle_proto::{ValueBuf, Values};
use handle_store::{RecordBuf, is_responsible};
use std::collections::HashMap;

/// Records in memory, under the homed prefix `10.1` and among prefix records.
#[derive(Default)]
struct MemoryRecords(HashMap<Vec<u8>, RecordBuf>);

impl StoreRecords for MemoryRecords {
    fn folds(&self) -> bool {
        true
    }

    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
        Ok(self.0.get(key).cloned())
    }

    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        Ok([&b"10.1"[..], b"0.NA"].contains(&prefix))
    }
}

impl MemoryRecords {
    fn put(&mut self, handle: &[u8], values: &[Value<'_>]) {
        let mut storage = Vec::new();
        let values = Values::build(values.iter().copied(), &mut storage);
        let mut bytes = Vec::new();
        handle_store::StoreRecord { id: 1, unix_ms: 1, values }.encode(&mut bytes);
        self.0.insert(key(handle, true), RecordBuf::from_bytes(bytes).unwrap());
    }

    fn put_admin(&mut self, handle: &[u8], kind: &[u8], bits: AdminPermissions) {
        let data = admin(bits);
        self.put(handle, &[Value::new(100, kind, &data)]);
    }

    fn put_group(&mut self, handle: &[u8], index: i32, entries: &[(&[u8], i32)]) {
        let mut storage = Vec::new();
        let entries = entries.iter().map(|&(handle, index)| Reference { handle, index });
        let mut data = Vec::new();
        Vlist(References::build(entries, &mut storage)).encode(&mut data);
        self.put(handle, &[Value::new(index, b"HS_VLIST", &data)]);
    }
}

const IDENTITY: Reference<'_> = Reference { handle: b"10.1/identity", index: 300 };

fn admin(bits: AdminPermissions) -> Vec<u8> {
    let mut data = Vec::new();
    Admin::new(bits, IDENTITY.handle, IDENTITY.index).encode(&mut data);
    data
}

fn permit(records: &MemoryRecords, administrators: &Administrators, requirement: &ActionRequirement) -> bool {
    administrators
        .permit(&DecisionView::new(records, &|_| true, &RemoteFacts::default()), requirement, IDENTITY)
        .unwrap()
        == EntitlementOutcome::Yes
}

fn default_administrators() -> Administrators {
    Administrators { prefix_administrators: true, lookups_max: 100, ..Administrators::default() }
}

/// The handle that an action changes, and the record that decides.
fn example(action: RecordAction) -> (&'static [u8], &'static [u8]) {
    match action {
        RecordAction::CreateHandle | RecordAction::List => (b"10.1/new", b"0.NA/10.1"),
        RecordAction::CreatePrefix => (b"0.NA/10", b"0.NA/0.NA"),
        RecordAction::CreateDerivedPrefix => (b"0.NA/10.1.2", b"0.NA/10.1"),
        _ => (b"10.1/X", b"10.1/X"),
    }
}

#[test]
fn the_table_is_in_the_order_of_actions() {
    for (at, row) in MATRIX.iter().enumerate() {
        assert_eq!(row.action as usize, at);
    }
}

#[test]
fn each_cell_requires_all_of_its_bits() {
    for row in &MATRIX {
        let (handle, decides) = example(row.action);
        let requirement = ActionRequirement::from(PermissionNeed::of([row.action], Handle(handle), true));
        let mut records = MemoryRecords::default();
        records.put_admin(decides, b"HS_ADMIN", row.bits);
        assert!(
            permit(&records, &default_administrators(), &requirement),
            "{:?} with its bits alone",
            row.action
        );
        for (bit, name) in AdminPermissions::KNOWN {
            if row.bits.has(bit) {
                records.put_admin(decides, b"HS_ADMIN", AdminPermissions(AdminPermissions::ALL.0 & !bit.0));
                assert!(
                    !permit(&records, &default_administrators(), &requirement),
                    "{:?} without {name}",
                    row.action
                );
            }
        }
        records.put_admin(decides, b"URL", AdminPermissions::ALL);
        assert!(
            !permit(&records, &default_administrators(), &requirement),
            "{:?} by a value of another type",
            row.action
        );
        records.put_admin(decides, b"hs_admin", AdminPermissions::ALL);
        assert!(permit(&records, &default_administrators(), &requirement), "{:?}: types fold", row.action);
        records.put_admin(decides, b"HS_ADMIN.x", AdminPermissions::ALL);
        assert_eq!(
            permit(&records, &default_administrators(), &requirement),
            row.sub_types,
            "{:?} by a sub-type",
            row.action
        );
        let mut elsewhere = MemoryRecords::default();
        elsewhere.put_admin(b"10.1/other", b"HS_ADMIN", AdminPermissions::ALL);
        assert!(
            !permit(&elsewhere, &default_administrators(), &requirement),
            "{:?} by another record",
            row.action
        );
    }
}

#[test]
fn the_bits_must_be_in_one_value() {
    let requirement = ActionRequirement::from(PermissionNeed::of(
        [RecordAction::AddValue, RecordAction::AddAdmin],
        Handle(b"10.1/X"),
        true,
    ));
    let (one, two) = (admin(AdminPermissions::ADD_VALUE), admin(AdminPermissions::ADD_ADMIN));
    let both = admin(AdminPermissions::ADD_VALUE.with(AdminPermissions::ADD_ADMIN));
    let mut records = MemoryRecords::default();
    records.put(b"10.1/X", &[Value::new(100, b"HS_ADMIN", &one), Value::new(101, b"HS_ADMIN", &two)]);
    assert!(!permit(&records, &default_administrators(), &requirement));
    records.put(b"10.1/X", &[Value::new(100, b"HS_ADMIN", &one), Value::new(101, b"HS_ADMIN", &both)]);
    assert!(permit(&records, &default_administrators(), &requirement));
}

#[test]
fn all_needs_of_one_alternative_are_required() {
    let need = |action| PermissionNeed::of([action], Handle(b"10.1/X"), true);
    let create = PermissionNeed::of([RecordAction::CreateHandle], Handle(b"10.1/X"), true);
    let requirement =
        ActionRequirement(vec![vec![need(RecordAction::AddAdmin)], vec![need(RecordAction::Delete), create]]);
    let mut records = MemoryRecords::default();
    records.put_admin(b"10.1/X", b"HS_ADMIN", AdminPermissions::DELETE_HANDLE);
    assert!(!permit(&records, &default_administrators(), &requirement), "half of the second");
    records.put_admin(b"0.NA/10.1", b"HS_ADMIN", AdminPermissions::ADD_HANDLE);
    assert!(permit(&records, &default_administrators(), &requirement), "the second");
    records.put_admin(b"10.1/X", b"HS_ADMIN", AdminPermissions::ADD_ADMIN);
    assert!(permit(&records, &default_administrators(), &requirement), "the first");
    assert!(
        !permit(&records, &default_administrators(), &ActionRequirement::default()),
        "no alternative permits nothing"
    );
    assert_eq!(
        requirement.to_string(),
        "add_admin at 10.1/X, or delete_handle at 10.1/X and add_handle at 0.NA/10.1"
    );
}

#[test]
fn only_public_values_of_a_prefix_record_count() {
    let requirement =
        ActionRequirement::from(PermissionNeed::of([RecordAction::CreateHandle], Handle(b"10.1/new"), true));
    let data = admin(AdminPermissions::ALL);
    let mut records = MemoryRecords::default();
    let value = Value::new(100, b"HS_ADMIN", &data);
    records.put(b"0.NA/10.1", &[Value { permissions: handle_proto::Permissions::ADMIN_READ, ..value }]);
    assert!(!permit(&records, &default_administrators(), &requirement), "no other identity could resolve it");
    records.put(b"0.NA/10.1", &[value]);
    assert!(permit(&records, &default_administrators(), &requirement));
    let independent = Administrators { prefix_administrators: false, ..default_administrators() };
    assert!(!permit(&records, &independent, &requirement));
    let requirement =
        ActionRequirement::from(PermissionNeed::of([RecordAction::Delete], Handle(b"10.1/X"), true));
    records.put(b"10.1/X", &[Value { permissions: handle_proto::Permissions(0), ..value }]);
    assert!(permit(&records, &independent, &requirement), "of the handle itself all count");
}

#[test]
fn configured_administrators_have_their_duties_only() {
    let configured = || vec![ConfiguredIdentity { index: IDENTITY.index, handle: IDENTITY.handle.to_vec() }];
    let records = MemoryRecords::default();
    let requirement =
        ActionRequirement::from(PermissionNeed::of([RecordAction::Delete], Handle(b"10.1/X"), true));
    let server = Administrators { server: configured(), ..default_administrators() };
    assert!(!permit(&records, &server, &requirement));
    assert!(permit(&records, &Administrators { server_full_access: true, ..server.clone() }, &requirement));
    let duties =
        [OperatorDuty::Homing, OperatorDuty::Replication, OperatorDuty::Backup, OperatorDuty::Status];
    let holders = [
        Administrators { home_only: configured(), ..default_administrators() },
        Administrators { replication: configured(), ..default_administrators() },
        Administrators { backup: configured(), ..default_administrators() },
        Administrators { status: configured(), ..default_administrators() },
    ];
    let holds = |administrators: &Administrators, duty| {
        administrators
            .holds(&DecisionView::new(&records, &|_| true, &RemoteFacts::default()), duty, IDENTITY)
            .unwrap()
            == EntitlementOutcome::Yes
    };
    for duty in duties {
        assert!(holds(&server, duty), "{duty:?}");
        assert!(!holds(&default_administrators(), duty), "{duty:?}");
        for (other, holder) in duties.iter().zip(&holders) {
            assert_eq!(holds(holder, duty), duty == *other, "{duty:?} by the holder of {other:?}");
        }
    }
}

fn ask(
    records: &MemoryRecords,
    references: &[(&[u8], i32)],
    identity: Reference<'_>,
    lookups_max: usize,
) -> EntitlementOutcome {
    let known = RemoteFacts::default();
    let view = DecisionView::new(records, &|_| true, &known);
    let mut entitlement = Entitlement::new(&view, identity, lookups_max);
    let references = references.iter().map(|&(handle, index)| Reference { handle, index });
    entitlement.ask(references).unwrap()
}

#[test]
fn references_name_one_key_and_index_zero_every_key() {
    let records = MemoryRecords::default();
    let any = Reference { index: 0, ..IDENTITY };
    let ask = |references: &[(&[u8], i32)], identity| ask(&records, references, identity, 10);
    assert_eq!(ask(&[(b"10.1/identity", 300)], IDENTITY), EntitlementOutcome::Yes);
    assert_eq!(ask(&[(b"10.1/identity", 0)], IDENTITY), EntitlementOutcome::Yes);
    assert_eq!(ask(&[(b"10.1/identity", 0)], any), EntitlementOutcome::Yes);
    assert_eq!(ask(&[(b"10.1/identity", 301)], IDENTITY), EntitlementOutcome::No);
    assert_eq!(
        ask(&[(b"10.1/identity", 300)], any),
        EntitlementOutcome::No,
        "index 0 as identity is no other index"
    );
    assert_eq!(
        ask(&[(b"10.1/IDENTITY", 300)], IDENTITY),
        EntitlementOutcome::No,
        "local names keep their case"
    );
    assert_eq!(
        ask(&[(b"0.na/10.1", 300)], Reference { handle: b"0.NA/10.1", index: 300 }),
        EntitlementOutcome::Yes
    );
    assert_eq!(ask(&[], IDENTITY), EntitlementOutcome::No);
}

#[test]
fn groups_expand_circles_end_and_index_zero_names_no_group() {
    let mut records = MemoryRecords::default();
    records.put_group(b"10.1/outer", 1, &[(b"10.1/inner", 1), (b"10.1/gone", 1)]);
    records.put_group(b"10.1/inner", 1, &[(b"10.1/outer", 1), (b"10.1/identity", 300)]);
    records.put_group(b"10.1/circle", 1, &[(b"10.1/circle", 1)]);
    records.put_group(b"10.2/elsewhere", 1, &[(b"10.1/identity", 300)]);
    assert_eq!(ask(&records, &[(b"10.1/outer", 1)], IDENTITY, 10), EntitlementOutcome::Yes);
    assert_eq!(ask(&records, &[(b"10.1/outer", 2)], IDENTITY, 10), EntitlementOutcome::No, "another value");
    assert_eq!(ask(&records, &[(b"10.1/outer", 0)], IDENTITY, 10), EntitlementOutcome::No);
    assert_eq!(ask(&records, &[(b"10.1/circle", 1)], IDENTITY, 10), EntitlementOutcome::No);
    assert!(!is_responsible(&records, b"10.2/ELSEWHERE").unwrap());
    assert_eq!(ask(&records, &[(b"10.2/elsewhere", 1)], IDENTITY, 10), EntitlementOutcome::No, "not here");
}

#[test]
fn the_number_of_group_lookups_is_bounded() {
    let mut records = MemoryRecords::default();
    let names: Vec<Vec<u8>> = (0..=VLIST_EXPANSION_MAX).map(|n| format!("10.1/g{n}").into_bytes()).collect();
    let last = names.len() - 1;
    for (at, name) in names.iter().enumerate() {
        match names.get(at + 1) {
            Some(next) => records.put_group(name, 1, &[(next, 1)]),
            None => records.put_group(name, 1, &[(IDENTITY.handle, IDENTITY.index)]),
        }
    }
    let from = |at: usize, max| ask(&records, &[(&names[at], 1)], IDENTITY, max);
    assert_eq!(from(last, 1), EntitlementOutcome::Yes);
    assert_eq!(from(last, 0), EntitlementOutcome::GaveUp);
    assert_eq!(from(1, VLIST_EXPANSION_MAX), EntitlementOutcome::Yes, "a chain as long as may be");
    assert_eq!(from(0, VLIST_EXPANSION_MAX), EntitlementOutcome::GaveUp, "one longer");
    // A group that contains ten thousand others.
    let entries: Vec<Vec<u8>> = (0..10_000).map(|n| format!("10.1/e{n}").into_bytes()).collect();
    let entries: Vec<(&[u8], i32)> = entries.iter().map(|name| (name.as_slice(), 1)).collect();
    records.put_group(b"10.1/wide", 1, &entries);
    assert_eq!(
        ask(&records, &[(b"10.1/wide", 1)], IDENTITY, VLIST_EXPANSION_MAX),
        EntitlementOutcome::GaveUp
    );
}

/// Repeats a decision with the missing facts from `facts` until none is missing. Returns the
/// outcome, the number of repetitions, and all facts.
fn decided_with(
    records: &MemoryRecords,
    requirement: &ActionRequirement,
    identity: Reference<'_>,
    facts: impl Fn(&WantedFact) -> Vec<ValueBuf>,
) -> (EntitlementOutcome, usize, RemoteFacts) {
    let mut known = RemoteFacts::default();
    for round in 0.. {
        let view = DecisionView::new(records, &|_| true, &known);
        let entitled = default_administrators().permit(&view, requirement, identity).unwrap();
        let missing = known.take_missing();
        if entitled == EntitlementOutcome::Yes || missing.is_empty() {
            return (entitled, round, known);
        }
        missing.into_iter().for_each(|wanted| {
            let values = facts(&wanted);
            known.learn(wanted, values);
        });
    }
    unreachable!("rounds are counted without an end")
}

fn group_value(index: i32, entries: &[(&[u8], i32)]) -> ValueBuf {
    let mut storage = Vec::new();
    let entries = entries.iter().map(|&(handle, index)| Reference { handle, index });
    let mut data = Vec::new();
    Vlist(References::build(entries, &mut storage)).encode(&mut data);
    ValueBuf::from(&Value::new(index, b"HS_VLIST", &data))
}

#[test]
fn groups_of_other_services_expand_and_circles_between_services_end() {
    let mut records = MemoryRecords::default();
    // The groups alternate between this service and another one, and end in a circle.
    let mut data = Vec::new();
    Admin::new(AdminPermissions::DELETE_HANDLE, b"20.2/first", 1).encode(&mut data);
    records.put(b"10.1/X", &[Value::new(100, b"HS_ADMIN", &data)]);
    records.put_group(b"10.1/back", 1, &[(b"20.2/second", 1)]);
    let need = ActionRequirement::from(PermissionNeed::of([RecordAction::Delete], Handle(b"10.1/X"), true));
    let facts = |last: &'static [(&'static [u8], i32)]| {
        move |wanted: &WantedFact| match wanted {
            WantedFact::Group { handle, index: 1 } if handle == b"20.2/first" => {
                vec![group_value(1, &[(b"10.1/back", 1)])]
            }
            WantedFact::Group { handle, index: 1 } if handle == b"20.2/second" => vec![group_value(1, last)],
            other => panic!("{other:?} is not to be asked for"),
        }
    };
    let (entitled, rounds, known) =
        decided_with(&records, &need, IDENTITY, facts(&[(b"20.2/first", 1), (IDENTITY.handle, 300)]));
    assert_eq!((entitled, rounds), (EntitlementOutcome::Yes, 2));
    assert!(known.names_identity());
    let circle: &[(&[u8], i32)] = &[(b"20.2/first", 1), (b"10.1/back", 1), (b"20.2/second", 1)];
    let (entitled, rounds, known) = decided_with(&records, &need, IDENTITY, facts(circle));
    assert_eq!((entitled, rounds), (EntitlementOutcome::No, 2));
    assert!(!known.names_identity());
    // The record names another key of the handle: the identity has no right, but its keys may be
    // worth looking up.
    let (entitled, _, known) = decided_with(&records, &need, IDENTITY, facts(&[(IDENTITY.handle, 301)]));
    assert!(entitled == EntitlementOutcome::No && known.names_identity());
    let (entitled, _, _) = decided_with(&records, &need, IDENTITY, |_| vec![]);
    assert_eq!(entitled, EntitlementOutcome::No, "no record names the identity");
}

#[test]
fn administrators_of_remote_prefixes_are_remote_facts_unless_the_record_is_stored() {
    let mut records = MemoryRecords::default();
    let create = |handle: &'static [u8]| {
        let handle = Handle(handle);
        ActionRequirement::from(PermissionNeed::of([RecordAction::creating(handle)], handle, true))
    };
    let data = admin(AdminPermissions::ADD_HANDLE);
    let facts = |wanted: &WantedFact| {
        assert_eq!(wanted.handle().0, b"0.NA/20.2");
        let value = Value::new(100, b"HS_ADMIN", &data);
        let hidden = Value { permissions: handle_proto::Permissions::ADMIN_READ, ..value };
        let other = Value { kind: b"HS_ADMIN.x", ..value };
        vec![ValueBuf::from(&other), ValueBuf::from(&hidden), ValueBuf::from(&value)]
    };
    struct OtherRecords(MemoryRecords);
    impl StoreRecords for OtherRecords {
        fn folds(&self) -> bool {
            true
        }
        fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
            self.0.record(key)
        }
        fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
            Ok(prefix == b"20.2")
        }
    }
    let decide = |records: &OtherRecords, values: Option<Vec<ValueBuf>>| {
        let mut known = RemoteFacts::default();
        if let Some(values) = values {
            known.learn(WantedFact::Administrators(b"0.NA/20.2".to_vec()), values);
        }
        let view = DecisionView::new(records, &|_| true, &known);
        (
            default_administrators().permit(&view, &create(b"20.2/new"), IDENTITY).unwrap(),
            known.take_missing(),
        )
    };
    let wanted = WantedFact::Administrators(b"0.NA/20.2".to_vec());
    let all = facts(&wanted);
    let other = OtherRecords(MemoryRecords::default());
    assert_eq!(decide(&other, None), (EntitlementOutcome::No, vec![wanted]));
    assert_eq!(decide(&other, Some(all.clone())), (EntitlementOutcome::Yes, vec![]));
    assert_eq!(
        decide(&other, Some(all[..2].to_vec())),
        (EntitlementOutcome::No, vec![]),
        "not public, and a sub-type"
    );
    // A copy in the store decides by itself.
    records.put_admin(b"0.NA/20.2", b"HS_ADMIN", AdminPermissions::LIST_HANDLES);
    assert_eq!(decide(&OtherRecords(records), Some(all)), (EntitlementOutcome::No, vec![]));
    // A prefix record that is missing where prefix records are homed does not exist.
    let (entitled, rounds, _) =
        decided_with(&MemoryRecords::default(), &create(b"20.2/new"), IDENTITY, |_| {
            panic!("no fact is needed")
        });
    assert_eq!((entitled, rounds), (EntitlementOutcome::No, 0));
}
