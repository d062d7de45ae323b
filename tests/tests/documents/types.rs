//! The predefined types of values on `docs/conformance.md`.
//!
//! The table is made from the rows in `engine/proto/src/data/types.rs` and written by
//! `REWRITE_PAGES=1 cargo test -p handle-tests --test documents types`.

use crate::pages::check_part;
use crate::tidy::sources;
use handle_proto::data::PREDEFINED_TYPES;
use handle_proto::json::json_format;
use std::fmt::Write as _;

#[test]
fn the_page_of_conformance_lists_every_predefined_type_as_its_row_says() {
    let mut text =
        "\n| type | what a value says | data | JSON | defined |\n|---|---|---|---|---|\n".to_owned();
    for row in PREDEFINED_TYPES {
        let name = String::from_utf8_lossy(row.name);
        let json =
            json_format(row.name).map_or_else(|| "`string`, `base64`".to_owned(), |name| format!("`{name}`"));
        let line = format!("| {name} | {} | `{:?}` | {json} | {} |", row.about, row.format, row.origin);
        writeln!(text, "{line}").expect("a string");
    }
    check_part("../conformance.md", "predefined types", "types", &text);
}

/// Files that have the names for another reason: kinds of keys in messages, and records of tests.
const OTHER_FILES: [&str; 4] = [
    "engine/proto/src/wire/",
    "engine/client/src/driver/loopback.rs",
    "engine/client/src/lookup/simulation.rs",
    "engine/client/src/lookup/world.rs",
];

#[test]
fn code_takes_the_names_of_predefined_types_from_the_table() {
    const TABLE: &str = "engine/proto/src/data/types.rs";
    let is_test =
        |file: &str| file.ends_with("tests.rs") || file.contains("/tests/") || file.contains("/examples/");
    let (mut table_names, mut found) = (0, Vec::new());
    for (file, text) in sources() {
        let is_product = file.starts_with("engine/") || file.starts_with("loadgen/src/");
        if !is_product || is_test(&file) || OTHER_FILES.iter().any(|other| file.starts_with(other)) {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        // The prefix alone is none of the names.
        let lines = product.lines().filter(|line| line.contains("b\"HS_") && !line.contains("b\"HS_\""));
        match file == TABLE {
            true => table_names = lines.count(),
            false => found.extend(lines.map(|line| format!("{file}: {}", line.trim()))),
        }
    }
    assert!(table_names > 10, "{TABLE} has {table_names} names");
    assert!(found.is_empty(), "use the names in `handle_proto::data::kind`:\n{}", found.join("\n"));
}
