//! What of a new configuration can be in force without a new process: a difference of settings by name.
//!
//! What is in force and what is to be are written out as tables; names that the process lists as live are taken over,
//! the others stay as they are, and are named.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// What became of a new configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingChanges {
    /// Settings that are in force now.
    pub changed: Vec<String>,
    /// Settings that differ from what is in force, and need a new process.
    pub need_restart: Vec<String>,
}

/// `old` with those settings of `new` that are `live`; a name stands for all that begin with it and a dot, too.
///
/// # Errors
/// When one of them is no table.
pub fn merged<C: Serialize + DeserializeOwned>(
    old: &C,
    new: &C,
    live: &[&str],
) -> anyhow::Result<(C, SettingChanges)> {
    let (mut table, mut changes) = (Table::try_from(old)?, SettingChanges::default());
    let (before, after) = (flat(&table), flat(&Table::try_from(new)?));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|&name| before.get(name) != after.get(name)) {
        if live.iter().any(|live| is_under(name, live)) {
            put(&mut table, name, after.get(name));
            changes.changed.push(name.clone());
        } else {
            changes.need_restart.push(name.clone());
        }
    }
    Ok((table.try_into()?, changes))
}

/// Whether `name` is a setting of `config`, or there are some that begin with it and a dot.
///
/// # Errors
/// When it is no table.
pub fn has<C: Serialize>(config: &C, name: &str) -> anyhow::Result<bool> {
    Ok(flat(&Table::try_from(config)?).keys().any(|setting| is_under(setting, name)))
}

/// `config` as TOML, as it can be read back. Settings without a value, which TOML has no word for, are named behind it.
///
/// # Errors
/// When it is no table.
pub fn shown<C: Serialize>(config: &C) -> anyhow::Result<String> {
    let mut text = toml::to_string(config)?;
    let unset = unset(&serde_json::to_value(config)?, "");
    if !unset.is_empty() {
        text.push_str(&format!("\n# Not set: {}\n", unset.join(", ")));
    }
    Ok(text)
}

/// Names with dots of what is null.
fn unset(value: &serde_json::Value, name: &str) -> Vec<String> {
    match value {
        serde_json::Value::Null => vec![name.to_owned()],
        serde_json::Value::Object(members) => {
            let dot = if name.is_empty() { "" } else { "." };
            members.iter().flat_map(|(member, value)| unset(value, &format!("{name}{dot}{member}"))).collect()
        }
        _ => Vec::new(),
    }
}

fn is_under(name: &str, above: &str) -> bool {
    name.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// All settings by their names with dots.
fn flat(table: &Table) -> BTreeMap<String, Value> {
    fn walk(table: &Table, prefix: &str, found: &mut BTreeMap<String, Value>) {
        for (name, value) in table {
            let name = format!("{prefix}{name}");
            match value {
                Value::Table(table) => walk(table, &format!("{name}."), found),
                value => drop(found.insert(name, value.clone())),
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(table, "", &mut found);
    found
}

/// Puts a setting to its place, or takes it away.
fn put(table: &mut Table, name: &str, value: Option<&Value>) {
    if let Some((section, rest)) = name.split_once('.') {
        let section = table.entry(section).or_insert_with(|| Table::new().into());
        if let Value::Table(section) = section {
            put(section, rest, value);
        }
    } else if let Some(value) = value {
        table.insert(name.to_owned(), value.clone());
    } else {
        table.remove(name);
    }
}
