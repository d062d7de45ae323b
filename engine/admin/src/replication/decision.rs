//! Whether a receiver can continue with the transactions in the log, or has to request all records.

use handle_store::{StoreError, StoreSnapshot};
use serde_json::Value;

const DAY_MS: i64 = 86_400_000;
/// Age of a complete log up to which a receiver without transactions gets those of the log. With an
/// older log, it has to request all records.
const YOUNG_LOG_MS: i64 = 10 * DAY_MS;

/// The log of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// Number of the last transaction; 0 before the first.
    pub last_id: u64,
    /// The last transaction that is not in the log any more; 0 if the log is complete.
    pub base: u64,
    /// The log has every transaction from this time on, in milliseconds since 1970; `None` if the
    /// time is not known.
    pub start_unix_ms: Option<u64>,
    /// The number that was used up when the log began anew, as after an import; 0 if it never did.
    pub anew: u64,
}

/// The progress that a receiver reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverState {
    /// The last transaction that it received.
    pub last_id: i64,
    /// The time up to which it has every transaction, in milliseconds since 1970.
    pub last_unix_ms: i64,
}

/// The state of the log in `snapshot`.
///
/// # Errors
/// When the store cannot be read.
pub fn source_state(snapshot: &StoreSnapshot) -> Result<SourceState, StoreError> {
    let start = snapshot.log_start()?;
    Ok(SourceState {
        last_id: snapshot.last_id()?,
        base: start.base,
        start_unix_ms: start.unix_ms,
        anew: start.anew,
    })
}

/// Whether the receiver has to request all records.
///
/// The rules are those of deployed servers, with two additions. A receiver with a transaction that
/// the source does not have cannot continue: the store of the source was replaced by an older copy,
/// and the numbers of these transactions will be used again. Neither can one from before the log
/// began anew, which lacks what an import has brought: its time does not tell, since the clock of
/// the source may have been set back between its last request and the import.
#[must_use]
pub fn needs_dump(source: &SourceState, receiver: ReceiverState, now_unix_ms: u64) -> bool {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (last_id, now_ms) = (signed(source.last_id), signed(now_unix_ms));
    let (has_id, has_ms) = (receiver.last_id, receiver.last_unix_ms);
    if last_id <= 0 {
        return false;
    }
    if has_id > last_id || source.anew > 0 && has_id < signed(source.anew) {
        return true;
    }
    let Some(start_ms) = source.start_unix_ms.map(signed) else { return last_id > has_id };
    if start_ms <= has_ms {
        return false;
    }
    let is_within_a_day = start_ms <= has_ms.saturating_add(DAY_MS);
    let is_young = now_ms.saturating_sub(start_ms) < YOUNG_LOG_MS;
    let can_begin = has_id <= 0 && source.base == 0 && (is_young || is_within_a_day);
    let can_continue = has_id > 0 && is_within_a_day && signed(source.base) == has_id;
    !can_begin && !can_continue
}

/// The progress of a receiver with several sources, from the JSON of its request.
#[derive(Clone, Debug, Default)]
pub struct SourceStates {
    /// The name of the receiver's own site.
    pub own_name: Option<String>,
    states: Value,
}

impl SourceStates {
    /// Parses the JSON; `None` if it does not have the expected form.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut json: Value = serde_json::from_slice(text).ok()?;
        let own_name = match json.get("ownName") {
            None | Some(Value::Null) => None,
            Some(name) => Some(name.as_str()?.to_owned()),
        };
        let states = json.as_object_mut()?.remove("replicationServerStates").unwrap_or_default();
        let is_valid = match &states {
            Value::Null => true,
            Value::Object(states) => states.values().all(Value::is_object),
            _ => false,
        };
        is_valid.then_some(Self { own_name, states })
    }

    /// The progress with the queue called `name`; that of a new receiver if the queue is not named.
    #[must_use]
    pub fn of(&self, name: &str) -> ReceiverState {
        let Some(state) = self.states.get(name) else { return ReceiverState::default() };
        let number = |member: &str| state.get(member).and_then(Value::as_i64).unwrap_or(0);
        ReceiverState { last_id: number("lastTxnId"), last_unix_ms: number("lastTimestamp") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: u64 = 86_400_000;

    fn decide(source: (u64, u64, Option<u64>), receiver: (i64, u64)) -> bool {
        let (last_id, base, start_unix_ms) = source;
        let receiver = ReceiverState { last_id: receiver.0, last_unix_ms: receiver.1.cast_signed() };
        needs_dump(&SourceState { last_id, base, start_unix_ms, anew: 0 }, receiver, NOW)
    }

    #[test]
    fn an_empty_source_requires_no_dump() {
        for receiver in [(0, 0), (-1, 0), (7, NOW)] {
            assert!(!decide((0, 0, None), receiver), "{receiver:?}");
        }
    }

    #[test]
    fn a_receiver_ahead_of_the_source_begins_anew() {
        assert!(decide((5, 0, Some(NOW)), (6, NOW)));
        assert!(!decide((5, 0, Some(NOW)), (5, NOW)));
    }

    #[test]
    fn a_receiver_from_before_the_log_began_anew_begins_anew_whatever_its_time() {
        let source = SourceState { last_id: 9, base: 7, start_unix_ms: Some(NOW - DAY), anew: 7 };
        for (last_id, expected) in [(0, true), (6, true), (7, false), (9, false)] {
            let receiver = ReceiverState { last_id, last_unix_ms: NOW.cast_signed() };
            assert_eq!(needs_dump(&source, receiver, NOW), expected, "{last_id}");
        }
    }

    #[test]
    fn without_a_log_only_a_receiver_with_all_transactions_continues() {
        assert!(decide((5, 5, None), (4, NOW)));
        assert!(!decide((5, 5, None), (5, 0)));
    }

    #[test]
    fn a_receiver_that_is_complete_up_to_the_start_continues() {
        assert!(!decide((100, 50, Some(NOW - DAY)), (3, NOW - DAY)));
        assert!(decide((100, 50, Some(NOW - DAY)), (3, NOW - DAY - 1)));
        assert!(!decide((100, 50, Some(NOW - DAY)), (0, NOW - DAY)));
    }

    #[test]
    fn a_new_receiver_gets_the_transactions_of_a_young_complete_log() {
        assert!(!decide((100, 0, Some(NOW - 10 * DAY + 1)), (0, 0)));
        assert!(decide((100, 0, Some(NOW - 10 * DAY)), (0, 0)), "ten days old");
        assert!(!decide((100, 0, Some(NOW - 10 * DAY)), (-1, NOW - 11 * DAY)), "within a day");
        assert!(decide((100, 0, Some(NOW - 10 * DAY)), (0, NOW - 11 * DAY - 1)));
        assert!(decide((100, 1, Some(NOW - DAY)), (0, 0)), "the log lacks the first transaction");
    }

    #[test]
    fn a_receiver_within_a_day_continues_where_the_log_begins() {
        let start = NOW - 5 * DAY;
        assert!(!decide((100, 7, Some(start)), (7, start - DAY)));
        assert!(decide((100, 7, Some(start)), (7, start - DAY - 1)));
        assert!(decide((100, 7, Some(start)), (6, start - DAY)), "a gap");
        assert!(decide((100, 7, Some(start)), (8, start - DAY)));
    }

    #[test]
    fn states_of_several_sources_are_read() {
        let text = br#"{"replicationServerStates":{"0:1:10/svc":{"lastTxnId":7,"lastTimestamp":1000}},"ownName":"me"}"#;
        let states = SourceStates::parse(text).unwrap();
        assert_eq!(states.of("0:1:10/svc"), ReceiverState { last_id: 7, last_unix_ms: 1000 });
        assert_eq!(states.of("1:1:10/svc"), ReceiverState::default());
        assert_eq!(states.own_name.as_deref(), Some("me"));
        assert_eq!(SourceStates::parse(b"{}").unwrap().of("x"), ReceiverState::default());
        for wrong in [
            "",
            "[]",
            "7",
            "{\"ownName\":7}",
            "{\"replicationServerStates\":[]}",
            "{\"replicationServerStates\":{\"a\":1}}",
        ] {
            assert!(SourceStates::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let deep = "[".repeat(100_000);
        assert!(SourceStates::parse(deep.as_bytes()).is_none());
    }
}
