//! Reloading a configuration: compares settings by name, and tells which changes take effect
//! without a restart.
//!
//! The configuration in force and the new one are compared as tables. Settings that the process
//! lists as live are applied. Other changed settings keep their value and are reported.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingChanges {
    /// Settings whose new value is in force.
    pub changed: Vec<String>,
    /// Settings whose new value needs a restart.
    pub need_restart: Vec<String>,
}

/// `old` with those settings of `new` that are `live`. A name also stands for all settings that
/// begin with it and a dot.
///
/// # Errors
/// When a configuration does not serialize to a table.
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

/// Whether `name` is a setting of `config`, or the start of one that continues with a dot.
///
/// # Errors
/// When `config` does not serialize to a table.
pub fn has<C: Serialize>(config: &C, name: &str) -> anyhow::Result<bool> {
    Ok(flat(&Table::try_from(config)?).keys().any(|setting| is_under(setting, name)))
}

/// `config` as TOML that can be read back. Settings without a value, which TOML cannot express, are
/// listed after it.
///
/// # Errors
/// When `config` does not serialize to a table.
pub fn shown<C: Serialize>(config: &C) -> anyhow::Result<String> {
    let mut text = toml::to_string(config)?;
    let unset = unset(&serde_json::to_value(config)?, "");
    if !unset.is_empty() {
        text.push_str(&format!("\n# Not set: {}\n", unset.join(", ")));
    }
    Ok(text)
}

/// Dotted names of the settings that are null.
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

/// All settings by their dotted names.
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

/// Sets or removes a setting.
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
