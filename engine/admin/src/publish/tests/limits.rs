//! The limits of records in the store are those of layers.

use handle_proto::Value;
use handle_proto::limit::{HANDLE_LEN_MAX, REFERENCES_COUNT_MAX, VALUES_COUNT_MAX, VALUES_LEN_MAX};
use handle_proto::wire::list::References;
use handle_snapshot::{Builder, LayerOptions};

#[test]
fn what_the_store_takes_fits_into_a_layer_and_nothing_else_does() {
    let references = vec![0; 8 * (REFERENCES_COUNT_MAX + 1)];
    let refers = |count: usize| Value {
        references: References::from_encoded(count, &references[..8 * count]).unwrap(),
        ..Value::new(2, b"URL", b"x")
    };
    let bytes = vec![b'x'; VALUES_LEN_MAX];
    let free = VALUES_LEN_MAX - Value::LEN_MIN;
    let long = |kind_len: usize, data_len: usize| Value::new(1, &bytes[..kind_len], &bytes[..data_len]);
    let indexes = 1..=i32::try_from(VALUES_COUNT_MAX).unwrap() + 1;
    let many: Vec<_> = indexes.map(|index| Value::new(index, b"", b"")).collect();
    let (name, prefix) = ([b'/'; HANDLE_LEN_MAX + 1], [b'1'; HANDLE_LEN_MAX]);
    let prefix_len = HANDLE_LEN_MAX - "0.NA/".len();
    for (handle, values, why) in [
        (&b"1/a"[..], &[long(0, free)][..], None),
        (b"1/a", &[long(free, 0)], None),
        (b"1/a", &[long(1, free)], Some("the values take 258049 bytes together; at most 258048 can be")),
        (b"1/a", &[long(free, 1)], Some("the values take 258049 bytes")),
        (b"1/a", &[refers(REFERENCES_COUNT_MAX)], None),
        (
            b"1/a",
            &[refers(REFERENCES_COUNT_MAX + 1)],
            Some("the value with index 2 has more than 1024 references"),
        ),
        (b"1/a", &many[1..], None),
        (b"1/a", &many, Some("there are more than 2048 values")),
        (b"1/a", &[Value::new(0, b"", b"")], Some("the index 0 is below 1")),
        (b"1/a", &[many[0], many[0]], Some("two values have the index 1")),
        (&name[..HANDLE_LEN_MAX], &[], None),
        (&name, &[], Some("the handle has more than 2048 bytes")),
        (&prefix[..prefix_len], &[], None),
        (&prefix[..=prefix_len], &[], Some("the handle has more than 2048 bytes")),
    ] {
        let mut layer =
            Builder::new(&std::env::temp_dir(), LayerOptions { seed: 1, folds: true, created_unix_ms: 1 });
        let published = layer.add(1, &handle_store::key(handle, true), values.iter().copied());
        let stored = handle_store::check_record(handle, values.iter().copied());
        assert_eq!(published.is_err(), why.is_some(), "{published:?}");
        let stored = stored.map_err(|unfit| unfit.to_string());
        assert!(stored == Ok(()) && why.is_none() || stored.unwrap_err().starts_with(why.unwrap()));
    }
}
