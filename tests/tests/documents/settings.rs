//! The settings of each process: their bounds, and the pages in `docs/operations` that list them.
//!
//! Both come from the lines of `settings!`. To write the tables of the pages:
//! `REWRITE_PAGES=1 cargo test -p handle-tests --test documents settings`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::pages::check_part;
use crate::processes::Process;
use handle_daemon::settings::{SettingRow, SettingTable, full_name};
use handle_tests::process::{program, succeed};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use toml::{Table, Value};

impl Process {
    fn rows(&self) -> impl Iterator<Item = &SettingRow> {
        self.tables.iter().flat_map(|table| &table.rows)
    }

    /// Checks the defaults with `value` for one setting.
    fn check_with(&self, row: &SettingRow, value: u64) -> Result<(), String> {
        let mut table = self.defaults.clone();
        put(&mut table, &row.name, i64::try_from(value).unwrap().into());
        (self.check)(&table)
    }

    /// The same after adjusting other settings: those that may not exceed this one are lowered, and
    /// those that bound it are raised.
    fn check_within_bounds(&self, row: &SettingRow, value: u64) -> Result<(), String> {
        let mut table = self.defaults.clone();
        self.put_within_bounds(&mut table, row, value);
        (self.check)(&table)
    }

    fn put_within_bounds(&self, table: &mut Table, row: &SettingRow, value: u64) {
        put(table, &row.name, i64::try_from(value).unwrap().into());
        let number = |row: &SettingRow, table: &Table| {
            get(table, &row.name).and_then(Value::as_integer).unwrap().cast_unsigned()
        };
        for other in self.rows() {
            let (is_bound, is_bounded) =
                (row.at_most.as_ref() == Some(&other.name), other.at_most.as_ref() == Some(&row.name));
            if is_bound && number(other, table) < value || is_bounded && number(other, table) > value {
                self.put_within_bounds(table, other, value);
            }
        }
    }
}

fn get<'t>(table: &'t Table, name: &str) -> Option<&'t Value> {
    match name.split_once('.') {
        Some((section, rest)) => {
            let section = table.get(section)?;
            get(section.as_array().map_or(section, |list| &list[0]).as_table()?, rest)
        }
        None => table.get(name),
    }
}

fn put(table: &mut Table, name: &str, value: Value) {
    match name.split_once('.') {
        Some((section, rest)) => {
            let section = match table.entry(section).or_insert_with(|| Table::new().into()) {
                Value::Array(list) => &mut list[0],
                section => section,
            };
            put(section.as_table_mut().unwrap(), rest, value);
        }
        None => drop(table.insert(name.to_owned(), value)),
    }
}

/// The name without its section, as in a line of the file.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap()
}

#[test]
fn the_defaults_are_valid_and_survive_toml() {
    for process in Process::all() {
        assert_eq!((process.check)(&Table::new()), Ok(()), "{}", process.name);
        let text = toml::to_string(&process.defaults).unwrap();
        let table = text.parse::<Table>().unwrap();
        assert_eq!((process.check)(&table), Ok(()), "{}", process.name);
        assert_eq!((process.reread)(&table), process.defaults, "{}", process.name);
    }
}

#[test]
fn values_at_a_bound_are_accepted_and_beyond_it_refused() {
    for process in Process::all() {
        let mut edges_count = 0;
        for row in process.rows() {
            let Some(bounds) = row.bounds else {
                continue;
            };
            let zero = bounds.or_zero.then_some(0);
            for value in [bounds.least, bounds.most].into_iter().chain(zero) {
                assert_eq!(process.check_within_bounds(row, value), Ok(()), "{} = {value}", row.name);
                edges_count += 1;
            }
            for value in bounds.least.checked_sub(1).into_iter().chain([bounds.most + 1]) {
                let error = process.check_with(row, value).expect_err(&row.name);
                assert!(error.contains(short(&row.name)), "{} = {value}: {error}", row.name);
            }
        }
        assert!(edges_count >= 8, "{}: {edges_count}", process.name);
    }
}

#[test]
fn no_setting_exceeds_the_one_that_bounds_it() {
    for process in Process::all() {
        for row in process.rows() {
            let Some(other) = &row.at_most else { continue };
            let most = get(&process.defaults, other).and_then(Value::as_integer).unwrap().cast_unsigned();
            assert_eq!(process.check_with(row, most), Ok(()), "{}", row.name);
            let error = process.check_with(row, most + 1).expect_err(&row.name);
            assert!(error.contains(&row.name) && error.contains(other), "{error}");
        }
    }
}

#[test]
fn documented_words_are_those_that_are_accepted() {
    let words = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    for process in Process::all() {
        for row in process.rows().filter(|row| row.type_name.contains('`')) {
            let is_list = row.type_name.starts_with("list");
            let value = |text: &str| {
                let text = Value::from(text);
                if is_list { vec![text].into() } else { text }
            };
            let mut table = process.defaults.clone();
            put(&mut table, &row.name, value("nonsense"));
            let error = (process.check)(&table).unwrap_err();
            let (_, expected) = error.split_once("expected ").unwrap();
            let expected = expected.lines().next().unwrap();
            assert_eq!(words(expected), words(&row.type_name), "{}", row.name);
        }
    }
}

#[test]
fn an_unknown_setting_is_refused_in_every_section() {
    for process in Process::all() {
        for table in &process.tables {
            let mut config = process.defaults.clone();
            put(&mut config, &full_name(&table.section, "nonsense"), Value::from(1));
            assert!((process.check)(&config).unwrap_err().contains("nonsense"), "[{}]", table.section);
        }
    }
}

#[test]
fn the_printed_configuration_has_every_setting_and_reads_back() {
    for process in Process::all() {
        let mut command = Command::new(program(process.package, process.name));
        command.arg("--print-config");
        let printed = succeed(command);
        let (table, unset) = printed.split_once("# Not set: ").unwrap();
        let (table, unset): (Table, Vec<&str>) = (table.parse().unwrap(), unset.trim().split(", ").collect());
        assert_eq!((process.check)(&table), Ok(()));
        let tables = process.tables.iter().filter(|table| !table.is_list);
        for SettingRow { name, .. } in tables.flat_map(|table| &table.rows) {
            // An unset section is named instead of its settings.
            let is_unset = unset.iter().any(|unset| name == unset || name.starts_with(&format!("{unset}.")));
            assert!(is_unset != get(&table, name).is_some(), "{name}\n{printed}");
        }
    }
}

/// A number, in units of 1024 if it is a size.
fn number(row: &SettingRow, number: u64) -> String {
    let units = ["", " KiB", " MiB", " GiB", " TiB"];
    let is_size = row.type_name.starts_with("bytes") && number > 0;
    let at = if is_size { (number.trailing_zeros() as usize / 10).min(units.len() - 1) } else { 0 };
    format!("{}{}", number >> (10 * at), units[at])
}

fn default(row: &SettingRow) -> String {
    match &row.default {
        Some(Value::Integer(default)) => number(row, default.cast_unsigned()),
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(default) => format!("`{default}`"),
        None => String::new(),
    }
}

fn allowed(row: &SettingRow) -> String {
    let zero = |or_zero| if or_zero { "0, or " } else { "" };
    let bounds = row.bounds.map(|bounds| {
        let (least, most) = (number(row, bounds.least), number(row, bounds.most));
        format!("{}{least} to {most}", zero(bounds.or_zero))
    });
    let at_most = row.at_most.as_ref().map(|other| format!("at most `{}`", short(other)));
    let words = Some(row.allowed.clone()).filter(|words| !words.is_empty());
    bounds.into_iter().chain(at_most).chain(words).collect::<Vec<_>>().join(", ")
}

/// With what the description of a setting begins.
const BEGIN: &str = "Set this when ";

/// The line of a setting in a table, in Markdown; with `is_live`, a reload applies it.
fn line(row: &SettingRow, is_live: bool) -> String {
    let what: Vec<_> = row.what.iter().map(|line| line.trim()).collect();
    let what = what.join(" ");
    assert!(!what.is_empty(), "`{}` has a doc comment", row.name);
    // The heading of the column says the words with which each begins.
    let what = what.strip_prefix(BEGIN).unwrap_or(&what);
    let default = Some(default(row)).filter(|text| !text.is_empty());
    let reload = is_live.then(|| "reload".to_owned());
    // Values of these types are known by their default, units by the end of the name.
    let is_known = match row.type_name.as_str() {
        "boolean" | "number" | "text" => default.is_some(),
        "milliseconds" => row.name.ends_with("_ms"),
        "seconds" => row.name.ends_with("_s"),
        "bytes" => row.name.ends_with("_bytes"),
        "bytes per second" => row.name.ends_with("_bytes_per_s"),
        _ => false,
    };
    let type_name = (!is_known).then(|| row.type_name.clone());
    let value = [type_name, default.map(|text| format!("default {text}"))]
        .into_iter()
        .chain([Some(allowed(row)).filter(|text| !text.is_empty()), reload])
        .flatten();
    format!("| `{}` | {} | {what} |", row.name, value.collect::<Vec<_>>().join("; "))
}

/// The text in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    text.split(' ').fold(String::new(), |text, word| {
        let len = text.lines().last().unwrap_or_default().chars().count();
        let space = match len {
            0 => "",
            _ if len + 1 + word.chars().count() > 100 => "\n",
            _ => " ",
        };
        text + space + word
    })
}

/// How the line of a setting differs from one in `elsewhere`, if at most by what a reload applies.
fn difference(row: &SettingRow, elsewhere: &BTreeSet<String>) -> Option<&'static str> {
    match row.is_live {
        is_live if elsewhere.contains(&line(row, is_live)) => Some(""),
        true if elsewhere.contains(&line(row, false)) => Some(", but with *reload*"),
        false if elsewhere.contains(&line(row, true)) => Some(", but without *reload*"),
        _ => None,
    }
}

/// The tables of a page, in Markdown. Lines that are also in `elsewhere`, the tables of
/// `settings.md`, are not repeated: a sentence names their settings.
fn rendered(tables: &[SettingTable], elsewhere: &[SettingTable]) -> String {
    let elsewhere = elsewhere.iter().flat_map(|table| &table.rows);
    let elsewhere: BTreeSet<String> = elsewhere.map(|row| line(row, row.is_live)).collect();
    let mut text = String::new();
    for SettingTable { section, is_list, about, rows } in tables {
        let (same, own): (Vec<_>, Vec<_>) =
            rows.iter().map(|row| (row, difference(row, &elsewhere))).partition(|(_, same)| same.is_some());
        if !section.is_empty() {
            let about: Vec<_> = about.iter().map(|line| line.trim()).collect();
            // A table within one of a list belongs to the one before it.
            let is_within = |outer: &SettingTable| {
                outer.is_list
                    && section.strip_prefix(&outer.section).is_some_and(|rest| rest.starts_with('.'))
            };
            let is_list = *is_list && !tables.iter().any(is_within);
            let name = if is_list { format!("[[{section}]]") } else { format!("[{section}]") };
            write!(text, "\n## `{name}`\n").unwrap();
            // The page that has all lines says what the section is about.
            if !own.is_empty() || same.is_empty() {
                write!(text, "\n{}\n", about.join("\n")).unwrap();
            }
        }
        for difference in ["", ", but with *reload*", ", but without *reload*"] {
            let same = same.iter().filter(|(_, one)| *one == Some(difference));
            let names: Vec<_> = same.map(|(row, _)| format!("`{}`", short(&row.name))).collect();
            if !names.is_empty() {
                let anchor = if section.is_empty() { String::new() } else { format!("#{section}") };
                let names = names.join(", ");
                let sentence = format!("As in [settings.md](settings.md{anchor}){difference}: {names}.");
                write!(text, "\n{}\n", wrapped(&sentence)).unwrap();
            }
        }
        if own.is_empty() {
            continue;
        }
        text.push_str("\n| setting | value | set this when |\n|---|---|---|\n");
        for (row, _) in own {
            writeln!(text, "{}", line(row, row.is_live)).unwrap();
        }
    }
    text
}

/// Each setting is there for a situation of an operator, which its description names first. What
/// nobody has to set is a constant.
#[test]
fn the_description_of_each_setting_says_when_to_set_it() {
    let mut wrong = Vec::new();
    for process in Process::all() {
        for row in process.rows() {
            let what = row.what.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            if !what.starts_with(BEGIN) {
                wrong.push(format!("{} {}: {what}", process.name, row.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Most settings of all processes together, each declaration counted once.
const SETTINGS_MAX: usize = 300;

#[test]
fn the_settings_of_all_processes_can_be_read_in_one_sitting() {
    let mut declared = BTreeSet::new();
    for (file, text) in crate::tidy::sources().into_iter().filter(|(file, _)| file.starts_with("engine/")) {
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (at, line) in product.lines().enumerate() {
            let rest = ["live ", "restart "].iter().find_map(|kind| line.trim_start().strip_prefix(kind));
            let name = rest.and_then(|rest| rest.split([':', ' ']).next());
            if let Some(name) = name.filter(|_| line.contains(": ")) {
                declared.insert((file.clone(), at, name.to_owned()));
            }
        }
    }
    // The count is that of the lines from which the settings are made.
    let names: BTreeSet<&str> = declared.iter().map(|(_, _, name)| name.as_str()).collect();
    for process in Process::all() {
        for row in process.rows() {
            assert!(names.contains(short(&row.name)), "the declaration of `{}` is not counted", row.name);
        }
    }
    assert!(declared.len() <= SETTINGS_MAX, "{} settings: at most {SETTINGS_MAX}", declared.len());
}

#[test]
fn the_pages_list_every_setting_as_it_is_declared() {
    let all = Process::all();
    let handled = &all[0].tables;
    for process in &all {
        let elsewhere: &[SettingTable] = if process.name == "handled" { &[] } else { handled };
        let tables = rendered(&process.tables, elsewhere);
        check_part(&process.page("settings"), "settings", "settings", &tables);
    }
}
