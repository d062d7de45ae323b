//! The transaction log: what happened to which handle, and when.

use super::StoreError;

/// The action of a transaction, with the numbers that mirrors receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAction {
    /// A handle was created.
    Create = 1,
    /// A handle was deleted.
    Delete = 2,
    /// The values of a handle were replaced.
    Update = 3,
    /// A prefix was homed.
    Home = 4,
    /// A prefix was released.
    Unhome = 5,
}

impl LogAction {
    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Update,
            4 => Self::Home,
            5 => Self::Unhome,
            _ => return None,
        })
    }

    /// Whether the action concerns the table of homed prefixes and not a record.
    #[must_use]
    pub const fn is_about_homing(self) -> bool {
        matches!(self, Self::Home | Self::Unhome)
    }
}

/// Bounds of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// Transactions before this time are dropped.
    pub before_unix_ms: u64,
    /// The number of transactions that are kept; `None` for all.
    pub transactions_max: Option<u64>,
}

/// The start of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStart {
    /// The last transaction that is not in the log; 0 if the log is complete.
    pub base: u64,
    /// The log has every transaction from this time on, in milliseconds since 1970; `None` before
    /// the first transaction.
    pub unix_ms: Option<u64>,
    /// The number that was used up when the log began anew, as after an import; 0 if it never did.
    pub anew: u64,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The number: one more than that of the previous transaction.
    pub id: u64,
    /// The time, in milliseconds since 1970; never earlier than that of the previous transaction.
    pub unix_ms: u64,
    /// The action.
    pub action: LogAction,
    /// The handle as stored; for a prefix, the name of its record.
    pub handle: Vec<u8>,
}

impl LogEntry {
    pub(super) fn encode(unix_ms: u64, action: LogAction, handle: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(9 + handle.len());
        bytes.extend_from_slice(&unix_ms.to_be_bytes());
        bytes.push(action as u8);
        bytes.extend_from_slice(handle);
        bytes
    }

    pub(super) fn decode(id: u64, bytes: &[u8]) -> Result<Self, StoreError> {
        const NO_ENTRY: StoreError = StoreError::Damaged("an entry of the log does not decode");
        let (unix_ms, rest) = bytes.split_first_chunk().ok_or(NO_ENTRY)?;
        let (&action, handle) = rest.split_first().ok_or(NO_ENTRY)?;
        Ok(Self {
            id,
            unix_ms: u64::from_be_bytes(*unix_ms),
            action: LogAction::from_number(action).ok_or(NO_ENTRY)?,
            handle: handle.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_round_trip() {
        for number in 0..=255 {
            let Some(action) = LogAction::from_number(number) else { continue };
            assert_eq!(action as u8, number);
            let bytes = LogEntry::encode(77, action, b"10.1/a");
            let entry = LogEntry { id: 5, unix_ms: 77, action, handle: b"10.1/a".to_vec() };
            assert_eq!(LogEntry::decode(5, &bytes).unwrap(), entry);
            assert_eq!(action.is_about_homing(), number > 3);
        }
        for bytes in [&b""[..], &[0; 8], &[0; 9], &[0, 0, 0, 0, 0, 0, 0, 0, 6]] {
            assert!(LogEntry::decode(1, bytes).is_err(), "{bytes:?}");
        }
    }
}
