//! `docs/snapshot-format.md` agrees with `format.rs`.
#![cfg(feature = "std")]

use handle_snapshot::format::{self, header_at};
use handle_snapshot::set::{manifest, steps};
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};
use std::collections::BTreeMap;
use std::io::Cursor;

const DOCUMENT: &str = include_str!("../../../docs/snapshot-format.md");

/// Rows of tables whose first cell is one name in back quotes, by name; second cell without quotes.
fn rows(part: &str) -> BTreeMap<&str, &str> {
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.strip_suffix('`')?;
        Some((name, cells.next()?.trim_matches('`')))
    };
    let (from, to) = part.split_once("..").expect("a range of headings");
    let from = DOCUMENT.find(from).expect("a heading");
    let to = DOCUMENT[from..].find(to).map_or(DOCUMENT.len(), |to| from + to);
    DOCUMENT[from..to].lines().filter_map(row).collect()
}

macro_rules! constants {
    ($module:ident: $($name:ident)*) => {
        BTreeMap::from([$((stringify!($name), $module::$name.to_string())),*])
    };
}

fn assert_same(document: &BTreeMap<&str, &str>, code: &BTreeMap<&str, String>) {
    let code: BTreeMap<&str, &str> = code.iter().map(|(&name, value)| (name, value.as_str())).collect();
    assert_eq!(document, &code, "left: docs/snapshot-format.md, right: the code");
}

#[test]
fn constants_are_those_of_the_code() {
    let mut layer = constants!(format:
        VERSION HEADER_LEN SECTION_ALIGN FLAG_FOLDS FLAG_HOMED FLAG_WITHIN LAYER_LEN_MAX
    );
    layer.insert("MAGIC", String::from_utf8_lossy(&format::MAGIC).into_owned());
    assert_same(&rows("## Layer..### Header"), &layer);
    let records = constants!(format:
        RECORD_ALIGN RECORD_HEAD_LEN RECORD_SUM_LEN RECORD_TOMBSTONE POSITION_LEN KEY_LEN_MAX VALUES_COUNT_MAX
        MESSAGE_OVERHEAD_LEN VALUES_LEN_MAX RECORD_LEN_MAX
    );
    assert_same(&rows("### Records..### Index"), &records);
    let index = constants!(format:
        BUCKET_LEN BUCKET_SLOTS BUCKET_HANDLES BUCKET_SPAN_LEN DISTANCES_AT BASE_AT BASE_BITS
        BUCKET_SUM_BITS PROBE_BUCKETS_MAX
    );
    assert_same(&rows("### Index..### Homed"), &index);
    let set = constants!(manifest:
        MANIFEST_FIRST_LINE MANIFEST_LEN_MAX LAYERS_MAX FILE_NAME_LEN_MAX LAYER_SUFFIX
    );
    assert_same(&rows("## MANIFEST..## Publishing"), &set);
    let steps = constants!(steps:
        STEPS_SUFFIX STEPS_HEAD_LEN STEPS_ROW_LEN STEPS_MAX STEPS_LEN_MAX RECIPE_PARTS_MAX FLAG_WHOLE
        FLAG_DROPS_TOMBSTONES FLAG_HOMED_LIST
    );
    assert_same(&rows("## Steps..## (none)"), &steps);
}

#[test]
fn header_offsets_are_those_of_the_code() {
    let header = constants!(header_at:
        MAGIC VERSION FLAGS FILE_LEN SEED CREATED_UNIX_MS HANDLES_COUNT TOMBSTONES_COUNT RECORDS_AT
        RECORDS_LEN RECORDS_SUM HOMED_AT HOMED_LEN HOMED_SUM HOMED_COUNT HOMED_BUCKETS HOMED_INDEX_LEN
        INDEX_AT INDEX_LEN INDEX_SUM INDEX_BUCKETS PRIVATE_COUNT CONTENT_DIGEST RESERVED HEADER_SUM
    );
    assert_same(&rows("### Header..### Records"), &header);
}

#[test]
fn the_manifest_shown_is_one() {
    let at = DOCUMENT.find("handle snapshot set 2\n").expect("the example");
    let example = DOCUMENT[at..].split("```").next().expect("its end");
    let parsed = manifest::Manifest::parse(example.as_bytes());
    let end = format::checksum(&example.as_bytes()[..example.find("end ").expect("its last line")]);
    assert!(parsed.is_ok(), "{parsed:?}; its last line is: end {end:016x}");
}

/// Published files have this layout: if this test fails, `VERSION` must go up.
#[test]
fn the_layout_is_frozen() {
    use handle_proto::{Permissions, Value};
    let options =
        LayerOptions { seed: 0x0123_4567_89ab_cdef, folds: true, created_unix_ms: 1_700_000_000_000 };
    let mut homed = HomedPrefixes::default();
    assert!(homed.add(b"10.1045") && homed.add(b"0.NA/10"));
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
    for n in 0..20_u8 {
        let data = [n; 9];
        let private = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", &data[..5]) };
        let values = [private, Value::new(1, b"URL", b"https://example.org/"), Value::new(2, b"DESC", &data)];
        builder.add(n.into(), format!("10.1045/test-{n}").as_bytes(), values).expect("a record");
    }
    builder.delete(20, b"10.1045/gone").expect("a record");
    let (bytes, _) = builder.finish(Cursor::new(Vec::new())).expect("a layer");
    let bytes = bytes.into_inner();
    assert_eq!(
        (bytes.len(), format::checksum(&bytes)),
        (4032, 16_730_719_426_990_042_119),
        "length and checksum of the file"
    );
}
