//! The tag of a record, by which clients of HTTP name a state of it. `handle-gateway` computes it
//! from a published set, and `handle-admin` from the store.

use handle_proto::Value;
use handle_proto::wire::guard::RecordTag;
use xxhash_rust::xxh3::xxh3_128;

/// The tag of a record with these values. Values that are not public do not count: a tag must not
/// show that they changed.
#[must_use]
pub fn record_tag<'v>(values: impl IntoIterator<Item = Value<'v>>) -> RecordTag {
    let mut public = Vec::new();
    values.into_iter().filter(Value::is_public).for_each(|value| value.encode(&mut public));
    tag_of_public_values(&public)
}

/// The tag of a record with these public values, in wire form and stored order.
#[must_use]
pub fn tag_of_public_values(encoded: &[u8]) -> RecordTag {
    xxh3_128(encoded).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Permissions;

    #[test]
    fn the_tag_is_that_of_the_public_values_in_their_order() {
        let (url, other) = (Value::new(1, b"URL", b"https://a/"), Value::new(2, b"URL", b"https://b/"));
        let hidden = Value { permissions: Permissions(0x0c), ..Value::new(3, b"HS_SECKEY", b"secret") };
        let tag = record_tag([url, other]);
        assert_eq!(record_tag([url, hidden, other]), tag);
        let mut encoded = Vec::new();
        url.encode(&mut encoded);
        other.encode(&mut encoded);
        assert_eq!(tag_of_public_values(&encoded), tag);
        let changed = [
            vec![other, url],
            vec![url],
            vec![],
            vec![url, Value { timestamp: 1, ..other }],
            vec![url, Value { data: b"https://c/", ..other }],
        ];
        for values in changed {
            assert_ne!(record_tag(values.iter().copied()), tag, "{values:?}");
        }
    }
}
