//! What the configuration names and the server reads: the site record and the published set.

use crate::config::Config;
use crate::live::ServedSet;
use crate::site::OwnSite;
use crate::templates::{SourcePrefixes, TemplatesConfig};
use handle_daemon::publisher_keys;
use handle_daemon::site::{ListenerService, SiteRecord, differences};
use handle_snapshot::map::LoadMode;
use handle_snapshot::set::SetErrorKind;
use handle_snapshot::set::freshness::SetFreshness;
use handle_snapshot::set::last_served::LastServedFile;
use handle_snapshot::set::statement::AcceptedPublishers;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

/// Reads the site record named by the configuration.
///
/// # Errors
/// When it cannot be read or does not contain this server.
pub fn read_site(config: &Config) -> anyhow::Result<OwnSite> {
    let site = match &config.site {
        Some(path) => {
            let record = SiteRecord::read(path, config.server_id)?;
            let answers = ListenerService::Queries { over_tcp: config.tcp.enabled };
            let differences = record.server().map(|server| differences(&server, &config.listen, answers));
            OwnSite::from(&record).differing_in(differences.unwrap_or_default())
        }
        None => OwnSite::alone(),
    };
    let site = site.answering_in(config.limits.answer_datagrams);
    Ok(match config.slow.threads {
        0 => site,
        _ => {
            let forward = Some(&config.forward).filter(|forward| forward.socket.is_some());
            site.with_slow_path(config.server_key.is_some(), config.sessions.are_enabled()).forwarding(
                forward.is_some_and(|forward| forward.listing),
                forward.is_some_and(|forward| forward.old_clients),
            )
        }
    })
}

/// Opens the published set named by the configuration.
///
/// # Errors
/// When there is none or it is damaged.
pub fn open_live(config: &Config) -> anyhow::Result<Arc<ServedSet>> {
    let load_mode = if config.copy_to_memory { LoadMode::CopyToMemory } else { LoadMode::Map };
    let directory = config.snapshot.display();
    let publishers = &config.publishers;
    let last_served = publishers.last_set_file.as_deref().map(LastServedFile::open).transpose()?;
    let freshness = SetFreshness::new(accepted_publishers(&publishers.keys)?).remembering(last_served);
    freshness.set_limits(publishers.age_max_s, publishers.refuse_stale);
    let opened = ServedSet::open(
        &config.snapshot,
        load_mode,
        config.verify_new_layers,
        config.check_records,
        templates_of(config),
        freshness,
    );
    let opened = opened.map_err(|error| {
        if matches!(error.kind, SetErrorKind::NotPublished) {
            let hint =
                format!("cannot serve {directory} (publish a set: hdl snapshot publish {directory} RECORDS)");
            return anyhow::Error::new(error).context(hint);
        }
        let kind = match &error.kind {
            SetErrorKind::Io { error, .. } => error.kind(),
            _ => ErrorKind::Other,
        };
        let check = match kind {
            ErrorKind::PermissionDenied => format!("who may read it: ls -l {directory}"),
            ErrorKind::OutOfMemory => "there is not enough memory: free -h; ulimit -v".to_owned(),
            _ => format!("check it with: hdl snapshot verify {directory}"),
        };
        anyhow::Error::new(error).context(format!("cannot serve {directory} ({check})"))
    })?;
    opened.set_sources(sources_of(config));
    Ok(opened)
}

/// The publishers with these keys; `None` without keys.
fn accepted_publishers(files: &[PathBuf]) -> anyhow::Result<Option<AcceptedPublishers>> {
    let keys = publisher_keys::read_public(files)?;
    Ok((!keys.is_empty()).then(|| {
        AcceptedPublishers::new(Box::new(move |signer, message, signature| {
            keys.iter().any(|key| key.has_signed(&signer.0, message, signature))
        }))
    }))
}

/// The configured templates; `None` without slow path threads, which compute them.
pub(crate) fn templates_of(config: &Config) -> Option<TemplatesConfig> {
    (config.slow.threads > 0).then(|| config.templates.clone())
}

/// The prefixes of sources of records; none without slow path threads, which forward requests.
pub(crate) fn sources_of(config: &Config) -> SourcePrefixes {
    match config.slow.threads {
        0 => SourcePrefixes::default(),
        _ => SourcePrefixes::new(&config.forward.sources),
    }
}
