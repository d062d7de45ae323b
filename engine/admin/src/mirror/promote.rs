//! Promotion: the mirror becomes the primary.

use super::position::MirrorPosition;
use handle_daemon::privileges::is_root;
use handle_daemon::site::{SiteError, SiteRecord};
use handle_store::{Store, StoreError};
use rustix::fs::{Access, access};
use serde::Serialize;
use serde_json::Value as Json;
use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Why a mirror is not promoted.
#[derive(Debug)]
pub enum PromotionError {
    /// The store is not that of a mirror, or has been promoted.
    NoMirror,
    /// A dump of this primary is in progress, or none was ever complete: some records are older
    /// than others, or missing.
    Incomplete(String),
    /// The site record cannot be read or written.
    Site(PathBuf, io::Error),
    /// The mirror is promoted, but its site record cannot be changed.
    SitePending(PathBuf, io::Error),
    /// The site record is invalid.
    SiteContent(PathBuf, String),
    /// The store cannot be written.
    Store(StoreError),
}

impl fmt::Display for PromotionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMirror => f.write_str("this is not a mirror, or it has been promoted already"),
            Self::Incomplete(name) => write!(
                f,
                "not all records of the primary {name} are here, or some are older than others: wait for the end \
                 of its dump, or promote with --force"
            ),
            Self::Site(path, error) => {
                write!(f, "cannot change the site record {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => write!(
                        f,
                        "; the new one is written beside it, so the user of handle-admin has to be allowed to write to \
                         {}",
                        directory_of(path).display()
                    ),
                    _ => Ok(()),
                }
            }
            Self::SitePending(path, error) => write!(
                f,
                "the mirror is promoted, but its site record {} cannot be changed: {error}; start handle-admin again \
                 once it can be written (ls -ld {}), which completes the promotion",
                path.display(),
                directory_of(path).display()
            ),
            Self::SiteContent(path, why) => write!(f, "in the site record {}: {why}", path.display()),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PromotionError {}

impl From<StoreError> for PromotionError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The state of a promoted mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Promotion {
    /// The last transaction; the first change gets the next number.
    pub last_transaction: u64,
    /// The primaries, and what was taken from them.
    pub primaries: Vec<PromotedPrimary>,
    /// The serial number of the changed site record.
    pub site_serial: i64,
}

impl Promotion {
    /// What happened and what has to be done next, as lines for the operator.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let from = |primary: &PromotedPrimary| {
            let PromotedPrimary { name, last_transaction, .. } = primary;
            format!("from {name}: everything up to its transaction {last_transaction}")
        };
        let first = format!("this is the primary now; the last transaction is {}", self.last_transaction);
        let next = [
            "next steps:".to_owned(),
            "  remove `mirror.primary` from the configuration of handle-admin".to_owned(),
            "  restart handled, which has read the old site record: hdl control restart".to_owned(),
            format!(
                "  put the new site record, serial number {}, into the record of the prefix",
                self.site_serial
            ),
        ];
        std::iter::once(first).chain(self.primaries.iter().map(from)).chain(next).collect()
    }
}

/// What was taken from a lost primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PromotedPrimary {
    /// Its name.
    pub name: String,
    /// Its last transaction that is here.
    pub last_transaction: u64,
    /// Time up to which all transactions have been applied, by its clock, in milliseconds
    /// since 1970.
    pub complete_unix_ms: u64,
}

/// Makes the mirror with this store and this site record the primary: lets the numbers of
/// transactions go on above those of the lost primary, and changes the site record.
///
/// The store and the site record are two files. The store comes first and notes that the site
/// record has to follow, so that a promotion that is interrupted between them is completed by
/// [`complete_promotion`] at the next start. The new site record is written beside the present one
/// before, so that what can fail fails before anything has changed.
///
/// # Errors
/// When it is not a mirror, it is incomplete and not `is_forced`, or a file cannot be written.
/// Nothing has changed then, except with [`PromotionError::SitePending`].
pub fn promote(
    store: &Store,
    site: &Path,
    is_forced: bool,
    now_unix_ms: u64,
) -> Result<Promotion, PromotionError> {
    let mut positions = stored_positions(store)?;
    positions.retain(|(_, position)| position.is_followed());
    if positions.is_empty() {
        return Err(PromotionError::NoMirror);
    }
    let is_incomplete = |position: &MirrorPosition| position.dump.is_some() || !position.has_been_complete();
    if let Some((name, _)) = positions.iter().find(|(_, position)| is_incomplete(position) && !is_forced) {
        return Err(PromotionError::Incomplete(name.clone()));
    }
    let next_site = NextSite::prepare(site)?;
    let site_serial = next_site.serial;
    let primaries: Vec<_> = positions
        .iter()
        .map(|(name, position)| PromotedPrimary {
            name: name.clone(),
            last_transaction: position.last_id,
            complete_unix_ms: position.complete_unix_ms,
        })
        .collect();
    // The numbers of several primaries have nothing to do with each other.
    let above = if let [only] = &*primaries { only.last_transaction } else { 0 };
    let times = primaries.iter().map(|primary| primary.complete_unix_ms);
    let not_before_ms = MirrorPosition::believed(times.max().unwrap_or(0), now_unix_ms);
    let site_is_pending = next_site.file.is_some();
    let last_transaction = store.promote(above, not_before_ms, move |transaction| {
        for (name, position) in positions {
            // Read again: a batch may have been applied meanwhile.
            let position = MirrorPosition::read(transaction, &name)?.unwrap_or(position);
            let promoted_unix_ms = Some(now_unix_ms);
            let promoted = MirrorPosition {
                promoted_unix_ms,
                site_is_pending,
                dump: None,
                is_partial: false,
                ..position
            };
            promoted.write(transaction, &name)?;
        }
        Ok(())
    })?;
    next_site.persist()?;
    clear_pending(store)?;
    Ok(Promotion { last_transaction, primaries, site_serial })
}

/// Completes a promotion that was interrupted after the store had changed and before the site
/// record had; whether there was one. Call it before the site record is read.
///
/// # Errors
/// When the site record or the store cannot be read or written.
pub fn complete_promotion(store: &Store, site: &Path) -> Result<bool, PromotionError> {
    if !stored_positions(store)?.iter().any(|(_, position)| position.site_is_pending) {
        return Ok(false);
    }
    NextSite::prepare(site)?.persist()?;
    clear_pending(store)?;
    Ok(true)
}

/// Why a promotion could not change the site record at `path`, if it could not.
#[must_use]
pub fn site_refusal(path: &Path) -> Option<PromotionError> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) => return Some(PromotionError::Site(path.to_owned(), error)),
    };
    let allowed = access(directory_of(&real), Access::WRITE_OK | Access::EXEC_OK);
    allowed.err().map(|error| PromotionError::Site(real, error.into()))
}

fn stored_positions(store: &Store) -> Result<Vec<(String, MirrorPosition)>, StoreError> {
    let stored = store.change(|transaction| transaction.mirror_positions())?;
    stored.into_iter().map(|(name, stored)| Ok((name, MirrorPosition::decode(&stored)?))).collect()
}

/// Notes that the site record has followed.
fn clear_pending(store: &Store) -> Result<(), StoreError> {
    store.change(|transaction| {
        for (name, stored) in transaction.mirror_positions()? {
            let position = MirrorPosition::decode(&stored)?;
            if position.site_is_pending {
                MirrorPosition { site_is_pending: false, ..position }.write(transaction, &name)?;
            }
        }
        Ok(())
    })
}

/// The site record as that of a primary site, beside the present one.
struct NextSite {
    /// The file itself, whatever links lead to it: `handle-admin` may be allowed to write to its
    /// directory only.
    path: PathBuf,
    /// Its serial number.
    serial: i64,
    /// The durable file that takes the place of the present one; `None` if that is the record of a
    /// primary site already.
    file: Option<NamedTempFile>,
}

impl NextSite {
    /// Writes the site record at `path` as that of a primary site, with the next serial number,
    /// beside it.
    fn prepare(path: &Path) -> Result<Self, PromotionError> {
        let path = &path.canonicalize().map_err(|error| PromotionError::Site(path.to_owned(), error))?;
        let failed = |error| PromotionError::Site(path.clone(), error);
        let invalid = |why: String| PromotionError::SiteContent(path.clone(), why);
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mut json: Json = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        let serial = json.get("serialNumber").and_then(Json::as_i64).unwrap_or(0);
        if json.get("primarySite") == Some(&Json::Bool(true)) {
            return Ok(Self { path: path.clone(), serial, file: None });
        }
        let serial = if (0..i64::from(i16::MAX)).contains(&serial) { serial + 1 } else { 1 };
        json["primarySite"] = Json::Bool(true);
        json["serialNumber"] = serial.into();
        let text = serde_json::to_string_pretty(&json).map_err(|error| invalid(error.to_string()))?;
        // Checked as a server reads it, whichever of the site this is.
        match SiteRecord::parse(&text, None) {
            Ok(_) | Err(SiteError::SeveralServers(_)) => {}
            Err(error) => return Err(invalid(error.to_string())),
        }
        let present = std::fs::metadata(path).map_err(failed)?;
        let mut file = NamedTempFile::new_in(directory_of(path)).map_err(failed)?;
        writeln!(file, "{text}").map_err(failed)?;
        file.as_file().set_permissions(present.permissions()).map_err(failed)?;
        if is_root() {
            // The processes read it as the user whose file the present one is.
            fchown(file.as_file(), Some(present.uid()), Some(present.gid())).map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        Ok(Self { path: path.clone(), serial, file: Some(file) })
    }

    /// Lets it take the place of the present one, durably.
    ///
    /// # Errors
    /// [`PromotionError::SitePending`], when it cannot.
    fn persist(self) -> Result<(), PromotionError> {
        let Self { path, file: Some(file), .. } = self else { return Ok(()) };
        let persisted = file
            .persist(&path)
            .map_err(|error| error.error)
            .and_then(|_| std::fs::File::open(directory_of(&path))?.sync_all());
        persisted.map_err(|error| PromotionError::SitePending(path, error))
    }
}

/// The directory that has the file at `path`.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = r#"{"version":1,"protocolVersion":"2.11","serialNumber":7,"primarySite":false,"multiPrimary":false,
        "attributes":[],"servers":[{"serverId":1,"address":"192.0.2.1","interfaces":[]}],"unknown":1}"#;

    #[test]
    fn the_site_record_becomes_that_of_a_primary_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("siteinfo.json");
        std::fs::write(&path, SITE).unwrap();
        let make_primary = |path: &Path| {
            let next = NextSite::prepare(path)?;
            let serial = next.serial;
            next.persist().unwrap();
            Ok::<_, PromotionError>(serial)
        };
        assert_eq!(make_primary(&path).unwrap(), 8);
        let site = SiteRecord::read(&path, None).unwrap();
        assert!(site.is_primary() && site.view().serial == 8);
        assert!(std::fs::read_to_string(&path).unwrap().contains("unknown"));
        assert_eq!(make_primary(&path).unwrap(), 8, "nothing changes any more");
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(make_primary(&path), Err(PromotionError::SiteContent(..))));
    }

    #[test]
    fn a_link_to_the_site_record_stays_and_what_it_names_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (link, own) = (directory.path().join("siteinfo.json"), directory.path().join("site"));
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("siteinfo.json"), SITE).unwrap();
        std::os::unix::fs::symlink("site/siteinfo.json", &link).unwrap();
        assert!(site_refusal(&link).is_none());
        let next = NextSite::prepare(&link).unwrap();
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 2, "the new one is beside the file itself");
        next.persist().unwrap();
        assert!(link.is_symlink() && !own.join("siteinfo.json").is_symlink());
        assert!(SiteRecord::read(&link, None).unwrap().is_primary());
        std::fs::remove_file(own.join("siteinfo.json")).unwrap();
        assert!(matches!(site_refusal(&link), Some(PromotionError::Site(..))));
    }
}
