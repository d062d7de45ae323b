//! The records of the servers of the lab: prefix records, service records, and handles.

use super::topology::{LabTopology, ServerSlot, SiteName};
use crate::demo::RECORDS;
use crate::registry::{RecordSigner, bootstrap, lossy, value};
use anyhow::{Context as _, ensure};
use handle_daemon::clock::now_unix_ms;
use handle_proto::data::kind;
use handle_proto::data::site::SiteBuf;
use handle_proto::json::{Json, RecordLine};
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_proto::{Handle, ValueBuf, Values};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The record that names the sites of the service; prefix records refer to it.
const SERVICE: &str = "0.SERV/LAB";
/// The prefix whose derived prefixes have a registry of their own.
const DELEGATED: &str = "20.500";
/// A derived prefix there.
const DERIVED: &str = "20.500.LAB";
/// A handle that is missing on the mirror.
const NEW: &str = "10.1016/lab-new";

type LabRecord = (String, Vec<ValueBuf>);

/// All records, by service.
pub(super) struct LabRecords {
    registry: Vec<LabRecord>,
    local: Vec<LabRecord>,
    derived: Vec<LabRecord>,
    prefixes: BTreeSet<String>,
    bootstrap: Json,
}

impl LabRecords {
    /// The records of all services; those of the DOI service from a file, or built in.
    pub(super) fn new(topology: &LabTopology, file: Option<&Path>) -> anyhow::Result<Self> {
        let mut local = match file {
            Some(path) => File::open(path)
                .map_err(anyhow::Error::from)
                .and_then(|file| read(BufReader::new(file)))
                .with_context(|| format!("cannot read records from {}", path.display()))?,
            None => read(RECORDS.as_bytes())?,
        };
        local.push((NEW.to_owned(), vec![value(1, kind::URL, b"https://lab.example/new")]));
        let prefix =
            |(handle, _): &LabRecord| handle.split('/').next().unwrap_or_default().to_ascii_uppercase();
        let prefixes: BTreeSet<String> = local.iter().map(prefix).collect();
        let site = |index, name| value(index, kind::HS_SITE, topology.site(name).as_bytes());
        let service =
            || vec![site(1, SiteName::Primary), site(2, SiteName::Secondary), site(3, SiteName::Mirror)];
        let root = vec![site(1, SiteName::Registry)];
        let public_key = topology.public_key(SiteName::Registry);
        let signer = RecordSigner::new(topology.key_file(SiteName::Registry), public_key)?;
        let trust = vec![
            value(300, kind::HS_PUBKEY, public_key),
            value(400, kind::HS_CERT, signer.certificate()?.as_bytes()),
        ];
        let mut registry: Vec<LabRecord> = vec![];
        for (handle, mut values) in
            [(lossy(ROOT), root.clone()), (lossy(TRUST_ROOT), trust.clone()), (SERVICE.to_owned(), service())]
        {
            let signed = signer.signature(&handle, &values)?;
            values.push(value(900, kind::HS_SIGNATURE, signed.as_bytes()));
            registry.push((handle, values));
        }
        // Some prefixes name their sites themselves; the others refer to the record of the service.
        for (number, prefix) in prefixes.iter().enumerate() {
            let values = match number % 2 {
                0 => vec![value(1, kind::HS_SERV, SERVICE.as_bytes())],
                _ => service(),
            };
            registry.push((format!("0.NA/{prefix}"), values));
        }
        let derived_site = topology.site(SiteName::Derived).as_bytes();
        registry.push((format!("0.NA/{DELEGATED}"), vec![value(1, kind::HS_SITE_PREFIX, derived_site)]));
        let derived = vec![
            (format!("0.NA/{DERIVED}"), vec![site(1, SiteName::Derived)]),
            (format!("{DERIVED}/hello"), vec![value(1, kind::URL, b"https://lab.example/hello")]),
            (
                format!("{DERIVED}/alias"),
                vec![value(1, kind::HS_ALIAS, format!("{DERIVED}/hello").as_bytes())],
            ),
        ];
        let bootstrap = bootstrap(&root, &trust);
        Ok(Self { registry, local, derived, prefixes, bootstrap })
    }

    /// The bootstrap file of the clients.
    pub(super) const fn bootstrap(&self) -> &Json {
        &self.bootstrap
    }

    /// Publishes the share of one server, the handles that hash to it. The mirror lacks the new
    /// handle.
    pub(super) fn publish(&self, set: &Path, site: &SiteBuf, slot: &ServerSlot) -> anyhow::Result<()> {
        let (records, homed): (_, Vec<&str>) = match slot.site {
            SiteName::Registry => (&self.registry, vec!["0.NA", "0.0", "0.SERV"]),
            SiteName::Derived => (&self.derived, vec!["0.NA/20.500", DERIVED]),
            SiteName::Primary | SiteName::Secondary | SiteName::Mirror => {
                (&self.local, self.prefixes.iter().map(String::as_str).collect())
            }
        };
        let is_here = |(handle, _): &&LabRecord| {
            let hashes_here = site.view().server_at(Handle(handle.as_bytes())) == Some(slot.at);
            hashes_here && !(slot.site == SiteName::Mirror && handle == NEW)
        };
        let mut table = HomedPrefixes::default();
        for prefix in homed {
            table.add(prefix.as_bytes());
        }
        let now = now_unix_ms();
        let options = LayerOptions { seed: rand::random(), folds: true, created_unix_ms: now };
        SetPublisher::open(set)?.publish_base(now, |file, temp_dir| {
            let mut builder = Builder::new(temp_dir, options).homed(table);
            for (origin, (handle, values)) in (0..).zip(records.iter().filter(is_here)) {
                builder.add(origin, handle.as_bytes(), values.iter().map(ValueBuf::view))?;
            }
            builder.finish(file)
        })?;
        Ok(())
    }
}

/// Reads records, one per line. A handle may occur once.
fn read(lines: impl BufRead) -> anyhow::Result<Vec<LabRecord>> {
    let mut records = BTreeMap::new();
    let mut encoded = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let at = || format!("line {number}");
        let line = line.with_context(at)?;
        encoded.clear();
        let record = RecordLine::parse(&line, &mut encoded).with_context(at)?;
        let values = Values::from_encoded(record.values_count, &encoded)?;
        let values = values.iter().map(|value| ValueBuf::from(&value)).collect();
        let handle = record.handle.to_string();
        ensure!(!records.contains_key(&handle), "line {number}: an earlier line has {handle} already");
        records.insert(handle, values);
    }
    Ok(records.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_occurs_twice_is_refused_with_its_line() {
        let line = |handle: &str| {
            format!(r#"{{"handle": "{handle}", "values": [{{"index": 1, "type": "URL", "data": "x:y"}}]}}"#)
        };
        let different = [line("10.1/a"), line("10.1/b")].join("\n");
        assert_eq!(read(different.as_bytes()).unwrap().len(), 2);
        let repeated = [line("10.1/a"), line("10.1/b"), line("10.1/a")].join("\n");
        let error = read(repeated.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 3: an earlier line has 10.1/a already");
    }
}
