//! `docs/operations/admin-settings.md` against `handle-admin`: each setting, its default, its edges, and what a reload takes.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_admin::settings::LIVE;
use handle_tests::process::{program, succeed};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use toml::{Table, Value};

/// One line of a table.
#[derive(Debug)]
struct Row {
    name: String,
    /// What it is when it is not said.
    default: Option<Value>,
    /// The smallest and the largest value, of a number.
    edges: Option<(i64, i64)>,
    is_live: bool,
    /// The other setting that is one of its edges.
    beside: Option<String>,
}

/// Reads and checks a configuration.
fn check(text: &str) -> Result<(), String> {
    let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    config.check().map_err(|error| format!("{error:#}"))
}

fn defaults() -> Table {
    Table::try_from(Config::default()).unwrap()
}

/// The rows of the page.
fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations/admin-settings.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_end_matches('|').split('|').map(str::trim).collect();
        let [name, default, from, to, live, what] = cells[..] else { panic!("six cells: {line}") };
        let default = (!default.is_empty()).then(|| {
            let quoted = default.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            quoted.map_or_else(
                || Value::Integer(number(default)),
                |toml| format!("v = {toml}").parse::<Table>().unwrap()["v"].clone(),
            )
        });
        let edges = (!from.is_empty()).then(|| (number(from), number(to)));
        assert!(["", "reload"].contains(&live), "{line}");
        let beside = what.split_once("at least `").or_else(|| what.split_once("at most `"));
        let beside = beside.and_then(|(_, rest)| Some(rest.split_once('`')?.0.to_owned()));
        Row { name: name.trim_end_matches('`').to_owned(), default, edges, is_live: live == "reload", beside }
    });
    rows.collect()
}

/// A number of the page, as `64 KiB`.
fn number(cell: &str) -> i64 {
    let (digits, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let shift = ["", "KiB", "MiB", "GiB", "TiB"].iter().position(|&known| known == unit);
    digits.parse::<i64>().unwrap_or_else(|_| panic!("{cell} is no number")) << (10 * shift.unwrap())
}

fn get<'a>(table: &'a Table, name: &str) -> Option<&'a Value> {
    match name.split_once('.') {
        Some((section, rest)) => get(table.get(section)?.as_table()?, rest),
        None => table.get(name),
    }
}

fn put(table: &mut Table, name: &str, value: Value) {
    match name.split_once('.') {
        Some((section, rest)) => put(table[section].as_table_mut().unwrap(), rest, value),
        None => drop(table.insert(name.to_owned(), value)),
    }
}

/// The names that a section may have, which is what a wrong one is answered with.
fn known(section: &str) -> BTreeSet<String> {
    let dot = if section.is_empty() { "" } else { "." };
    let said = check(&format!("{section}{dot}nonsense = 0")).unwrap_err();
    let (_, names) = said.split_once("expected ").unwrap_or_else(|| panic!("[{section}]: {said}"));
    names.split('`').skip(1).step_by(2).map(|name| format!("{section}{dot}{name}")).collect()
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let (rows, defaults) = (rows(), defaults());
    let documented: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
    assert_eq!(documented.len(), rows.len(), "each once");
    let mut sections = BTreeSet::from([String::new()]);
    for name in &documented {
        sections.extend(name.match_indices('.').map(|(at, _)| name[..at].to_owned()));
    }
    let mut there: BTreeSet<String> = sections.iter().flat_map(|section| known(section)).collect();
    there.retain(|name| !sections.contains(name));
    assert_eq!(documented, there, "documented, and there");
    for Row { name, default, edges, .. } in rows {
        assert_eq!(get(&defaults, &name), default.as_ref(), "{name}");
        let is_number = matches!(default, Some(Value::Integer(_)));
        assert!(edges.is_some() || !is_number, "from where to where may {name} go?");
    }
}

#[test]
fn every_limit_holds_at_its_edges_and_is_named_beyond() {
    for Row { name, edges, beside, .. } in rows() {
        let Some((least, most)) = edges else { continue };
        let with = |value: i64| {
            let mut table = defaults();
            put(&mut table, &name, Value::Integer(value));
            check(&table.to_string())
        };
        for value in [least, most] {
            assert_eq!(with(value), Ok(()), "{name} = {value}");
        }
        for value in [least - 1, most + 1] {
            let said = with(value).expect_err(&format!("{name} = {value}"));
            let names = [Some(&name), beside.as_ref()].into_iter().flatten();
            // In a line of the file it stands without its section.
            let is_named = |name: &String| said.contains(name.rsplit('.').next().unwrap());
            assert!(names.into_iter().any(is_named), "{name} = {value}: {said}");
        }
    }
}

#[test]
fn a_reload_takes_what_is_marked() {
    for row in rows() {
        let is_live = LIVE.iter().any(|live| {
            row.name.strip_prefix(live).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        assert_eq!(row.is_live, is_live, "{}", row.name);
    }
}

#[test]
fn what_is_printed_names_every_setting_and_reads_back() {
    let mut command = Command::new(program("handle-admin", "handle-admin"));
    command.arg("--print-config");
    let printed = succeed(command);
    assert_eq!(check(&printed), Ok(()));
    let (table, unset) = printed.split_once("# Not set: ").unwrap();
    let (table, unset): (Table, Vec<&str>) = (table.parse().unwrap(), unset.trim().split(", ").collect());
    for Row { name, .. } in rows() {
        // Of a section that is not there its name stands for all.
        let is_unset = unset.iter().any(|unset| name == *unset || name.starts_with(&format!("{unset}.")));
        assert!(is_unset != get(&table, &name).is_some(), "{name}\n{printed}");
    }
}
