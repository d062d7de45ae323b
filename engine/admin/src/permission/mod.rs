//! Permissions: the rights that each action requires, and whether an identity has them.
//!
//! - [`MATRIX`] is the deployed table: for each action, the record whose HS_ADMIN values decide,
//!   and the bits that are required.
//! - [`ActionRequirement`] is what one request requires: all bits of a row in one value, for each
//!   record concerned.
//! - [`group`] finds out whether references include an identity, directly or through groups.
//! - [`view`] is the data for decisions: the store, and facts received from other services.
//!
//! RFC 3652 section 3.6 and RFC 3651 section 4, with the deployed differences.

pub mod group;
#[cfg(test)]
mod tests;
pub mod view;

use group::{Entitlement, EntitlementOutcome};
use handle_proto::data::admin::{Admin, AdminPermissions};
use handle_proto::data::{is_a, kind};
use handle_proto::name::{PREFIX_RECORDS, ROOT};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, Value, fold};
use handle_store::{StoreError, StoreRecords, key};
use std::fmt;
use view::DecisionView;

/// An action on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordAction {
    /// Read values that are not public.
    Read,
    /// Create a handle under a prefix.
    CreateHandle,
    /// Create the record of a prefix that is not derived.
    CreatePrefix,
    /// Create the record of a derived prefix.
    CreateDerivedPrefix,
    /// Delete a handle.
    Delete,
    /// Add a value.
    AddValue,
    /// Add an administrator.
    AddAdmin,
    /// Remove a value.
    RemoveValue,
    /// Remove an administrator.
    RemoveAdmin,
    /// Change a value.
    ModifyValue,
    /// Change an administrator.
    ModifyAdmin,
    /// Replace an administrator by another value.
    AdminToValue,
    /// Replace another value by an administrator.
    ValueToAdmin,
    /// List the handles under a prefix.
    List,
}

/// The record whose HS_ADMIN values decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidingRecord {
    /// The handle itself.
    Handle,
    /// The record of its prefix.
    PrefixRecord,
    /// The record of the prefix records, `0.NA/0.NA`.
    Root,
    /// The record of the prefix that it is derived from.
    ParentPrefixRecord,
}

/// The rights that one action requires.
#[derive(Clone, Copy, Debug)]
pub struct RightsRow {
    /// The action.
    pub action: RecordAction,
    /// The record whose HS_ADMIN values decide.
    pub decides: DecidingRecord,
    /// The required bits; a single value must have all of them.
    pub bits: AdminPermissions,
    /// Whether sub-types, `HS_ADMIN.x`, count as HS_ADMIN.
    pub sub_types: bool,
}

const fn row(
    action: RecordAction,
    decides: DecidingRecord,
    bits: AdminPermissions,
    sub_types: bool,
) -> RightsRow {
    RightsRow { action, decides, bits, sub_types }
}

/// The table, in the order of [`RecordAction`].
pub const MATRIX: [RightsRow; 14] = {
    use AdminPermissions as Bits;
    use DecidingRecord::{Handle, ParentPrefixRecord, PrefixRecord, Root};
    [
        row(RecordAction::Read, Handle, Bits::READ_VALUE, false),
        row(RecordAction::CreateHandle, PrefixRecord, Bits::ADD_HANDLE, false),
        row(RecordAction::CreatePrefix, Root, Bits::ADD_HANDLE, false),
        row(RecordAction::CreateDerivedPrefix, ParentPrefixRecord, Bits::ADD_DERIVED_PREFIX, false),
        row(RecordAction::Delete, Handle, Bits::DELETE_HANDLE, false),
        row(RecordAction::AddValue, Handle, Bits::ADD_VALUE, true),
        row(RecordAction::AddAdmin, Handle, Bits::ADD_ADMIN, true),
        row(RecordAction::RemoveValue, Handle, Bits::REMOVE_VALUE, true),
        row(RecordAction::RemoveAdmin, Handle, Bits::REMOVE_ADMIN, true),
        row(RecordAction::ModifyValue, Handle, Bits::MODIFY_VALUE, true),
        row(RecordAction::ModifyAdmin, Handle, Bits::MODIFY_ADMIN, true),
        row(RecordAction::AdminToValue, Handle, Bits(Bits::REMOVE_ADMIN.0 | Bits::MODIFY_VALUE.0), true),
        row(RecordAction::ValueToAdmin, Handle, Bits(Bits::MODIFY_VALUE.0 | Bits::ADD_ADMIN.0), true),
        row(RecordAction::List, PrefixRecord, Bits::LIST_HANDLES, false),
    ]
};

impl RecordAction {
    /// The row of this action in the table.
    #[must_use]
    pub const fn row(self) -> &'static RightsRow {
        &MATRIX[self as usize]
    }

    /// The action of creating `handle`.
    #[must_use]
    pub fn creating(handle: Handle<'_>) -> Self {
        if handle.is_derived_prefix_record() {
            Self::CreateDerivedPrefix
        } else if handle.is_prefix_record() {
            Self::CreatePrefix
        } else {
            Self::CreateHandle
        }
    }

    /// The action of replacing `stored` by a value of type `kind`.
    #[must_use]
    pub fn modifying(stored: &Value<'_>, kind: &[u8]) -> Self {
        match (is_admin(stored.kind), is_admin(kind)) {
            (false, false) => Self::ModifyValue,
            (true, true) => Self::ModifyAdmin,
            (true, false) => Self::AdminToValue,
            (false, true) => Self::ValueToAdmin,
        }
    }
}

/// Whether adding, modifying and removing values of this type counts as changing administrators.
#[must_use]
pub fn is_admin(kind: &[u8]) -> bool {
    is_a(kind, kind::HS_ADMIN)
}

/// A need for rights in one record: a single HS_ADMIN value with all these bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionNeed {
    /// The name of the deciding record, as it is stored.
    pub record: Vec<u8>,
    /// Whether that is the record of a prefix. Of such a record only public values count, as
    /// deployed servers resolve it.
    pub is_prefix: bool,
    /// The required bits.
    pub bits: AdminPermissions,
    /// Whether sub-types count.
    pub sub_types: bool,
}

impl PermissionNeed {
    /// The need for doing all of `actions` to `handle`. The same record must decide all of them.
    ///
    /// # Panics
    /// When `actions` is empty.
    #[must_use]
    pub fn of(actions: impl IntoIterator<Item = RecordAction>, handle: Handle<'_>, folds: bool) -> Self {
        let mut rows = actions.into_iter().map(RecordAction::row);
        let first = rows.next().expect("an action");
        let bits = rows.fold(first.bits, |bits, row| bits.with(row.bits));
        let record = match first.decides {
            DecidingRecord::Handle => handle.0.to_vec(),
            DecidingRecord::PrefixRecord => handle.prefix_record(),
            DecidingRecord::Root => ROOT.to_vec(),
            DecidingRecord::ParentPrefixRecord => {
                handle.parent_prefix_record().map_or_else(|| ROOT.to_vec(), |parent| parent.0.to_vec())
            }
        };
        let is_prefix = first.decides != DecidingRecord::Handle;
        Self { record: key(&record, folds), is_prefix, bits, sub_types: first.sub_types }
    }

    /// The need for listing the handles under `prefix_record`.
    #[must_use]
    pub fn listing(prefix_record: &[u8], folds: bool) -> Self {
        let row = RecordAction::List.row();
        let record = key(prefix_record, folds);
        Self { record, is_prefix: true, bits: row.bits, sub_types: row.sub_types }
    }
}

/// What a request requires: all needs of at least one alternative.
///
/// Without alternatives, no identity meets the requirement; an empty alternative is met by every
/// proven identity. Administrators of the server are exempt where
/// [`server_full_access`](Administrators::server_full_access) is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionRequirement(pub Vec<Vec<PermissionNeed>>);

impl ActionRequirement {
    /// Requires a proven identity and no right. A claimed identity gets nothing but a refusal.
    #[must_use]
    pub fn identity() -> Self {
        Self(vec![Vec::new()])
    }
}

impl From<PermissionNeed> for ActionRequirement {
    fn from(need: PermissionNeed) -> Self {
        Self(vec![vec![need]])
    }
}

impl fmt::Display for ActionRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, needs) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { ", or " } else { "" })?;
            for (at, need) in needs.iter().enumerate() {
                f.write_str(if at > 0 { " and " } else { "" })?;
                let names = AdminPermissions::KNOWN.iter().filter(|(bit, _)| need.bits.has(*bit));
                for (at, (_, name)) in names.enumerate() {
                    write!(f, "{}{name}", if at > 0 { "+" } else { "" })?;
                }
                write!(f, " at {}", Handle(&need.record))?;
            }
        }
        Ok(())
    }
}

/// An identity in the configuration: an administrator of the server, or a group of them.
pub type ConfiguredIdentity = handle_daemon::identity::HandleIdentity;

/// The identities to which the configuration gives rights.
#[derive(Clone, Debug, Default)]
pub struct Administrators {
    /// Administrators of the server.
    pub server: Vec<ConfiguredIdentity>,
    /// Whether the administrators of the server may do everything with every record.
    pub server_full_access: bool,
    /// Identities that may home and release prefixes, beside the administrators of the server.
    pub home_only: Vec<ConfiguredIdentity>,
    /// Identities that may ask for transactions and all records, beside the administrators of the
    /// server.
    pub replication: Vec<ConfiguredIdentity>,
    /// Identities that may ask for a backup, beside the administrators of the server.
    pub backup: Vec<ConfiguredIdentity>,
    /// Identities that may read the state of the server, beside the administrators of the server.
    pub status: Vec<ConfiguredIdentity>,
    /// Whether the administrators of prefixes may create handles and list them.
    pub prefix_administrators: bool,
    /// Maximum number of values of groups that are looked up for one decision.
    pub lookups_max: usize,
}

/// A duty that only identities in the configuration may perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorDuty {
    /// Home and release prefixes, and list them.
    Homing,
    /// Ask for transactions, and for all records.
    Replication,
    /// Ask for a backup.
    Backup,
    /// Read the state of the server.
    Status,
}

impl Administrators {
    /// The configured identities for `duty`, beside the administrators of the server.
    fn duty_identities(&self, duty: OperatorDuty) -> &[ConfiguredIdentity] {
        match duty {
            OperatorDuty::Homing => &self.home_only,
            OperatorDuty::Replication => &self.replication,
            OperatorDuty::Backup => &self.backup,
            OperatorDuty::Status => &self.status,
        }
    }

    /// Whether `identity` has the duty `duty`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn holds(
        &self,
        view: &DecisionView<'_, impl StoreRecords>,
        duty: OperatorDuty,
        identity: Reference<'_>,
    ) -> Result<EntitlementOutcome, StoreError> {
        let mut entitlement = Entitlement::new(view, identity, self.lookups_max);
        let all = self.server.iter().chain(self.duty_identities(duty));
        entitlement.ask(all.map(reference))
    }

    /// Whether `identity` meets `requirement`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn permit(
        &self,
        view: &DecisionView<'_, impl StoreRecords>,
        requirement: &ActionRequirement,
        identity: Reference<'_>,
    ) -> Result<EntitlementOutcome, StoreError> {
        let mut entitlement = Entitlement::new(view, identity, self.lookups_max);
        let mut verdict = match self.server_full_access {
            true => entitlement.ask(self.server.iter().map(reference))?,
            false => EntitlementOutcome::No,
        };
        if verdict == EntitlementOutcome::Yes {
            return Ok(verdict);
        }
        'alternatives: for needs in &requirement.0 {
            for need in needs {
                match self.meets(view, need, &mut entitlement)? {
                    EntitlementOutcome::Yes => {}
                    other => {
                        verdict = verdict.max(other);
                        continue 'alternatives;
                    }
                }
            }
            return Ok(EntitlementOutcome::Yes);
        }
        Ok(verdict)
    }

    /// Whether one HS_ADMIN value of the record of `need` has all required bits and names the
    /// identity, directly or through a group.
    fn meets(
        &self,
        view: &DecisionView<'_, impl StoreRecords>,
        need: &PermissionNeed,
        entitlement: &mut Entitlement<'_, impl StoreRecords>,
    ) -> Result<EntitlementOutcome, StoreError> {
        if need.is_prefix && !self.prefix_administrators {
            return Ok(EntitlementOutcome::No);
        }
        let record = view.administrators(&need.record, need.is_prefix)?;
        let candidates = record.values().filter_map(|value| {
            let counts = fold::eq(value.kind, kind::HS_ADMIN) || (need.sub_types && is_admin(value.kind));
            let counts = counts && (!need.is_prefix || value.is_public());
            let admin = Admin::decode(value.data).ok().filter(|_| counts)?;
            admin.permissions.has(need.bits).then_some(admin.reference)
        });
        entitlement.ask(candidates)
    }
}

fn reference(configured: &ConfiguredIdentity) -> Reference<'_> {
    Reference { handle: &configured.handle, index: configured.index }
}

/// The record of the prefix that `handle` names in any form: `10.1045`, `0.na/10.1045`; `None` for
/// other handles.
#[must_use]
pub fn prefix_record(handle: &[u8]) -> Option<Vec<u8>> {
    let name = Handle(handle).looked_up();
    let folded = fold::folded(&name);
    folded.starts_with(PREFIX_RECORDS).then_some(folded)
}
