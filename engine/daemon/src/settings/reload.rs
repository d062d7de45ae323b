//! Reloading a configuration: compares settings by name, and tells which changes take effect
//! without a restart.
//!
//! The configuration in force and the new one are compared as tables. Changed settings that are
//! declared as live are applied. Other changed settings keep their value and are reported.

use super::SettingSection;
use super::file::to_table;
use crate::text::listed;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use toml::{Table, Value};

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingChanges {
    /// Settings whose new value is in force.
    pub changed: Vec<String>,
    /// Settings whose new value needs a restart.
    pub need_restart: Vec<String>,
}

impl SettingChanges {
    /// Logs the changes, and adds them to the answer to a reload. `remedy` tells how settings take
    /// effect that cannot change while the process runs.
    pub fn report(self, answer: &mut serde_json::Value, remedy: &str) {
        let Self { changed, need_restart } = self;
        tracing::info!(changed = %listed(&changed), "configuration reloaded");
        answer["settings_changed"] = changed.into();
        if !need_restart.is_empty() {
            let hint = format!("cannot change while serving: {}; {remedy}", need_restart.join(", "));
            tracing::warn!("{hint}");
            answer["settings_not_changed"] = need_restart.into();
            answer["hint"] = hint.into();
        }
    }
}

/// Logs that a configuration was not reloaded, and returns the answer that says so.
pub fn report_failed_reload(error: &impl Display) -> serde_json::Value {
    let error = format!("{error:#}; nothing has changed");
    tracing::error!(error, "the configuration is not reloaded");
    json!({ "ok": false, "error": error })
}

/// `old` with the live settings of `new`.
///
/// # Errors
/// When a value has no form in TOML, as a path that is not UTF-8.
pub fn merged<C: SettingSection>(old: &C, new: &C) -> Result<(C, SettingChanges), toml::de::Error> {
    let live: BTreeSet<String> = C::tables("")
        .into_iter()
        .flat_map(|table| table.rows)
        .filter(|row| row.is_live)
        .map(|row| row.name)
        .collect();
    let (mut table, mut changes) = (to_table(old)?, SettingChanges::default());
    let (before, after) = (flat(&table), flat(&to_table(new)?));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names.into_iter().filter(|&name| before.get(name) != after.get(name)) {
        if live.contains(name) {
            put(&mut table, name, after.get(name));
            changes.changed.push(name.clone());
        } else {
            changes.need_restart.push(name.clone());
        }
    }
    let mut merged: C = table.try_into()?;
    merged.copy_constants(old);
    Ok((merged, changes))
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
pub(super) fn put(table: &mut Table, name: &str, value: Option<&Value>) {
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
