//! Names, case folding, hashes and type filters, compared with the reference implementation:
//! `hashing.jsonl`.

use handle_proto::value::type_matches;
use handle_proto::{Handle, HashOption, fold};
use handle_tests::vectors::{byte_string, bytes, check_kind, check_kinds};
use serde_json::Value;

/// Runs `check` on every line of that kind.
fn check_each(kind: &str, check: impl Fn(&Value)) {
    check_kind("hashing.jsonl", kind, |_, line| check(line));
}

#[test]
fn vectors_have_known_kinds() {
    check_kinds("hashing.jsonl", &["hash", "case_fold", "equality", "type_match"]);
}

#[test]
fn vectors_hash_to_the_same_server() {
    check_each("hash", |line| {
        let name = bytes(&line["handle"]);
        let handle = Handle(&name);
        let number = u8::try_from(line["hash_option"].as_u64().unwrap()).unwrap();
        let Some(option) = HashOption::from_number(number) else {
            assert!(line["server_index"].is_null(), "{line}");
            return;
        };
        let servers_count = u32::try_from(line["number_of_servers"].as_u64().unwrap()).unwrap();
        let hash = line["hash"].as_i64().unwrap();
        // The reference keeps the hash with the sign bit negative and finds no server for it. Ours
        // is unsigned.
        assert_eq!(u64::from(handle.hash(option)), hash.unsigned_abs(), "{line}");
        if hash >= 0 {
            let server_at = handle.server_at(option, servers_count).map(u64::from);
            assert_eq!(server_at, line["server_index"].as_u64(), "{line}");
        }
    });
}

#[test]
fn vectors_fold_and_divide_names() {
    check_each("case_fold", |line| {
        let name = bytes(&line["handle"]);
        let handle = Handle(&name);
        let assert_field =
            |field: &str, ours: &[u8]| assert_eq!(byte_string(ours), line[field], "{field}: {line}");
        assert_field("upper_case", &fold::folded(&name));
        assert_field("upper_case_prefix", &handle.prefix_folded());
        assert_eq!(line["has_slash"], handle.slash_at().is_some(), "{line}");
        assert_field("prefix", handle.naming_authority());
        assert_field("suffix", handle.local_name());
        assert_field("zero_na_handle", &handle.prefix_record());
        assert_field("slashless_to_zero_na", &handle.looked_up());
        assert_eq!(line["is_derived_prefix_handle"], handle.is_derived_prefix_record(), "{line}");
        match handle.parent_prefix_record() {
            // The reference folds this name immediately; here the lookup folds it.
            Some(parent) => assert_field("parent_prefix_handle", &fold::folded(parent.0)),
            None => assert!(line["parent_prefix_handle"].is_null(), "{line}"),
        }
        // The reference also accepts surrogates and sequences of five and six bytes as UTF-8.
        if str::from_utf8(&name).is_ok() {
            assert_eq!(line["valid_utf8_by_library"], true, "{line}");
        }
    });
}

#[test]
fn vectors_compare_names() {
    check_each("equality", |line| {
        let (a, b) = (bytes(&line["a"]), bytes(&line["b"]));
        let is_same = |folds| Handle(&a).is_same(Handle(&b), folds);
        assert_eq!(line["equal_ignoring_case"], is_same(true), "{line}");
        assert_eq!(line["equal_ignoring_prefix_case"], is_same(false), "{line}");
        assert_eq!(line["a_starts_with_b_ignoring_case"], fold::starts_with(&a, &b), "{line}");
    });
}

#[test]
fn vectors_select_values_by_type() {
    check_each("type_match", |line| {
        let kind = bytes(&line["value_type"]);
        let types: Vec<_> = line["query_types"].as_array().unwrap().iter().map(bytes).collect();
        let matches = types.iter().any(|query_type| type_matches(query_type, &kind));
        assert_eq!(line["matches"], matches, "{line}");
    });
}
