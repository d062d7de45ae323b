//! Permission decisions against a plain search.

use arbitrary::{Arbitrary, Unstructured};
use handle_admin::permission::group::EntitlementOutcome;
use handle_admin::permission::view::{DecisionView, RemoteFacts};
use handle_admin::permission::{
    ActionRequirement, Administrators, ConfiguredIdentity, MATRIX, PermissionNeed, RecordAction,
};
use handle_proto::data::{Admin, AdminPermissions, Vlist};
use handle_proto::wire::list::{Reference, References};
use handle_proto::{Handle, Permissions, Value, Values};
use handle_store::{RecordBuf, StoreError, StoreRecord, StoreRecords};
use std::collections::{BTreeMap, BTreeSet};

/// The existing handles; a small number makes collisions frequent.
const HANDLES: [&[u8]; 6] = [b"10.1/A", b"10.1/B", b"10.1/C", b"0.NA/10.1", b"0.NA/10", b"0.NA/0.NA"];
/// Maximum number of values of one plan.
const VALUES_MAX: usize = 64;

/// A reference as numbers.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct ReferenceSpec {
    handle: u8,
    index: u8,
}

impl ReferenceSpec {
    fn reference(self) -> Reference<'static> {
        Reference {
            handle: HANDLES[usize::from(self.handle) % HANDLES.len()],
            index: i32::from(self.index % 4),
        }
    }
}

/// A value that grants a right.
#[derive(Arbitrary, Debug)]
struct GrantSpec {
    at: u8,
    is_public: bool,
    is_sub_type: bool,
    grant: GrantKind,
}

#[derive(Arbitrary, Debug)]
enum GrantKind {
    Admin(u16, ReferenceSpec),
    Group(Vec<ReferenceSpec>),
}

#[derive(Arbitrary, Debug)]
struct PermissionPlan {
    server: Vec<ReferenceSpec>,
    server_full_access: bool,
    prefix_administrators: bool,
    action: u8,
    at: u8,
    who: ReferenceSpec,
    lookups: u8,
}

/// Records in memory; all prefixes are homed.
#[derive(Default)]
struct MemoryRecords(BTreeMap<Vec<u8>, RecordBuf>);

impl StoreRecords for MemoryRecords {
    fn folds(&self) -> bool {
        true
    }

    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
        Ok(self.0.get(key).cloned())
    }

    fn is_homed(&self, _: &[u8]) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl PermissionPlan {
    /// Returns whether the operator's list contains `who`.
    fn names(&self, records: &MemoryRecords, who: Reference<'_>) -> bool {
        self.server_full_access && self.server.iter().any(|spec| is_meant(records, spec.reference(), who))
    }
}

impl MemoryRecords {
    /// Makes records with these values; each value of a record has its position as index.
    fn of(specs: &[GrantSpec]) -> Self {
        let mut encoded: BTreeMap<usize, (usize, Vec<u8>)> = BTreeMap::new();
        for spec in specs {
            let (count, bytes) = encoded.entry(usize::from(spec.at) % HANDLES.len()).or_default();
            *count += 1;
            let mut data = Vec::new();
            let kind: &[u8] = match &spec.grant {
                GrantKind::Admin(bits, reference) => {
                    let reference = reference.reference();
                    let bits = AdminPermissions(*bits);
                    Admin { permissions: bits, reference, legacy: None }.encode(&mut data);
                    if spec.is_sub_type { b"HS_ADMIN.x" } else { b"HS_ADMIN" }
                }
                GrantKind::Group(members) => {
                    let mut storage = Vec::new();
                    let members = members.iter().map(|spec| spec.reference());
                    Vlist(References::build(members, &mut storage)).encode(&mut data);
                    if spec.is_sub_type { b"HS_VLIST.x" } else { b"hs_vlist" }
                }
            };
            let index = i32::try_from(*count).unwrap_or(i32::MAX);
            let permissions = Permissions(if spec.is_public { 0x0e } else { 0x0c });
            Value { permissions, ..Value::new(index, kind, &data) }.encode(bytes);
        }
        let record = |(at, (count, bytes)): (usize, (usize, Vec<u8>))| {
            let values = Values::from_encoded(count, &bytes).expect("the encoded values decode");
            let mut record = Vec::new();
            StoreRecord { id: 1, unix_ms: 1, values }.encode(&mut record);
            (HANDLES[at].to_vec(), RecordBuf::from_bytes(record).expect("the encoded record decodes"))
        };
        Self(encoded.into_iter().map(record).collect())
    }
}

/// Returns whether `reference` means `who`, resolving groups as needed.
fn is_meant(records: &MemoryRecords, reference: Reference<'_>, who: Reference<'_>) -> bool {
    let mut seen = BTreeSet::new();
    let mut left = vec![(reference.handle.to_vec(), reference.index)];
    while let Some((handle, index)) = left.pop() {
        if handle == who.handle && (index == who.index || index == 0) {
            return true;
        }
        if index == 0 || !seen.insert((handle.clone(), index)) {
            continue;
        }
        let Some(record) = records.0.get(&handle) else { continue };
        let group = record.view().value(index).filter(|value| value.kind == b"hs_vlist");
        let Some(Ok(members)) = group.map(|value| Vlist::decode(value.data)) else { continue };
        left.extend(members.0.iter().map(|member| (member.handle.to_vec(), member.index)));
    }
    false
}

/// A decision equals that of the plain search. If the limit on groups is reached, it never grants a
/// right that the plain search does not.
///
/// Input: any bytes, parsed as a plan by the crate `arbitrary`.
pub fn permission(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok(plan) = PermissionPlan::arbitrary(&mut input) else { return };
    let specs = std::iter::from_fn(|| if input.is_empty() { None } else { input.arbitrary().ok() });
    let specs: Vec<GrantSpec> = specs.take(VALUES_MAX).collect();
    let records = MemoryRecords::of(&specs);
    let action: RecordAction = MATRIX[usize::from(plan.action) % MATRIX.len()].action;
    let need = PermissionNeed::of([action], Handle(HANDLES[usize::from(plan.at) % HANDLES.len()]), true);
    let who = plan.who.reference();
    let configured = plan.server.iter().map(|spec| spec.reference());
    let administrators = Administrators {
        server: configured
            .map(|it| ConfiguredIdentity { index: it.index, handle: it.handle.to_vec() })
            .collect(),
        server_full_access: plan.server_full_access,
        prefix_administrators: plan.prefix_administrators,
        lookups_max: usize::from(plan.lookups),
        ..Administrators::default()
    };
    let by_server = plan.names(&records, who);
    let by_record = (plan.prefix_administrators || !need.is_prefix)
        && records.0.get(&need.record).is_some_and(|record| {
            record.view().values.iter().any(|value| {
                let counts = value.kind == b"HS_ADMIN" || (need.sub_types && value.kind == b"HS_ADMIN.x");
                let Ok(admin) = Admin::decode(value.data) else { return false };
                counts
                    && (value.is_public() || !need.is_prefix)
                    && admin.permissions.has(need.bits)
                    && is_meant(&records, admin.reference, who)
            })
        });
    let requirement = ActionRequirement::from(need);
    let facts = RemoteFacts::default();
    let view = DecisionView::new(&records, &|_| true, &facts);
    let decided = administrators.permit(&view, &requirement, who).expect("records in memory can be read");
    match decided {
        EntitlementOutcome::Yes => assert!(by_server || by_record, "{plan:?} {specs:?}"),
        EntitlementOutcome::No => assert!(!by_server && !by_record, "{plan:?} {specs:?}"),
        EntitlementOutcome::GaveUp => {}
    }
    let unbounded = Administrators { lookups_max: 10_000, ..administrators };
    let decided = unbounded.permit(&view, &requirement, who).expect("records in memory can be read");
    assert_eq!(decided == EntitlementOutcome::Yes, by_server || by_record, "{plan:?} {specs:?}");
    assert_ne!(decided, EntitlementOutcome::GaveUp);
}
